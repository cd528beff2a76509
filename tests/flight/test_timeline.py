"""Rounds of recordings, by hand."""

from pathlib import Path
from typing import Any

import pytest

from helpers.flights import flight, job, write_lines
from lesson.flight.fit import fit
from lesson.flight.outcomes import reality_of
from lesson.flight.recording import Recording, read_recording
from lesson.flight.timeline import is_synchronous, round_lengths_s, rounds_of


def read(path: Path, *events: dict[str, Any]) -> Recording:
    return read_recording(write_lines(path, {"flight": 1}, *events))


def test_lengths_of_synchronous_rounds(tmp_path: Path) -> None:
    recording = flight(tmp_path / "f", [[4.0, 9.0], [5.0, 7.0], [3.0, 2.0]], overhead_s=1.0)
    # Round 1 lasts 9 s and 1 s of overhead, round 2 7 s and 1 s; no request ends round 3.
    assert round_lengths_s(recording) == [(0.0, 10.0), (10.0, 8.0)]
    assert is_synchronous(recording)


def test_rounds_without_requests_begin_when_the_one_before_ends(tmp_path: Path) -> None:
    ends: list[dict[str, Any]] = [
        {"event": "round", "t_s": 10.0 * number, "round": number, "merged": []} for number in (1, 2, 3)
    ]
    first, second = job(1, "a", 0.0, 25.0), job(2, "a", 30.0, 55.0, round=4)
    recording = read(tmp_path / "f", first[0], ends[0], ends[1], first[1], ends[2], *second)
    assert round_lengths_s(recording) == [(0.0, 10.0), (10.0, 10.0), (20.0, 10.0)]


def test_second_run_in_the_same_recording_has_rounds_of_its_own(tmp_path: Path) -> None:
    events = [*job(1, "a", 0.0, 4.0), *job(2, "a", 5.0, 9.0, round=2), {"event": "resumed", "t_s": 20.0}]
    events += [*job(3, "a", 21.0, 24.0), *job(4, "a", 26.0, 28.0, round=2)]
    recording = read(tmp_path / "f", *events)
    assert is_synchronous(recording)
    assert [(one.round, one.end_s) for one in rounds_of(recording)] == [(1, 4.0), (2, 9.0), (1, 24.0), (2, 28.0)]
    # The round in which the server was restarted, from 5 s to 21 s, does not count.
    assert round_lengths_s(recording) == [(0.0, 5.0), (21.0, 5.0)]


def test_overlapping_rounds_are_not_synchronous(tmp_path: Path) -> None:
    first, second = job(1, "a", 0.0, 9.0), job(2, "b", 5.0, 14.0, round=2)
    recording = read(tmp_path / "f", first[0], second[0], first[1], second[1])
    assert not is_synchronous(recording)


def test_rounds_before_the_first_request_do_not_count(tmp_path: Path) -> None:
    early = {"event": "round", "t_s": 3.0, "round": 1, "merged": []}
    late = {"event": "round", "t_s": 9.0, "round": 2, "merged": ["a"]}
    reality = reality_of(fit(read(tmp_path / "f", early, *job(1, "a", 3.0, 8.0, round=2), late)))
    assert reality.num_rounds == 1
    assert reality.values["updates_per_h"] == pytest.approx(3600 / 6)
