"""Five rounds by hand. Deadline 10 s; client 0 takes 5 s (tier 1), 1 and 2 take 16 and 17 s (tier 2), 3 takes 26 s
(tier 3). Their data are 1, 2, 4 and 3 of 10, so the tiers count for 0.1, 0.6 and 0.3.
"""

import pytest

from helpers.fleets import make_fleet
from helpers.strategies import follow
from lesson import LessonMemory
from lesson.strategies.base import Merge


def shown(merge: Merge) -> tuple[list[str], list[float], dict[str, float]]:
    assert merge.groups is not None
    assert merge.of == "updates"
    return list(merge.groups.names), merge.weights.tolist(), dict(merge.groups.weights)


def test_trace() -> None:
    run = follow(LessonMemory(deadline_s=10.0), make_fleet([5.0, 16.0, 17.0, 26.0], weight=[1, 2, 4, 3]), 5)
    assert run.rounds == [
        (10.0, [0, 1, 2, 3], [0]),
        (20.0, [0], [0, 1, 2]),
        (30.0, [0, 1, 2], [0, 3]),
        (40.0, [0, 3], [0, 1, 2]),
        (50.0, [0, 1, 2], [0]),
    ]
    everything = {"1": 0.1, "2": 0.6, "3": 0.3}
    third = pytest.approx(1 / 3)
    assert [shown(merge) for merge in run.merges] == [
        (["1"], [1.0], {"1": 0.1}),
        (["1", "2", "2"], [1.0, third, pytest.approx(2 / 3)], {"1": 0.1, "2": 0.6}),
        (["1", "3"], [1.0, 1.0], everything),
        (["1", "2", "2"], [1.0, third, pytest.approx(2 / 3)], everything),
        (["1"], [1.0], everything),
    ]
    assert [plan.lr_scale for plan in run.plans] == [1.0] * 5


def test_memory_changes_the_model_even_if_no_update_is_due() -> None:
    """Tiers 2 and 3 alone: nothing in round 1, nobody due in round 5, but both remembered."""
    run = follow(LessonMemory(deadline_s=10.0), make_fleet([15.0, 26.0]), 6)
    assert [record.version for record in run.records] == [0, 1, 2, 3, 4, 5]
    assert shown(run.merges[4]) == ([], [], {"2": 0.5, "3": 0.5})
