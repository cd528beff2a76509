"""Replays of recordings of a real federation: six SuperNodes with TLS and node keys, whose speeds change.

Each recording is real, so these tests assert order, tiers and intervals, never seconds. docs/explanation/replay.md has
the values.
"""

import runpy
from pathlib import Path

import pytest

from lesson.flight.advice import choose_deadline_s
from lesson.flight.check import check_recording
from lesson.flight.fit import fit
from lesson.flight.outcomes import Candidate
from lesson.flight.recording import read_recording
from lesson.flight.replay import replay_fitted

TRIAL = Path(__file__).parents[2] / "examples" / "fleet-trial"
FEDAVG, LESSON = TRIAL / "recordings" / "fedavg.jsonl", TRIAL / "recordings" / "lesson.jsonl"


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
    result = replay_fitted(fitted, [Candidate("fedavg", 20.0)], num_replicates=50)
    for measure in ("round_s", "updates_per_h"):
        assert result.reality.values[measure] in result.outcomes[0].spread(measure)


@pytest.mark.slow
def test_measured_gain_lies_in_the_predicted_interval() -> None:
    compare = runpy.run_path(str(TRIAL / "trial.py"))["compare"]
    fedavg, switched = read_recording(FEDAVG), read_recording(LESSON)
    assert sorted(fedavg.names) == sorted(switched.names)
    gain = compare(fedavg, switched, choose_deadline_s(fit(fedavg)))
    assert gain.measured in gain.predicted
