"""Fleets with measured latencies, as CSV files with columns `client,latency_s[,compute_s,upload_s,num_samples]`."""

import csv
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np

from lesson.core.csv_rows import number, read_rows
from lesson.core.errors import InputError
from lesson.core.validation import MAX_SAMPLES
from lesson.fleet.fleet import Fleet, check_measured, measured_fleet
from lesson.settings.settings import Settings

REQUIRED = ("client", "latency_s")
OPTIONAL = ("compute_s", "upload_s", "num_samples")
SPLIT_TOLERANCE = 0.01
"""Relative tolerance of compute_s + upload_s = latency_s, as measurements are rounded."""


def read_fleet(path: Path | str, settings: Settings | None = None) -> Fleet:
    """Read a fleet with measured latencies from a CSV file with the columns `client,latency_s`.

    The file may also have the columns `compute_s`, `upload_s` and `num_samples`, in any order. An infinite latency
    marks an unreachable client. Missing values of `compute_s` and `upload_s` are NaN; missing values of `num_samples`
    come from the settings, the middle if they give a range. Names become integers if all of them are whole numbers. A
    measured `upload_s` also serves as the upload time on a shared band.

    Args:
        path: CSV file.
        settings: Training, weighting and model size; by default, `Settings()`. `ensure_first_tier` applies only if it
            is set explicitly: a preset does not change measured latencies.

    Raises:
        InputError: The file cannot be read, or a setting needs client positions. The message names the line.
    """
    path, settings = Path(path), settings or Settings()
    check_measured(settings)
    names: dict[str, int] = {}
    seconds: dict[str, list[float]] = {"compute_s": [], "upload_s": [], "latency_s": []}
    samples: list[int] = []
    for line, cells in read_rows(path, "latencies", REQUIRED, OPTIONAL):
        row = dict(zip(REQUIRED + OPTIONAL, cells, strict=True))
        where, name = f"{path} line {line}", row["client"]
        if not name:
            raise InputError(f"{where}: client must have a name, got an empty one")
        if name in names:
            raise InputError(f"{where}: client '{name[:40]}' is listed twice, first on line {names[name]}; rename one")
        names[name] = line
        for column, values in seconds.items():
            values.append(_seconds(row[column], column, where))
        _check_split(where, *(values[-1] for values in seconds.values()))
        samples.append(_samples(row["num_samples"], where) or _usual_samples(settings))
    if not names:
        raise InputError(f"{path} has no clients; add one line per client below the header")
    num_samples = np.array(samples, dtype=np.int64)
    numbered = [int(name) for name in names] if all(map(_is_number, names)) else list(names)
    fleet = measured_fleet(settings, numbered, num_samples, **{name: np.array(part) for name, part in seconds.items()})
    asked_for = settings.strategy.ensure_first_tier and "ensure_first_tier" in settings.strategy.model_fields_set
    return replace(fleet, ensure_first_tier=asked_for)


def fleet_csv(fleet: Fleet) -> str:
    """Return a fleet as CSV text that `read_fleet` reads."""
    columns = [fleet.names, fleet.latency_s, fleet.compute_s, fleet.upload_s, fleet.num_samples]
    rows = (
        [name, *("" if math.isnan(value) else f"{value:.6g}" for value in seconds), samples]
        for name, *seconds, samples in zip(*columns, strict=True)
    )
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*REQUIRED, *OPTIONAL], *rows])
    return text.getvalue()


def _seconds(text: str, column: str, where: str) -> float:
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


def _usual_samples(settings: Settings) -> int:
    samples = settings.data.samples_per_client
    return sum(samples) // 2 if isinstance(samples, tuple) else samples


def _check_split(where: str, compute_s: float, upload_s: float, latency_s: float) -> None:
    total_s = compute_s + upload_s
    if not math.isnan(total_s) and not math.isclose(total_s, latency_s, rel_tol=SPLIT_TOLERANCE):
        got = f"got {total_s:g} and {latency_s:g}"
        raise InputError(f"{where}: compute_s + upload_s must equal latency_s to within 1 %, {got}")
    if any(part_s > latency_s * (1 + SPLIT_TOLERANCE) for part_s in (compute_s, upload_s)):
        raise InputError(f"{where}: compute_s and upload_s must not exceed latency_s = {latency_s:g}")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name[:18])) == name
