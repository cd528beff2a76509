"""Logs in CSV files become recordings with exactly their times, and invalid ones give errors of one line."""

import json
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
    """The first request is at 100.1 s, which becomes 0. Floats would make 103.3 − 100.1 = 3.2000000000000028."""
    found = imported(
        tmp_path,
        "client,asked_s,arrived_s,round,compute_s,downloaded_s,trained_s,num_samples,energy_j,reason,failed_s\n"
        "pi,100.1,103.3,1,1.5,100.6,102.2,60,2.25,,\n"
        "phone,100.2,,1,,,,,,battery empty,107.7\n",
    )
    jobs = found.jobs
    assert found.names == ("phone", "pi")
    assert jobs.client.tolist() == [1, 0]
    assert jobs.asked_s.tolist() == [0.0, 0.1]
    assert jobs.ended_s.tolist() == [3.2, 7.6]
    assert jobs.outcome.tolist() == [ARRIVED, FAILED]
    assert jobs.round.tolist() == [1, 1]
    assert jobs.reason == ("", "battery empty")
    assert (jobs.compute_s[0], jobs.download_s[0], jobs.num_samples[0], jobs.energy_j[0]) == (1.5, 0.5, 60, 2.25)
    assert np.isnan([jobs.compute_s[1], jobs.download_s[1], jobs.energy_j[1]]).all()
    assert (found.header.source, found.header.began) == ("imported from log.csv", "")
    assert (found.rounds, found.intervals) == ((), ())
    arrived = json.loads((tmp_path / "flight.jsonl").read_text().splitlines()[3])
    assert (arrived["downloaded_s"], arrived["trained_s"]) == (0.5, 2.1)


def test_rows_and_columns_may_be_in_any_order(tmp_path: Path) -> None:
    text = "arrived_s,client,asked_s\n30,a,20\n14,b,10\n12,a,10\n"
    found = imported(tmp_path, text)
    assert [found.names[client] for client in found.jobs.client] == ["b", "a", "a"]
    assert found.jobs.asked_s.tolist() == [0.0, 0.0, 10.0]
    assert found.jobs.ended_s.tolist() == [4.0, 2.0, 20.0]


@pytest.mark.parametrize(
    ("asked", "arrived", "began", "latency_s"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:07.250Z", "2026-03-01T12:00:00+00:00", 7.25),
        ("2026-03-01T12:00:00+02:00", "2026-03-01 10:00:01+00:00", "2026-03-01T10:00:00+00:00", 1.0),
        ("2026-03-29T01:59:59", "2026-03-29T03:00:00", "", 3601.0),  # no time zone, so no summer time
        ("1790000000.000001", "1790000001.5", "", 1.499999),
        ("-5", "1e1", "", 15.0),
    ],
)
def test_times_are_seconds_or_dates(tmp_path: Path, asked: str, arrived: str, began: str, latency_s: float) -> None:
    found = imported(tmp_path, f"client,asked_s,arrived_s\na,{asked},{arrived}\n")
    assert found.header.began == began
    assert found.jobs.asked_s.tolist() == [0.0]
    assert found.jobs.latency_s.tolist() == [latency_s]


def test_jobs_without_a_reply(tmp_path: Path) -> None:
    """a: asked again at 20 s. b: a reason, so it failed at the end, 35 s. c: still open. d: trained after the next."""
    rows = [
        "client,asked_s,arrived_s,reason,trained_s,compute_s",
        "a,0,,,,30",
        "a,20,35,,,",
        "b,1,,lost,,3",
        "c,2,,,3,",
        "d,4,,crashed,9,",
        "d,6,7,,,",
    ]
    found = imported(tmp_path, "\n".join(rows))
    jobs = found.jobs
    told = [
        (found.names[client], asked_s, outcome, reason)
        for client, asked_s, outcome, reason in zip(
            jobs.client.tolist(), jobs.asked_s.tolist(), jobs.outcome.tolist(), jobs.reason, strict=True
        )
    ]
    assert told == [
        ("a", 0.0, FAILED, "no reply"),
        ("b", 1.0, FAILED, "lost"),
        ("c", 2.0, OPEN, ""),
        ("d", 4.0, FAILED, "crashed"),
        ("d", 6.0, ARRIVED, ""),
        ("a", 20.0, ARRIVED, ""),
    ]
    np.testing.assert_array_equal(jobs.ended_s, [20.0, 35.0, np.nan, 9.0, 7.0, 35.0])
    assert np.isnan(jobs.compute_s[0]), "the 30 s do not fit into 20 s"
    assert jobs.compute_s[1] == 3.0


def test_a_recording_written_again_as_a_log_is_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    asked_s = np.sort(rng.uniform(0, 1000, 200).round(6))
    took_s = rng.exponential(10, 200).round(6)
    rows = [
        f"client {number % 7},{asked!r},{(asked + took).round(6)!r},{number // 20},{1 + number}"
        for number, (asked, took) in enumerate(zip(asked_s.tolist(), took_s, strict=True))
    ]
    order = rng.permutation(200)
    head = "client,asked_s,arrived_s,round,num_samples\n"
    text = head + "".join(f"{rows[row]}\n" for row in order).replace("np.float64(", "").replace(")", "")
    first = imported(tmp_path, text).jobs
    again = head + "".join(
        f"client {row[0]},{row[1]!r},{row[2]!r},{row[3]},{row[4]}\n"
        for row in zip(
            first.client.tolist(),
            first.asked_s.tolist(),
            first.ended_s.tolist(),
            first.round.tolist(),
            first.num_samples.tolist(),
            strict=True,
        )
    )
    (tmp_path / "again").mkdir()
    second = imported(tmp_path / "again", again).jobs
    assert len(first) == 200
    for name in ("client", "asked_s", "ended_s", "round", "num_samples", "outcome"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert first.num_samples.tolist() == list(range(1, 201))


def test_the_summary(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("client,asked_s,arrived_s\na,0,3\nb,0,\nb,2,\n")
    told = import_csv(tmp_path / "log.csv", tmp_path / "f.jsonl")
    assert told == "3 jobs of 2 clients in 3 s: 1 arrived, 1 failed, 1 open"


HEAD = "client,asked_s,arrived_s,round,compute_s,downloaded_s,trained_s,num_samples,energy_j,reason,failed_s\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: the header must be client,asked_s,arrived_s, optionally with round,compute_s,downloaded_s"),
        ("client,asked_s\na,1\n", "line 1: the header must be client,asked_s,arrived_s"),
        ("client,asked_s,arrived_s\n", "has no rows; add some below the header"),
        ("client,asked_s,arrived_s\na,1\n", "line 2: a row must have 3 values"),
        ("client,asked_s,arrived_s\na,,2\n", "line 2: asked_s must be given, got ''"),
        ("client,asked_s,arrived_s\n,1,2\n", "line 2: client must be a name of at most 200 printable characters"),
        ("client,asked_s,arrived_s\na\x07,1,2\n", "line 2: client must be a name"),
        (
            "client,asked_s,arrived_s\na,soon,2\n",
            "line 2: asked_s must be a number of seconds or an ISO 8601 date and time, got 'soon'",
        ),
        (
            "client,asked_s,arrived_s\na,1,2\nb,2026-01-01T00:00:00Z,\n",
            "line 3: asked_s must be a number of seconds, as on line 2, got '2026-01-01T00:00:00Z'",
        ),
        (
            "client,asked_s,arrived_s\na,2026-01-01T00:00:00Z,2026-01-01T00:00:01\n",
            "line 2: arrived_s must be an ISO 8601 date and time with a time zone, as on line 2, got '2026-01-01T",
        ),
        ("client,asked_s,arrived_s\na,nan,2\n", "line 2: asked_s must be a number of seconds or an ISO 8601"),
        ("client,asked_s,arrived_s\na,1,inf\n", "line 2: arrived_s must be a number of seconds, as on line 2"),
        ("client,asked_s,arrived_s\na,1_0,20\n", "line 2: asked_s must be a number of seconds or"),
        ("client,asked_s,arrived_s\na,1e9999999,2\n", "line 2: asked_s must be at most 1e+12 s from 0"),
        ("client,asked_s,arrived_s\na,1790000000000,2\n", "line 2: asked_s must be at most 1e+12 s from 0"),
        ("client,asked_s,arrived_s\na,0,1e11\n", "must span at most 1e+10 s, got 1e+11 s"),
        ("client,asked_s,arrived_s\na,5,3\n", "line 2: arrived_s must not be before asked_s, got '3'"),
        (HEAD + "a,1,5,,,3,2,,,,\n", "line 2: trained_s must not be before downloaded_s, got '2'"),
        (HEAD + "a,1,5,,,,6,,,,\n", "line 2: arrived_s must not be before trained_s, got '5'"),
        (HEAD + "a,1,5,,,,,,,,6\n", "line 2: failed_s must be empty if arrived_s is given, got '6'"),
        (HEAD + "a,1,5,,9,,,,,,\n", "line 2: compute_s must not exceed the 4 s of the job, got '9'"),
        (HEAD + "a,1,5,,-1,,,,,,\n", "line 2: compute_s must be a number from 0 to 1e+10, got '-1'"),
        (HEAD + "a,1,5,1.5,,,,,,,\n", "line 2: round must be a whole number from 0 to 1e+15, got '1.5'"),
        (HEAD + "a,1,5,,,,,0,,,\n", "line 2: num_samples must be a whole number from 1 to"),
        (HEAD + "a,1,5,,,,,9e9999999,,,\n", "line 2: num_samples must be a whole number from 1 to"),
        (HEAD + "a,1,5,,,,,,much,,\n", "line 2: energy_j must be a number from 0 to 1e+15, got 'much'"),
        (HEAD + f"a,1,,,,,,,,{'x' * 1001},\n", "line 2: reason must have at most 1000 characters"),
    ],
)
def test_invalid_logs_give_one_line_and_no_file(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        imported(tmp_path, text)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_existing_files_are_not_replaced(tmp_path: Path) -> None:
    text = "client,asked_s,arrived_s\na,1,2\n"
    imported(tmp_path, text)
    with pytest.raises(InputError, match=r"flight.jsonl exists; remove it or choose another output file"):
        imported(tmp_path, text)
    with pytest.raises(InputError, match=r"out must end in .jsonl, got"):
        import_csv(tmp_path / "log.csv", tmp_path / "log.txt")
