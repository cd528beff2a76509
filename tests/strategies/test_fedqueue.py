"""FedQueue, written out by hand, in windows of 20 s. Half of a latency is computing, the other half the queue time."""

import math
from pathlib import Path
from typing import Any

import pytest

from helpers.fleets import make_fleet, traced
from helpers.strategies import follow
from lesson import FedQueue, Fleet, Settings


@pytest.fixture
def fleet() -> Fleet:
    """Queue times and steps of 4, 10 and 20 s: 4, 1 and 0 steps fit, so they take 4, 1 and 1."""
    return make_fleet([8.0, 20.0, 40.0], weight=[1, 2, 5])


@pytest.mark.parametrize(
    ("options", "steps", "lr_scale"),
    [
        ({}, [4, 1, 1], [0.25, 1, 1]),
        ({"scale_lr": False}, [4, 1, 1], 1.0),
        ({"min_steps": 2}, [4, 2, 2], [0.5, 1, 1]),
        ({"margin_s": 5.0}, [2, 1, 1], [0.5, 1, 1]),  # 11 s for steps of 4 s
    ],
)
def test_local_work_fits_into_the_window(
    fleet: Fleet, options: dict[str, Any], steps: list[int], lr_scale: Any
) -> None:
    (plan,) = follow(FedQueue(20.0, **options), fleet, 1).plans
    assert plan.local_steps is not None
    assert plan.local_steps.tolist() == steps
    assert plan.lr_scale == pytest.approx(lr_scale)


def test_step_size_depends_on_all_connected_clients() -> None:
    """Queue times and steps of 4, 2 and 20 s: 4, 9 and 1 steps. Client 2, which takes the fewest, trains for 40 s, so
    it does not start in round 2."""
    first, second = follow(FedQueue(20.0), make_fleet([8.0, 4.0, 40.0]), 2).plans
    assert (first.starts.tolist(), second.starts.tolist()) == ([0, 1, 2], [0, 1])
    assert first.lr_scale == pytest.approx([1 / 4, 1 / 9, 1])
    assert second.lr_scale == pytest.approx([1 / 4, 1 / 9])


def test_trace(fleet: Fleet) -> None:
    """0 and 1 arrive 20 s after each start, 2 after 40 s. Round 1 closes after 23 s without 2. Round 2 has all by 43 s;
    client 2, from version 0, counts 5 / (1 + 0.5) instead of 5. The third one waits 23 s again."""
    run = follow(FedQueue(20.0), fleet, 3)
    assert run.trace == [
        (23.0, [0, 1, 2], [0, 1], [0, 0]),
        (43.0, [0, 1], [2, 0, 1], [1, 0, 0]),
        (66.0, [0, 1, 2], [0, 1], [0, 0]),
    ]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[0].weights == pytest.approx([1 / 3, 2 / 3])
    assert run.merges[1].weights == pytest.approx([10 / 19, 3 / 19, 6 / 19])
    exponential = follow(FedQueue(20.0, staleness="exponential", beta=1.0), fleet, 2)
    total = 5 / math.e + 3
    assert exponential.merges[1].weights == pytest.approx([5 / math.e / total, 1 / total, 2 / total])


@pytest.mark.parametrize(
    ("cutoff", "second", "third", "weights"),
    [(0.1, [0], ([0], [1, 0]), [0.4, 0.6]), (0.125, [0, 1], ([0, 1], [0, 1]), [0.5, 0.5])],
)
def test_delayed_update_is_carried_over(
    cutoff: float, second: list[int], third: Any, weights: list[float], tmp_path: Path
) -> None:
    """Both take 20 s, but the second upload of client 1 takes 2.5 s more: with a cutoff of 2 s, its update waits for
    round 3, in which client 0 alone starts, and has the weight 2/3 to 1. With a cutoff of 2.5 s, it is admitted."""
    rows = "client,round,compute_s,upload_s 0,1,10,10 1,1,10,10 1,2,10,12.5 1,3,10,10 1,4,10,10"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows), estimate="last")
    run = follow(FedQueue(20.0, cutoff=cutoff), make_fleet([20.0, 20.0]), 4, settings=settings)
    assert run.rounds == [
        (20.0, [0, 1], [0, 1]),
        (42.5, [0, 1], second),
        (62.5, *third),
        (82.5, [0, 1], [0, 1]),
    ]
    assert run.merges[2].weights == pytest.approx(weights)


def test_delayed_updates_are_aggregated_if_there_are_no_others(tmp_path: Path) -> None:
    rows = "client,round,compute_s,upload_s 0,1,10,10 0,2,10,12.5"
    settings = Settings(trace=traced(tmp_path / "trace.csv", rows))
    run = follow(FedQueue(20.0, cutoff=0.1), make_fleet([20.0]), 2, settings=settings)
    assert run.rounds == [(20.0, [0], [0]), (42.5, [0], [0])]
