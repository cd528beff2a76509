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
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from lesson.core.csv_rows import number
from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.fleet.traces import MAX_SNR_DB

FOLDER = "5g"
ARCHIVE = "5G-production-dataset.zip"
CONVERTED = "5g-snr.csv"
MAX_GAP_S = 5
"""Longer intervals without an SNR are cut out; rows are up to 4 s apart."""
MIN_KNOWN_S = 60
"""Recordings with an SNR in fewer seconds are left out."""
TIME_FORMAT = "%Y.%m.%d_%H.%M.%S"


@dataclass(frozen=True)
class Recording:
    """One drive or static test.

    Attributes:
        name: App, mobility and start, such as Netflix/Driving/2019.11.26_07.29.24.
        is_driving: Whether the phone was in a car.
        start: When it began.
        num_rows: Number of rows, about one per second.
        rsrp_dbm: Reference signal received power of every row, in dBm; NaN where it is unknown.
        num_known: Number of rows with an SNR.
        time_s: Seconds since the first of these rows, ascending, without gaps of more than MAX_GAP_S.
        snr_db: SNR from each of these times on, in dB.
    """

    name: str
    is_driving: bool
    start: datetime
    num_rows: int
    rsrp_dbm: list[float]
    num_known: int
    time_s: list[int]
    snr_db: list[float]

    @property
    def is_usable(self) -> bool:
        """Whether the SNR is known for long enough."""
        return len(self.time_s) >= MIN_KNOWN_S


def read_drive_tests(archive: Path) -> list[Recording]:
    """Return all recordings in the archive, in the order of their starts; raise InputError if it is damaged."""
    again = "delete it and run 'lesson data 5g' to download it again"
    try:
        with zipfile.ZipFile(archive) as packed:
            recordings = [_read_recording(name, text) for name, text in _members(packed)]
    except FileNotFoundError:
        raise InputError(f"{archive} does not exist; run 'lesson data 5g' to download it") from None
    except (OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, csv.Error) as error:
        raise InputError(f"{archive} cannot be converted: {error}; {again}") from None
    if not recordings:
        raise InputError(f"{archive} has no recordings; {again}")
    return sorted(recordings, key=lambda one: (one.start, one.name))


def convert(archive: Path, output: Path) -> None:
    """Write the SNR traces of an archive as a CSV file, in the order of their starts.

    Phones report no SNR in 2G and 3G: these parts are cut out, and recordings with hardly anything else are left out.
    Of several rows in the same second, the last counts.
    """
    usable = [one for one in read_drive_tests(archive) if one.is_usable]
    if not usable:
        raise InputError(f"{archive} has no recording with an SNR in at least {MIN_KNOWN_S} seconds")
    lines = ["trace,time_s,snr_db"]
    for one in usable:
        lines += [f"{one.name},{time_s},{snr_db:g}" for time_s, snr_db in zip(one.time_s, one.snr_db, strict=True)]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}; choose another folder with --dir") from None
    write_whole(output, "\n".join([*lines, ""]).encode())


def _members(packed: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield path and text of each recording; the archive also has macOS metadata."""
    infos = [one for one in packed.infolist() if one.filename.endswith(".csv") and "__MACOSX" not in one.filename]
    for info in infos:
        yield PurePosixPath(info.filename), packed.read(info).decode()


def _read_recording(path: PurePosixPath, text: str) -> Recording:
    """Return a recording from the text of its file, whose path is DATASET/APP/MOBILITY/[EPISODE/]B_START.csv."""
    where = repr(str(path)[:80])
    if len(path.parts) < 4 or path.parts[2] not in ("Driving", "Static"):
        raise ValueError(f"{where} must be in a folder of an app and of Driving or Static")
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if missing := {"Timestamp", "SNR", "RSRP"} - set(rows.fieldnames or ()):
        raise ValueError(f"{where} must have a column {min(missing)}")
    start, before, num_rows, num_known, time_s = None, None, 0, 0, 0
    rsrp_dbm, known = list[float](), dict[int, float]()
    for row in rows:
        line = f"{where} line {rows.line_num}"
        try:
            now = datetime.strptime(row["Timestamp"] or "", TIME_FORMAT)
        except ValueError:
            raise ValueError(f"{line}: Timestamp must be YYYY.MM.DD_hh.mm.ss, got {row['Timestamp']!r:.40}") from None
        start, num_rows = start or now, num_rows + 1
        rsrp_dbm.append(number(row["RSRP"] or ""))
        if row["SNR"] == "-":
            continue
        snr_db = number(row["SNR"] or "")
        if not abs(snr_db) <= MAX_SNR_DB:
            raise ValueError(f"{line}: SNR must be from -{MAX_SNR_DB} to {MAX_SNR_DB} or '-', got {row['SNR']!r:.40}")
        num_known += 1
        step_s = 0 if before is None else int((now - before).total_seconds())
        time_s += step_s if 0 <= step_s <= MAX_GAP_S else 1  # a gap, or the phone's clock was set back
        known[time_s], before = snr_db, now
    if start is None:
        raise ValueError(f"{where} has no rows")
    _, app, mobility, *_ = path.parts
    name = f"{app}/{mobility}/{start.strftime(TIME_FORMAT)}"
    driving = mobility == "Driving"
    return Recording(name, driving, start, num_rows, rsrp_dbm, num_known, list(known), list(known.values()))
