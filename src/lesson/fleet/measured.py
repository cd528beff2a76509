"""Clients with measured times, read from a CSV file with one line per client."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.csv_rows import number, read_rows
from lesson.core.errors import InputError
from lesson.core.validation import MAX_SAMPLES
from lesson.settings.sections import DataSettings
from lesson.settings.settings import Settings

REQUIRED = ("client", "latency_s")
OPTIONAL = ("compute_s", "upload_s", "num_samples", "compute_j", "transmit_j")
SECONDS = ("compute_s", "upload_s", "latency_s")
JOULES = ("compute_j", "transmit_j")
SPLIT_TOLERANCE = 0.01
"""Relative tolerance of compute_s + upload_s = latency_s, as measurements are rounded."""
SPLITS_BY_NUMBER = ("dirichlet-per-client", "dirichlet-pool")
"""Splits of the data that give each client a prescribed number of samples."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Clients of a file, one row each; arrays have shape (num_clients,).

    Attributes:
        names: Names of the clients; integers if all of them are whole numbers.
        latency_s: Time from start to arrival in seconds; inf for an unreachable client.
        compute_s: Compute time in seconds; NaN where unknown.
        upload_s: Upload time in seconds; NaN where unknown.
        compute_j: Compute energy in joules; NaN where unknown.
        transmit_j: Energy of an upload in joules; NaN where unknown.
        num_samples: Number of training samples.
        counts_samples: Whether the file gives the number of samples of any client.
    """

    names: Sequence[int | str]
    latency_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    compute_j: FloatArray
    transmit_j: FloatArray
    num_samples: IntArray
    counts_samples: bool

    def __len__(self) -> int:
        return len(self.latency_s)


def read_measured(path: Path | str, data: DataSettings) -> Measured:
    """Read the clients of a CSV file; missing numbers of samples come from the settings, the middle of a range.

    Files are cached by modification time and size.
    """
    path = Path(path)
    try:
        looks = path.stat()
    except OSError:
        found = _read(path)  # raises InputError with the reason
    else:
        found = _read_again(path, (looks.st_mtime_ns, looks.st_size))
    usual = data.samples_per_client
    usual = sum(usual) // 2 if isinstance(usual, tuple) else usual
    return replace(found, num_samples=np.where(found.num_samples > 0, found.num_samples, usual))


def with_listed_clients(settings: Settings) -> Settings:
    """Return the settings with `num_clients` as the file of latencies has it, if there is one.

    Raises:
        InputError: `num_clients` was set to another number, or the file cannot be read.
    """
    if not (path := settings.fleet.latencies):
        return settings
    count, given = len(read_measured(path, settings.data)), settings.fleet.num_clients
    if given == count:
        return settings
    if settings.fleet.changed("num_clients"):
        raise InputError(
            f"[fleet] num_clients must be {count}, the number of clients in {path}, got {given}; leave it unset"
        )
    return settings.model_copy(update={"fleet": settings.fleet.model_copy(update={"num_clients": count})})


def samples_note(settings: Settings) -> list[str]:
    """Return a note if the split of the data ignores the numbers of samples in the file of latencies."""
    path, split = settings.fleet.latencies, settings.data.split
    if not path or split in SPLITS_BY_NUMBER or not read_measured(path, settings.data).counts_samples:
        return []
    return [
        f"num_samples in {path} has no effect: split = {split} determines how many samples each client holds; "
        f"{' and '.join(SPLITS_BY_NUMBER)} use the file's numbers"
    ]


@lru_cache(maxsize=3)
def _read_again(path: Path, looks: tuple[int, int]) -> Measured:  # noqa: ARG001
    return _read(path)


def _read(path: Path) -> Measured:
    """Read a file; the number of samples is 0 where it is missing."""
    lines: dict[str, int] = {}
    numbers: dict[str, list[float]] = {name: [] for name in (*SECONDS, *JOULES)}
    samples: list[int] = []
    for line, cells in read_rows(path, "latencies", REQUIRED, OPTIONAL):
        row = dict(zip(REQUIRED + OPTIONAL, cells, strict=True))
        where, name = f"{path} line {line}", row["client"]
        if not name:
            raise InputError(f"{where}: client must have a name, got an empty one")
        if name in lines:
            raise InputError(f"{where}: client '{name[:40]}' is listed twice, first on line {lines[name]}; rename one")
        lines[name] = line
        for column, values in numbers.items():
            values.append(_number(row[column], column, where))
        last = {column: values[-1] for column, values in numbers.items()}
        _check_split(where, *(last[column] for column in SECONDS))
        _check_energies(where, last)
        samples.append(_samples(row["num_samples"], where))
    if not lines:
        raise InputError(f"{path} has no clients; add one line per client below the header")
    names = [int(name) for name in lines] if all(map(_is_number, lines)) else list(lines)
    arrays = {column: np.array(values) for column, values in numbers.items()}
    return Measured(names, num_samples=np.array(samples, dtype=np.int64), counts_samples=any(samples), **arrays)


def _number(text: str, column: str, where: str) -> float:
    """Return the number in a cell; NaN if an optional cell is empty."""
    if not text and column in OPTIONAL:
        return math.nan
    value = number(text)
    if not (value >= 0 if column in OPTIONAL else value > 0):
        bound = ">= 0" if column in OPTIONAL else "> 0"
        no_latency = column == "latency_s" and math.isnan(value)
        hint = "; write inf for a client that cannot be reached" if no_latency else ""
        raise InputError(f"{where}: {column} must be a number {bound}, got {text[:40]!r}{hint}")
    return value


def _samples(text: str, where: str) -> int:
    """Return the number in a cell; 0 if it is empty."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and 0 < int(text) <= MAX_SAMPLES):
        raise InputError(f"{where}: num_samples must be a whole number from 1 to {MAX_SAMPLES}, got {text[:40]!r}")
    return int(text)


def _check_split(where: str, compute_s: float, upload_s: float, latency_s: float) -> None:
    total_s = compute_s + upload_s
    if not math.isnan(total_s) and not math.isclose(total_s, latency_s, rel_tol=SPLIT_TOLERANCE):
        got = f"got {total_s:g} and {latency_s:g}"
        raise InputError(f"{where}: compute_s + upload_s must equal latency_s to within 1 %, {got}")
    if any(part_s > latency_s * (1 + SPLIT_TOLERANCE) for part_s in (compute_s, upload_s)):
        raise InputError(f"{where}: compute_s and upload_s must not exceed latency_s = {latency_s:g}")


def _check_energies(where: str, row: dict[str, float]) -> None:
    """Raise InputError unless the energies of a row are finite and the times in which they are used are known."""
    for column, during in zip(JOULES, ("compute_s", "upload_s"), strict=True):
        if math.isinf(row[column]):
            raise InputError(f"{where}: {column} must be finite, got inf")
        if not math.isnan(row[column]) and math.isnan(row[during]):
            raise InputError(
                f"{where}: {column} requires {during}, got an empty cell; add the time or remove the energy"
            )


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name[:18])) == name
