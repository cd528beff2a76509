"""Conversion of drive tests in a 5G network to SNR traces.

The archive is the production data set of https://github.com/uccmisl/5Gdataset (GPL-3.0): Raca, Leahy, Sreenan and
Quinlan, "Beyond Throughput, the Next Generation: a 5G Dataset with Channel and Context Metrics", MMSys 2020, pp.
303–308, https://doi.org/10.1145/3339825.3394938. A phone in a car or at rest recorded about one row per second in the
network of an Irish operator. Its bitrates are those of the apps that ran, not of a saturated uplink; therefore, the SNR
is used.
"""

import csv
import io
import zipfile
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lesson.core.errors import InputError
from lesson.core.files import write_whole

FOLDER = "5g"
ARCHIVE = "5G-production-dataset.zip"
CONVERTED = "5g-snr.csv"
MAX_GAP_S = 5
"""Longer intervals without an SNR are cut out; rows are up to 4 s apart."""
MIN_KNOWN_S = 60
"""Recordings with an SNR in fewer seconds are left out."""
TIME_FORMAT = "%Y.%m.%d_%H.%M.%S"


class Recording(NamedTuple):
    """The SNR in one drive or static test."""

    start: datetime
    name: str
    """App, mobility and start, such as Netflix/Driving/2019.11.26_07.29.24."""
    snr_db: dict[int, float]
    """SNR from each time on, in seconds since the first row with an SNR, without gaps of more than MAX_GAP_S."""


def convert(archive: Path, output: Path) -> None:
    """Write the SNR traces of a verified archive as a CSV file, in the order of their starts.

    Phones report no SNR in 2G and 3G: these parts are cut out, and recordings with hardly anything else are left out.
    """
    lines = ["trace,time_s,snr_db"]
    for one in read_drive_tests(archive):
        if len(one.snr_db) >= MIN_KNOWN_S:
            lines += [f"{one.name},{time_s},{snr_db:g}" for time_s, snr_db in one.snr_db.items()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}; choose another folder with --dir") from None
    write_whole(output, "\n".join([*lines, ""]).encode())


def read_drive_tests(archive: Path) -> list[Recording]:
    """Return all recordings in a verified archive, in the order of their starts; it also has macOS metadata."""
    with zipfile.ZipFile(archive) as packed:
        paths = [name for name in packed.namelist() if name.endswith(".csv") and "__MACOSX" not in name]
        return sorted(_read_recording(PurePosixPath(path), packed.read(path).decode()) for path in paths)


def _read_recording(path: PurePosixPath, text: str) -> Recording:
    """Return a recording from the text of its file, whose path is DATASET/APP/MOBILITY/[EPISODE/]B_START.csv.

    Of several rows in the same second, the last counts.
    """
    start, before, time_s, snr_db = None, None, 0, dict[int, float]()
    for row in csv.DictReader(io.StringIO(text, newline="")):
        now = datetime.strptime(row["Timestamp"], TIME_FORMAT)
        start = start or now
        if row["SNR"] == "-":
            continue
        step_s = 0 if before is None else int((now - before).total_seconds())
        time_s += step_s if 0 <= step_s <= MAX_GAP_S else 1  # a gap, or the phone's clock was set back
        snr_db[time_s], before = float(row["SNR"]), now
    assert start is not None, f"{path} has no rows"
    _, app, mobility, *_ = path.parts
    return Recording(start, f"{app}/{mobility}/{start.strftime(TIME_FORMAT)}", snr_db)
