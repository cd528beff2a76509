"""Drive tests: a small archive in the format of the real one, and the published statistics of the real one."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from lesson import Settings, draw_fleet
from lesson.fleet.traces import read_snr
from lesson.learn.data import data_dir, drive_tests
from lesson.learn.data.download import get_drive_tests
from lesson.learn.data.drive_tests import convert, read_drive_tests

HEADER = "Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,RSRQ,SNR,CQI,UL_bitrate\n"
PLACES = [data_dir() / drive_tests.ARCHIVE, data_dir() / drive_tests.FOLDER / drive_tests.ARCHIVE]
REAL = next((path for path in PLACES if path.exists()), None)
needs_drive_tests = pytest.mark.skipif(
    REAL is None, reason="the 5G drive tests are not here; 'lesson data 5g' gets them"
)


def row(time: str, snr: str, rsrp: str = "-90") -> str:
    return f"2019.12.16_{time},-8.39,51.88,0,B,11,5G,{rsrp},-15,{snr},15,20\n"


def archive_of(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(f"5G-production-dataset/{name}", text)
            packed.writestr(f"__MACOSX/5G-production-dataset/{name}", b"\x00\x05")
    return path


STATIC = [row("13.00.00", "-"), row("13.00.03", "5"), row("13.00.04", "6"), row("13.00.04", "7"), row("13.00.06", "8")]
"""The SNR is known from 13:00:03 on; there are two rows at 13:00:04 and none at 13:00:05."""
CUT = [row("13.00.30", "-7.5"), row("13.00.31", "9"), row("13.00.10", "1"), row("13.00.11", "2")]
"""24 s without a row, of which 1 s is kept; then the clock is set back."""
FILES = {
    "Netflix/Static/Season3/B_2019.12.16_13.00.00.csv": HEADER + "".join(STATIC + CUT),
    "Download/Driving/B_2019.12.16_12.00.00.csv": HEADER + row("12.00.00", "0", "-70") + row("12.00.01", "30", "-71"),
    "Download/Driving/B_2019.12.16_14.00.00.csv": HEADER + row("14.00.00", "-") + row("14.00.01", "-"),
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(drive_tests, "MIN_KNOWN_S", 2)
    return archive_of(tmp_path / "small.zip", FILES)


def test_recordings_are_read_in_the_order_of_their_starts(small: Path) -> None:
    driving, static, unknown = read_drive_tests(small)
    assert driving.name == "Download/Driving/2019.12.16_12.00.00"
    assert driving.snr_db == {0: 0, 1: 30}
    assert static.name == "Netflix/Static/2019.12.16_13.00.00"
    assert static.snr_db == {0: 5, 1: 7, 3: 8, 4: -7.5, 5: 9, 6: 1, 7: 2}
    assert unknown.snr_db == {}


def test_written_traces_can_be_used_by_a_fleet(small: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "snr.csv"
    convert(small, output)
    assert output.read_text().splitlines()[:4] == [
        "trace,time_s,snr_db",
        "Download/Driving/2019.12.16_12.00.00,0,0",
        "Download/Driving/2019.12.16_12.00.00,1,30",
        "Netflix/Static/2019.12.16_13.00.00,0,5",
    ]
    fleet = draw_fleet(Settings(snr_trace=str(output)), 5)
    mean = (np.log2(2) + np.log2(1001)) / 2  # per Hz, of the first trace
    assert fleet.upload_s[[0, 2, 4]] == pytest.approx(np.full(3, 100e3 / (30e3 * mean)))


@needs_drive_tests
def test_real_archive_has_the_published_statistics(tmp_path: Path) -> None:
    """Raca et al. (2020) report 83 traces of static phones and of phones in cars, 3,142 minutes with a sample per
    second; the archive has 0.1 % more. LTE reports SNR from -20 to about 30 dB. Cars see more variable channels."""
    assert REAL is not None
    recordings = read_drive_tests(REAL)
    assert len({one.name for one in recordings}) == len(recordings) == 83
    spread_db = dict[str, list[float]]()
    for one in recordings:
        spread_db.setdefault(one.name.split("/")[1], []).append(float(np.std([*one.snr_db.values()] or [0.0])))
    assert {mobility: len(each) for mobility, each in spread_db.items()} == {"Driving": 60, "Static": 23}
    assert np.mean(spread_db["Driving"]) > 2 * np.mean(spread_db["Static"])
    snr_db = np.concatenate([[*one.snr_db.values()] for one in recordings])
    assert np.mean((snr_db >= -20) & (snr_db <= 30)) > 0.998
    (tmp_path / drive_tests.ARCHIVE).write_bytes(REAL.read_bytes())
    time_s, snr, offsets = read_snr(get_drive_tests(tmp_path))
    assert (len(offsets) - 1, len(time_s), len(snr)) == (82, 164_742, 164_742)
