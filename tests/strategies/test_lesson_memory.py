"""Five rounds by hand. Deadline 10 s; client 0 takes 5 s (tier 1), 1 and 2 take 16 and 17 s (tier 2), 3 takes 26 s
(tier 3). Their data are 1, 2, 4 and 3 of 10, so the tiers count for 0.1, 0.6 and 0.3.
"""

from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import InputError, LessonMemory, Simulation, simulate
from lesson.strategies import make_strategy
from lesson.strategies.base import Merge, RoundPlan


def watched(strategy: LessonMemory) -> tuple[list[RoundPlan], list[Merge]]:
    """What a strategy decides from now on."""
    plans: list[RoundPlan] = []
    merges: list[Merge] = []
    open_round, merge = strategy.open_round, strategy.merge
    strategy.open_round = lambda view, rng: plans.append(open_round(view, rng)) or plans[-1]  # type: ignore[method-assign,func-returns-value]
    strategy.merge = lambda view, arrived: merges.append(merge(view, arrived)) or merges[-1]  # type: ignore[method-assign,func-returns-value]
    return plans, merges


def shown(merge: Merge) -> tuple[list[str], list[float], dict[str, float]]:
    assert merge.groups is not None
    assert merge.of == "updates"
    return list(merge.groups.names), merge.weights.tolist(), dict(merge.groups.weights)


def test_trace() -> None:
    strategy = LessonMemory(deadline_s=10.0)
    plans, merges = watched(strategy)
    records = list(simulate(strategy, make_fleet([5.0, 16.0, 17.0, 26.0], weight=[1, 2, 4, 3]), rounds=5))
    assert [(record.end_s, record.started.tolist(), record.merged.tolist()) for record in records] == [
        (10.0, [0, 1, 2, 3], [0]),
        (20.0, [0], [0, 1, 2]),
        (30.0, [0, 1, 2], [0, 3]),
        (40.0, [0, 3], [0, 1, 2]),
        (50.0, [0, 1, 2], [0]),
    ]
    everything = {"1": 0.1, "2": 0.6, "3": 0.3}
    third = pytest.approx(1 / 3)
    assert [shown(merge) for merge in merges] == [
        (["1"], [1.0], {"1": 0.1}),
        (["1", "2", "2"], [1.0, third, pytest.approx(2 / 3)], {"1": 0.1, "2": 0.6}),
        (["1", "3"], [1.0, 1.0], everything),
        (["1", "2", "2"], [1.0, third, pytest.approx(2 / 3)], everything),
        (["1"], [1.0], everything),
    ]
    assert [plan.lr_scale for plan in plans] == [1.0] * 5


def test_memory_changes_the_model_even_if_no_update_is_due() -> None:
    """Tiers 2 and 3 alone: nothing in round 1, nobody due in round 5, but both remembered."""
    strategy = LessonMemory(deadline_s=10.0)
    merges = watched(strategy)[1]
    records = list(simulate(strategy, make_fleet([15.0, 26.0]), rounds=6))
    assert [record.merged.tolist() for record in records] == [[], [0], [1], [0], [], [0, 1]]
    assert [record.version for record in records] == [0, 1, 2, 3, 4, 5]
    assert shown(merges[0]) == ([], [], {})
    assert shown(merges[4]) == ([], [], {"2": 0.5, "3": 0.5})


def test_scaling_gives_tier_j_the_step_size_of_eq_12() -> None:
    strategy = LessonMemory(deadline_s=10.0, scaling=True)
    plans = watched(strategy)[0]
    list(simulate(strategy, make_fleet([5.0, 16.0, 26.0]), rounds=2))
    assert [np.asarray(plan.lr_scale).tolist() for plan in plans] == [[1, 2, 3], [1]]


def test_unreachable_clients_have_no_weight() -> None:
    strategy = LessonMemory(deadline_s=10.0)
    merges = watched(strategy)[1]
    list(simulate(strategy, make_fleet([5.0, np.inf, 16.0], weight=[1, 5, 3]), rounds=2))
    assert shown(merges[1]) == (["1", "2"], [1.0, 1.0], {"1": 0.25, "2": 0.75})


def test_participants_of_a_tier_represent_the_whole_tier() -> None:
    """With participation the tier's update is the mean of those drawn; the tier still counts for all its data."""
    strategy = LessonMemory(deadline_s=10.0, participation=1)
    merges = watched(strategy)[1]
    list(simulate(strategy, make_fleet([5.0, 6.0, 16.0, 17.0], weight=[1, 1, 3, 5]), rounds=2))
    assert shown(merges[1]) == (["1", "2"], [1.0, 1.0], {"1": 0.2, "2": 0.8})


def test_late_updates_are_dropped_if_late_is_drop() -> None:
    strategy = LessonMemory(deadline_s=10.0, late="drop")
    simulation = Simulation(strategy, make_fleet([5.0, 16.0]))
    assert [simulation.step().merged.tolist() for _ in range(2)] == [[0], [0, 1]]  # type: ignore[union-attr]
    assert simulation.strategy.state()["filled"] == [1, 2]


@pytest.mark.parametrize("scaling", ["yes", 1, None])
def test_bad_scaling(scaling: Any) -> None:
    with pytest.raises(InputError, match="scaling must be true or false, got"):
        make_strategy("lesson-memory", 10.0, {"scaling": scaling})
