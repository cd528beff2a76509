"""LESSON with an adaptive deadline and with a memory of tiers, which begin with a deadline of 10 s."""

import math

import pytest

from helpers.fleets import make_fleet
from helpers.strategies import SignalServer, follow
from lesson import Fleet, LessonMemory
from lesson.strategies import LessonAdaptive


def test_deadline_follows_the_confirmation(fleet: Fleet) -> None:
    """The first look is when round 51 opens. Nothing was confirmed: τ becomes 10·exp(0.3·0.25) s."""
    server = SignalServer(lambda version: {"confirmation": (0.0, 2.0 if version >= 50 else 0.0)})
    *_, before, after = follow(LessonAdaptive(10.0), fleet, 51, model_server=server).records
    assert before.end_s - before.start_s == pytest.approx(10)
    assert after.end_s - after.start_s == pytest.approx(10 * math.exp(0.3 * 0.25))


def test_mean_update_of_a_tier_is_remembered() -> None:
    """Client 0 is in tier 1, 1 and 2 in tier 2, 3 in tier 3. With 1, 2, 4 and 3 of 10 samples, tiers count for 0.1, 0.6
    and 0.3."""
    run = follow(LessonMemory(deadline_s=10.0), make_fleet([5.0, 16.0, 17.0, 26.0], weight=[1, 2, 4, 3]), 4)
    groups = [(list(merge.groups.names), dict(merge.groups.weights)) for merge in run.merges if merge.groups]
    everything = {"1": 0.1, "2": 0.6, "3": 0.3}
    assert groups == [
        (["1"], {"1": 0.1}),
        (["1", "2", "2"], {"1": 0.1, "2": 0.6}),
        (["1", "3"], everything),
        (["1", "2", "2"], everything),
    ]
    assert run.merges[3].weights == pytest.approx([1, 1 / 3, 2 / 3])
