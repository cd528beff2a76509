"""Clients with measured times, read from a CSV file with one line per client, or per group of similar clients."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.csv_rows import Table, read_table
from lesson.core.errors import InputError
from lesson.core.validation import MAX_SAMPLES
from lesson.fleet.spread import DISTRIBUTIONS, MAX_CV, Spread
from lesson.settings.sections import MAX_CLIENTS, DataSettings
from lesson.settings.settings import Settings

REQUIRED = ("client", "latency_s")
OPTIONAL = ("compute_s", "upload_s", "num_samples", "compute_j", "transmit_j", "sd_s", "distribution", "count")
WORDS = (("distribution", tuple(DISTRIBUTIONS)),)
SECONDS = ("compute_s", "upload_s", "latency_s")
JOULES = ("compute_j", "transmit_j")
SPLIT_TOLERANCE = 0.01
"""Relative tolerance of compute_s + upload_s = latency_s, as measurements are rounded."""
CV_TOLERANCE = 1e-3
"""Relative tolerance of the largest sd_s, which users round."""
SPLITS_BY_NUMBER = ("dirichlet-per-client", "dirichlet-pool")
"""Splits of the data that give each client a prescribed number of samples."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Clients of a file, one row each; arrays have shape (num_clients,).

    Attributes:
        names: Names of the clients; integers if all of them are whole numbers.
        columns: Times in seconds and energies in joules by the names of SECONDS and JOULES; NaN where unknown. The
            latency of an unreachable client is inf.
        num_samples: Number of training samples.
        counts_samples: Whether the file gives the number of samples of any client.
        spread: How latencies vary around those in `columns`, which are means; None if none varies.
    """

    names: Sequence[int | str]
    columns: dict[str, FloatArray]
    num_samples: IntArray
    counts_samples: bool
    spread: Spread | None = None

    def __len__(self) -> int:
        return len(self.names)


def read_measured(path: Path | str, data: DataSettings) -> Measured:
    """Read the clients of a CSV file; missing numbers of samples come from the settings, the middle of a range.

    A row with `count` n > 1 stands for n clients, named NAME-1 to NAME-n.
    """
    table = read_table(path, "latencies", REQUIRED[1:], OPTIONAL, words=WORDS)
    _check(table)
    counts = np.nan_to_num(table.numbers["count"], nan=1).astype(np.int64)
    names, columns = _names(table, counts), {name: np.repeat(one, counts) for name, one in table.numbers.items()}
    given, usual = columns["num_samples"], data.samples_per_client
    usual = sum(usual) // 2 if isinstance(usual, tuple) else usual
    cv = np.nan_to_num(columns["sd_s"] / columns["latency_s"])
    return Measured(
        names=[int(name) for name in names] if all(map(_is_number, names)) else names,
        columns={column: columns[column] for column in (*SECONDS, *JOULES)},
        num_samples=np.where(np.isnan(given), usual, given).astype(np.int64),
        counts_samples=not np.isnan(given).all(),
        spread=Spread(cv, np.nan_to_num(columns["distribution"]).astype(np.int64)) if cv.any() else None,
    )


def listed_clients(settings: Settings) -> Measured:
    """Return the clients in the file of latencies that the settings name.

    Raises:
        InputError: `num_clients` was set to another number, or the file cannot be read.
    """
    path, given = settings.fleet.latencies, settings.fleet.num_clients
    listed = read_measured(path, settings.data)
    if settings.is_given("fleet.num_clients") and given != len(listed):
        raise InputError(
            f"[fleet] num_clients must be {len(listed)}, the number of clients in {path}, got {given}; leave it unset"
        )
    return listed


def latencies_vary(settings: Settings) -> bool:
    """Return whether the settings name a file of latencies in which some have a distribution."""
    return bool(settings.fleet.latencies) and listed_clients(settings).spread is not None


def samples_note(settings: Settings) -> list[str]:
    """Return a note if the split of the data ignores the numbers of samples in the file of latencies."""
    path, split = settings.fleet.latencies, settings.data.split
    if not path or split in SPLITS_BY_NUMBER or not read_measured(path, settings.data).counts_samples:
        return []
    return [
        f"num_samples in {path} has no effect: split = {split} determines how many samples each client holds; "
        f"{' and '.join(SPLITS_BY_NUMBER)} use the file's numbers"
    ]


def _names(table: Table, counts: IntArray) -> list[str]:
    """Return the names of all clients; raise InputError if there are too many, or if two have the same name."""
    if (total := int(counts.sum())) > MAX_CLIENTS:
        raise InputError(f"{table.path}: count must sum to at most {MAX_CLIENTS}, got {total}")
    names = [
        f"{name}-{place}" if many > 1 else str(name)
        for name, many in zip(table.names, counts.tolist(), strict=True)
        for place in range(1, many + 1)
    ]
    if total > len(counts) and len(set(names)) < total:
        often = Counter(names)
        twice = next(str(name) for name in table.names if often[str(name)] > 1)
        raise InputError(f"{table.path}: client '{twice[:40]}' is also one of those that count adds; rename one")
    return names


def _check(table: Table) -> None:
    """Raise InputError unless each client is listed once, with numbers that are possible together."""
    remedy = "if these are repeated measurements, give the median of each client, otherwise rename one"
    table.sorted_by("latency_s").check_pairs(np.array([True]), "is listed twice", remedy)
    latency_s, compute_s, upload_s = (table.numbers[column] for column in ("latency_s", "compute_s", "upload_s"))
    table.check("latency_s", latency_s > 0, "> 0, or inf for a client that cannot be reached")
    for column in OPTIONAL:
        table.check(column, ~(table.numbers[column] < 0), ">= 0")
    for column in ("compute_s", "upload_s"):
        table.check(column, ~(table.numbers[column] > latency_s * (1 + SPLIT_TOLERANCE)), "at most latency_s")
    is_sum = np.isclose(compute_s + upload_s, latency_s, rtol=SPLIT_TOLERANCE, atol=0)
    table.check("latency_s", is_sum | np.isnan(compute_s + upload_s), "compute_s + upload_s to within 1 %")
    for column, during in zip(JOULES, ("compute_s", "upload_s"), strict=True):
        joules = table.numbers[column]
        table.check(column, ~np.isinf(joules), "finite")
        table.check(column, np.isnan(joules) | ~np.isnan(table.numbers[during]), f"empty where {during} is")
    sd_s, kinds, counts = (table.numbers[column] for column in ("sd_s", "distribution", "count"))
    table.check("sd_s", ~np.isnan(sd_s) | np.isnan(kinds), "given where distribution is")
    table.check("sd_s", ~np.isinf(sd_s), "finite")
    for place, (name, most) in enumerate(MAX_CV.items()):
        is_wide = (np.nan_to_num(kinds) == place) & (sd_s > most * latency_s * (1 + CV_TOLERANCE))
        table.check("sd_s", ~is_wide, f"at most {most:.4g} * latency_s for a {name} latency")
    is_count = (counts >= 1) & (counts <= MAX_CLIENTS) & (np.floor(counts) == counts)
    table.check("count", is_count | np.isnan(counts), f"a whole number from 1 to {MAX_CLIENTS}")
    samples = table.numbers["num_samples"]
    whole = (samples >= 1) & (samples <= MAX_SAMPLES) & (np.floor(samples) == samples)
    table.check("num_samples", whole | np.isnan(samples), f"a whole number from 1 to {MAX_SAMPLES}")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name[:18])) == name
