"""Logs in CSV files become recordings."""

from pathlib import Path

import numpy as np
import pytest

from lesson.core.errors import InputError
from lesson.flight.csv_logs import import_csv
from lesson.flight.recording import ARRIVED, FAILED, OPEN, Recording, read_recording


def imported(folder: Path, text: str) -> Recording:
    (folder / "log.csv").write_text(text)
    import_csv(folder / "log.csv", folder / "flight.jsonl")
    return read_recording(folder / "flight.jsonl")


def test_every_column(tmp_path: Path) -> None:
    """The first request is at 100.1 s, which becomes 0."""
    found = imported(
        tmp_path,
        "client,asked_s,arrived_s,round,compute_s,downloaded_s,trained_s,num_samples,energy_j,reason,failed_s\n"
        "pi,100.1,103.3,1,1.5,100.6,102.2,60,2.25,,\n"
        "phone,100.2,,1,,,,,,battery empty,107.7\n",
    )
    jobs = found.jobs
    assert (found.names, jobs.client.tolist()) == (("phone", "pi"), [1, 0])
    assert (jobs.asked_s.tolist(), jobs.ended_s.tolist()) == ([0.0, 0.1], [3.2, 7.6])
    assert (jobs.outcome.tolist(), jobs.reason.tolist()) == ([ARRIVED, FAILED], ["", "battery empty"])
    assert jobs.round.tolist() == [1, 1]
    assert (jobs.compute_s[0], jobs.num_samples[0], jobs.energy_j[0]) == (1.5, 60, 2.25)
    assert np.isnan([jobs.compute_s[1], jobs.energy_j[1]]).all()
    assert (found.header.source, found.header.began) == ("imported from log.csv", "")


@pytest.mark.parametrize(
    ("asked", "arrived", "began", "latency_s"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:07.250Z", "2026-03-01T12:00:00+00:00", 7.25),
        ("2026-03-29T01:59:59", "2026-03-29T03:00:00", "", 3601.0),  # no time zone, so no summer time
        ("1790000000.000001", "1790000001.5", "", 1.499999),
    ],
)
def test_times_are_seconds_or_dates(tmp_path: Path, asked: str, arrived: str, began: str, latency_s: float) -> None:
    found = imported(tmp_path, f"client,asked_s,arrived_s\na,{asked},{arrived}\n")
    assert found.header.began == began
    assert found.jobs.asked_s.tolist() == [0.0]
    assert found.jobs.latency_s.tolist() == [latency_s]


def test_jobs_without_a_reply(tmp_path: Path) -> None:
    """a: asked again at 20 s. b: a reason, so it failed at the end, 35 s. c: still open. d: trained after the next."""
    header = "client,asked_s,arrived_s,reason,trained_s,compute_s"
    rows = ["a,0,,,,30", "a,20,35,,,", "b,1,,lost,,3", "c,2,,,3,", "d,4,,crashed,9,", "d,6,7,,,"]
    found = imported(tmp_path, "\n".join([header, *rows]))
    jobs = found.jobs
    assert "".join(found.names[client] for client in jobs.client) == "abcdda"
    assert jobs.asked_s.tolist() == [0.0, 1.0, 2.0, 4.0, 6.0, 20.0]
    np.testing.assert_array_equal(jobs.ended_s, [20.0, 35.0, np.nan, 9.0, 7.0, 35.0])
    assert jobs.outcome.tolist() == [FAILED, FAILED, OPEN, FAILED, ARRIVED, ARRIVED]
    assert jobs.reason.tolist() == ["no reply", "lost", "", "crashed", "", ""]
    assert np.isnan(jobs.compute_s[0]), "the 30 s do not fit into 20 s"
    assert jobs.compute_s[1] == 3.0


HEAD = "client,asked_s,arrived_s,compute_s,trained_s,num_samples\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("client,asked_s\na,1\n", "line 1"),
        (HEAD, "no rows"),
        (HEAD + "a,1\n", "line 2"),
        (HEAD + "a,,2,,,\n", "line 2: asked_s"),
        (HEAD + "a,1,2,,,\nb,2026-01-01T00:00:00Z,,,,\n", "line 3: asked_s"),
        (HEAD + "a,1,inf,,,\n", "line 2: arrived_s"),
        (HEAD + "a,5,3,,,\n", "line 2: arrived_s"),
        (HEAD + "a,1,5,,6,\n", "line 2: arrived_s"),
        (HEAD + "a,1,5,9,,\n", "line 2: compute_s"),
        (HEAD + "a,1,5,,,0\n", "line 2: num_samples"),
    ],
)
def test_invalid_logs_give_one_line_and_no_file(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(InputError) as raised:
        imported(tmp_path, text)
    assert names in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
