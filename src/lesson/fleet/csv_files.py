"""Fleets as CSV files: the columns `client,latency_s`, and optional ones."""

import math
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

from lesson.core.csv_rows import csv_text
from lesson.fleet.fleet import Fleet, fleet_of
from lesson.fleet.measured import OPTIONAL, REQUIRED, read_measured
from lesson.settings.settings import Settings


def read_fleet(path: Path | str, settings: Settings | None = None) -> Fleet:
    """Read a fleet with measured latencies from a CSV file with the columns `client,latency_s`.

    The file may also have the columns `compute_s`, `upload_s`, `num_samples`, `compute_j` and `transmit_j`, in any
    order. An infinite latency marks an unreachable client. Missing times and energies are NaN; missing values of
    `num_samples` come from the settings, the middle if they give a range. Names become integers if all of them are
    whole numbers. A measured `upload_s` also serves as the upload time on a shared band.

    With `sd_s`, times are means: each local training draws its latency from `distribution`, which is normal (the
    default), log-normal, half-normal or gamma. A row with `count` stands for that many clients.

    Args:
        path: CSV file.
        settings: Training, weighting and model size; by default, `Settings()`.

    Raises:
        InputError: The file cannot be read, or a setting needs client positions. The message names the line.
    """
    settings = settings or Settings()
    settings.check_excluded("latencies", str(path))
    return fleet_of(settings, read_measured(path, settings.data))


def fleet_csv(fleet: Fleet, is_in: Iterable[bool] = repeat(True)) -> str:
    """Return a fleet, or the clients that `is_in` selects, as CSV text that `read_fleet` reads.

    Energies and distributions are left out.
    """
    columns = [fleet.names, fleet.latency_s, fleet.compute_s, fleet.upload_s, fleet.num_samples]
    rows = (
        [name, *("" if math.isnan(value) else f"{value:.6g}" for value in seconds), samples]
        for (name, *seconds, samples), selected in zip(zip(*columns, strict=True), is_in, strict=False)
        if selected
    )
    return csv_text([*REQUIRED, *OPTIONAL[:3]], rows)
