"""Replays of recordings of a real federation: six SuperNodes with TLS and node keys, whose speeds change.

Each recording is real, so these tests assert order, tiers and intervals, never seconds. docs/explanation/replay.md has
the values.
"""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lesson.flight.advice import choose_deadline_s
from lesson.flight.check import check_recording
from lesson.flight.fit import fit
from lesson.flight.recording import FAILED, read_recording
from lesson.flight.replay import Candidate, replay
from lesson.flight.timeline import is_synchronous

ROOT = Path(__file__).parent.parent.parent
TRIAL = ROOT / "examples" / "fleet-trial"
FEDAVG, LESSON = TRIAL / "recordings" / "fedavg.jsonl", TRIAL / "recordings" / "lesson.jsonl"
NAMES = ["phone-ana", "phone-ben", "pi-garage", "pi-kitchen", "pi-roof", "tablet-lab"]


@pytest.fixture(scope="module")
def trial() -> dict[str, Any]:
    """The names of the script that recorded them."""
    return runpy.run_path(str(TRIAL / "trial.py"))


def test_recordings_are_complete() -> None:
    fedavg, switched = read_recording(FEDAVG), read_recording(LESSON)
    assert sorted(fedavg.names) == sorted(switched.names) == NAMES
    assert len(fedavg.rounds) >= 20
    assert is_synchronous(fedavg)
    assert not is_synchronous(switched), "clients of slow tiers train through several rounds"
    for recording in (fedavg, switched):
        assert not np.any(recording.jobs.outcome == FAILED)


def test_second_half_is_predicted() -> None:
    """Median latencies, the tiers they give, and the mean round length."""
    check = check_recording(read_recording(FEDAVG), num_replicates=50)
    (rounds,) = [one for one in check.predictions if one.what == "round length"]
    assert rounds.is_covered
    assert rounds.error < 0.1
    assert check.num_pairs == 15
    assert check.order >= 11 / 15, "three fast devices are nearly equal, and so are two Pis: four pairs of 15"
    assert check.wrong_tiers == ()


def test_recorded_strategy_is_replayed() -> None:
    """Simulated FedAvg has the round length and the updates per hour of the recording itself."""
    fitted = fit(read_recording(FEDAVG))
    result = replay(fitted, [Candidate("fedavg", 20.0)], num_replicates=50)
    for measure in ("round_s", "updates_per_h"):
        assert result.reality.values[measure] in result.outcomes[0].spread(measure)


@pytest.mark.slow
def test_measured_gain_lies_in_the_predicted_interval(trial: dict[str, Any]) -> None:
    fedavg, switched = read_recording(FEDAVG), read_recording(LESSON)
    gain = trial["compare"](fedavg, switched, choose_deadline_s(fit(fedavg)))
    assert gain.measured in gain.predicted
