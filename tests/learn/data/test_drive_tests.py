"""Drive tests: a small archive in the format of the real one, and the published statistics of the real one."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lesson import InputError, Settings, draw_fleet
from lesson.fleet.traces import read_snr
from lesson.learn.data import drive_tests
from lesson.learn.data.dataset import data_dir
from lesson.learn.data.download import DRIVE_TESTS, get_drive_tests
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
    assert (driving.is_driving, static.is_driving) == (True, False)
    assert (driving.time_s, driving.snr_db, driving.rsrp_dbm) == ([0, 1], [0, 30], [-70, -71])
    assert static.name == "Netflix/Static/2019.12.16_13.00.00"
    assert (static.num_rows, static.num_known) == (9, 8)
    assert static.time_s == [0, 1, 3, 4, 5, 6, 7]
    assert static.snr_db == [5, 7, 8, -7.5, 9, 1, 2]
    assert [one.is_usable for one in (driving, static, unknown)] == [True, True, False]


def test_the_traces_that_are_written_can_be_used_by_a_fleet(small: Path, tmp_path: Path) -> None:
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
    before = output.read_bytes()
    convert(small, output)
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no recordings; delete it and run 'lesson data 5g' to download it again"),
        ({"Netflix/Static/B.csv": ""}, "'5G-production-dataset/Netflix/Static/B.csv' must have a column RSRP"),
        ({"Netflix/Static/B.csv": HEADER}, "B.csv' has no rows"),
        ({"Netflix/Flying/B.csv": HEADER}, "must be in a folder of an app and of Driving or Static"),
        ({"B.csv": HEADER}, "must be in a folder of an app and of Driving or Static"),
        (
            {"A/Static/B.csv": HEADER + row("25.00.00", "1")},
            "B.csv' line 2: Timestamp must be YYYY.MM.DD_hh.mm.ss, got '2019.12.16_25.00.00'",
        ),
        (
            {"A/Static/B.csv": HEADER + row("12.00.00", "1") + row("12.00.01", "inf")},
            "B.csv' line 3: SNR must be from -200 to 200 or '-', got 'inf'",
        ),
        ({"A/Static/B.csv": HEADER + row("12.00.00", "nan")}, "SNR must be from -200 to 200 or '-', got 'nan'"),
        ({"A/Static/B.csv": HEADER + "2019.12.16_12.00.00\n"}, "SNR must be from -200 to 200 or '-', got None"),
        ({"A/Static/B.csv": HEADER + '"2019'}, "cannot be converted: unexpected end of data"),
        ({"A/Static/B.csv": HEADER + row("12.00.00", "-")}, "has no recording with an SNR in at least 60 seconds"),
    ],
)
def test_damaged_archives_are_one_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    archive = archive_of(tmp_path / "odd.zip", files)
    with pytest.raises(InputError) as error:
        convert(archive, tmp_path / "snr.csv")
    assert message in str(error.value)
    assert str(error.value).startswith(str(archive))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "snr.csv").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"trace,time_s,snr_db\n"])
def test_a_file_that_is_no_archive_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"odd\.zip cannot be converted: File is not a zip file; delete it and run"):
        read_drive_tests(tmp_path / "odd.zip")
    with pytest.raises(InputError, match=r"none\.zip does not exist; run 'lesson data 5g' to download it"):
        read_drive_tests(tmp_path / "none.zip")


def test_archives_that_unpack_to_too_much_are_rejected(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive_tests, "MAX_MEMBER_BYTES", 300)
    with pytest.raises(
        InputError, match=r"cannot be converted: .*B_2019\.12\.16_13\.00\.00\.csv' has more than 300 by"
    ):
        read_drive_tests(small)
    monkeypatch.setattr(drive_tests, "MAX_MEMBERS", 2)
    with pytest.raises(InputError, match="it must have at most 2 recordings, got 3"):
        read_drive_tests(small)


def test_a_damaged_member_is_one_line(small: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(small.read_bytes())) as packed:
        place = packed.infolist()[0].header_offset + 120
    content = bytearray(small.read_bytes())
    content[place] ^= 0xFF
    small.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be converted: .*delete it and run 'lesson data 5g'") as error:
        read_drive_tests(small)
    assert "\n" not in str(error.value)


def concatenated(parts: Sequence[list[float]]) -> np.ndarray:
    return np.concatenate([np.array(part) for part in parts])


@needs_drive_tests
def test_the_real_archive_has_the_published_statistics() -> None:
    """Raca et al. (2020), as quoted by others, report 83 traces of static phones and of phones in cars, 3,142 minutes
    with a sample per second. The archive has 188,711 rows, that is, 3,145 minutes: 0.1 % more."""
    assert REAL is not None
    recordings = read_drive_tests(REAL)
    assert len({one.name for one in recordings}) == len(recordings) == 83
    assert sum(one.num_rows for one in recordings) == 188_711
    assert sum(one.num_rows for one in recordings) / 60 == pytest.approx(3142, rel=0.002)
    assert [sum(one.is_driving is car for one in recordings) for car in (True, False)] == [60, 23]
    assert {one.name.split("/")[0] for one in recordings} == {"Amazon_Prime", "Download", "Netflix"}
    assert [one.name for one in recordings if not one.is_usable] == ["Download/Driving/2019.12.16_11.49.59"]
    assert not any(np.isfinite(one.snr_db).any() for one in recordings if not one.is_usable)


@needs_drive_tests
def test_the_real_signals_are_those_of_a_cellular_network() -> None:
    """LTE reports RSRP from -140 to -44 dBm and SNR from -20 to about 30 dB; -200 dBm means no signal. Cars see more
    variable channels than static phones: the standard deviation within a trace is more than twice as large."""
    assert REAL is not None
    recordings = read_drive_tests(REAL)
    rsrp_dbm = concatenated([one.rsrp_dbm for one in recordings])
    assert np.mean((rsrp_dbm >= -140) & (rsrp_dbm <= -44)) > 0.999
    assert np.median(rsrp_dbm) == -93
    usable = [one for one in recordings if one.is_usable]
    snr_db = concatenated([one.snr_db for one in usable])
    assert (np.median(snr_db), snr_db.min(), snr_db.max()) == (2.0, -30.0, 35.0)
    assert snr_db.mean() == pytest.approx(3.196, abs=0.001)
    assert np.mean((snr_db >= -20) & (snr_db <= 30)) > 0.998
    spread_db = {car: np.mean([np.std(one.snr_db) for one in usable if one.is_driving is car]) for car in (True, False)}
    assert spread_db[True] > 2 * spread_db[False]


@needs_drive_tests
def test_the_real_archive_is_converted(tmp_path: Path) -> None:
    """A copy in the folder of data sets is used, without a network."""
    assert REAL is not None
    (tmp_path / drive_tests.ARCHIVE).write_bytes(REAL.read_bytes())
    output = get_drive_tests(tmp_path)
    assert DRIVE_TESTS.num_bytes == REAL.stat().st_size
    time_s, snr_db, offsets = read_snr(output)
    assert len(offsets) - 1 == 82
    assert len(time_s) == len(snr_db) == 164_742
    seconds = time_s[offsets[1:] - 1]
    assert seconds.min() > 150
    assert seconds.max() < 7800
