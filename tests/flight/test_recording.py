"""Recordings are read exactly, and damaged ones give errors of one line."""

from pathlib import Path

import numpy as np
import pytest

from helpers.flights import changes, job, write_lines
from lesson.core.errors import InputError
from lesson.flight.recording import ARRIVED, FAILED, OPEN, RESTARTED, read_recording
from lesson.flight.writer import FlightWriter

HEADER = {"flight": 1, "strategy": "fedavg"}
ASKED = job(1, "a", 1.0, 5.0)[0]
ARRIVED_LINE = {"event": "arrived", "t_s": 5.0, "client": "a", "job": "1", "num_samples": 7, "compute_s": 3.0}


def test_jobs_rounds_and_connections(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "flight.jsonl",
        HEADER | {"deadline_s": 30.0, "field of a newer version": 1},
        *changes(("connected", 0.0, "b"), ("connected", 0.5, "a")),
        *(ASKED | {"client": client, "job": job} for client, job in (("a", "1"), ("b", "2"), ("c", "3"))),
        ASKED | {"job": "e", "kind": "evaluate"},
        ARRIVED_LINE | {"downloaded_s": 1.5, "trained_s": 4.5, "energy_j": 2.5},
        {"event": "failed", "t_s": 6.0, "client": "b", "job": "2", "reason": "client error"},
        *changes(("left", 7.0, "b")),
        {"event": "round", "t_s": 8.0, "round": 1, "merged": ["a"], "staleness": [0]},
    )
    recording = read_recording(path)
    jobs = recording.jobs
    assert (recording.header.strategy, recording.header.deadline_s) == ("fedavg", 30.0)
    assert (recording.names, jobs.client.tolist()) == (("a", "b", "c"), [0, 1, 2])
    assert jobs.outcome.tolist() == [ARRIVED, FAILED, OPEN]
    np.testing.assert_array_equal(jobs.latency_s, [4.0, 5.0, np.nan])
    assert (jobs.compute_s[0], jobs.energy_j[0]) == (3.0, 2.5)
    assert jobs.num_samples.tolist() == [7, 0, 0]
    assert jobs.reason[1] == "client error"
    assert recording.intervals == ((0, 0.5, np.inf), (1, 0.0, 7.0))
    assert [(one.round, one.end_s, one.merged, one.staleness) for one in recording.rounds] == [(1, 8.0, (0,), (0,))]
    assert (recording.begin_s, recording.end_s) == (1.0, 8.0)


def test_compute_time_is_derived_from_times_if_it_is_not_given(tmp_path: Path) -> None:
    arrived = {"event": "arrived", "t_s": 5.0, "job": "1", "downloaded_s": 1.5, "trained_s": 4.0}
    jobs = read_recording(write_lines(tmp_path / "f", HEADER, ASKED, arrived)).jobs
    assert jobs.compute_s[0] == 2.5


def test_restart_of_the_server_ends_jobs_and_connections(tmp_path: Path) -> None:
    lines = [HEADER, *changes(("connected", 0.0, "a")), ASKED, {"event": "resumed", "t_s": 9.0}]
    recording = read_recording(write_lines(tmp_path / "f", *lines))
    assert (recording.jobs.outcome.tolist(), recording.jobs.reason.tolist()) == ([FAILED], [RESTARTED])
    assert recording.intervals == ((0, 0.0, 9.0),)
    assert recording.resumed_s == (9.0,)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "line 1: a recording must start with"),
        ([{"flight": 2}], "format 2"),
        ([{"flight": 1, "strategy": "\u001b[2J"}], "strategy"),
        ([HEADER], "no training job"),
        ([HEADER, '{"event": "asked", "t_s"'], "line 2 is not JSON"),
        ([HEADER, "[" * 100_000], "line 2 is not JSON"),
        ([HEADER, "[1, 2]"], "line 2: an event"),
        ([HEADER, HEADER | {"x": "x" * (1 << 20)}], "line 2: a line"),
        ([HEADER, ASKED | {"event": "exploded"}], "line 2: event"),
        ([HEADER, '{"event": "left", "t_s": NaN}'], "line 2: t_s"),
        ([HEADER, ASKED | {"client": "a\u0007"}], "line 2: client"),
        ([HEADER, {"event": "left", "t_s": 1.0}], "line 2: client"),
        ([HEADER, {"event": "left", "t_s": 1.0, "client": "a"}], "'connected'"),
        ([HEADER, ASKED, ASKED], "line 3: job '1'"),
        ([HEADER, ARRIVED_LINE], "line 2: job '1'"),
        ([HEADER, ASKED, ARRIVED_LINE, ARRIVED_LINE], "line 4: job '1'"),
        ([HEADER, ASKED, ARRIVED_LINE | {"client": "b"}], "must be 'a'"),
        ([HEADER, ASKED, ARRIVED_LINE | {"t_s": 0.5}], "line 3: t_s"),
        ([HEADER, ASKED, ARRIVED_LINE | {"compute_s": 9.0}], "compute_s"),
        ([HEADER, ASKED, ARRIVED_LINE | {"downloaded_s": 0.5}], "in order"),
        ([HEADER, ASKED, {"event": "round", "t_s": 2.0, "merged": ["a"], "staleness": []}], "line 3: staleness"),
    ],
    ids=range(21),
)
def test_hostile_and_damaged_recordings_give_one_line(tmp_path: Path, lines: list[object], problem: str) -> None:
    with pytest.raises(InputError) as raised:
        read_recording(write_lines(tmp_path / "flight.jsonl", *lines))
    assert problem in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_truncated_binary_and_missing_files(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "flight.jsonl", HEADER, ASKED)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="line 2 is incomplete"):
        read_recording(path)
    path.write_bytes(b'{"flight": 1}\n\xff\xfe\n')
    with pytest.raises(InputError, match="UTF-8"):
        read_recording(path)
    with pytest.raises(InputError, match="does not exist"):
        read_recording(tmp_path / "missing")


def test_written_recording_can_be_read_back(tmp_path: Path) -> None:
    now, path = [100.0], tmp_path / "flight.jsonl"
    writer = FlightWriter(path, strategy="lesson", deadline_s=20.0, source="test", clock=lambda: now[0])
    named = {"client": "käfer", "job": writer.next_job()}
    now[0] = 100.0004
    assert writer.write("asked", round=1, **named) == 0.0, "to the millisecond"
    now[0] = 104.0
    writer.write("arrived", num_samples=3, **named)
    assert writer.write("round", 2.0, round=1, merged=["käfer"]) == 4.0, "it cannot come before the arrival"
    recording = read_recording(path)
    assert (recording.names, recording.jobs.latency_s.tolist()) == (("käfer",), [4.0])
    assert recording.rounds[0].end_s == 4.0
    assert recording.header.began.endswith("+00:00")


def test_recording_is_continued_after_a_restart(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "flight.jsonl", HEADER, ASKED)
    with path.open("a") as file:
        file.write('{"event": "arr')  # the process was killed
    now = [50.0]
    writer = FlightWriter(path, clock=lambda: now[0])
    now[0] = 52.0
    writer.write("asked", client="a", job=writer.next_job())
    recording = read_recording(path)
    assert recording.jobs.asked_s.tolist() == [1.0, 3.0]
    assert recording.jobs.outcome.tolist() == [FAILED, OPEN]
    assert recording.header.strategy == "fedavg"


def test_recording_with_a_truncated_header_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    path.write_text('{"flight": 1, "beg')
    FlightWriter(path, strategy="fedavg").write("asked", client="a", job="1")
    assert read_recording(path).header.strategy == "fedavg"


def test_writer_does_not_touch_other_files(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nwithout a line break at the end")
    with pytest.raises(InputError, match="a recording must start with"):
        FlightWriter(path)
    assert path.read_text() == "my notes\nwithout a line break at the end"
