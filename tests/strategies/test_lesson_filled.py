"""Filled slots, written out by hand. Deadline 10 s; half of each latency is computing, half is sending.

Client 0 takes 2 + 2 s: in 8 s four minibatches fit. 1 takes 4 + 4 s: one and a half, so one. 2 takes 6 + 6 s, tier 2:
14 s, two. 3 takes 11 + 11 s, tier 3: 19 s, one.
"""

import numpy as np
import pytest

from helpers.fleets import make_fleet
from helpers.strategies import Run, follow
from helpers.views import arrived, view
from lesson import InputError
from lesson.strategies import LessonFilled

LATENCIES = [4.0, 8.0, 12.0, 22.0]


def batches(run: Run) -> list[list[int]]:
    return [np.asarray(plan.batches).tolist() for plan in run.plans]


def test_trace() -> None:
    """Slots are LESSON's; the first arrivals are at 10, 8, 18 and 22 s, and cost 4·1, 1·2, 2·3 and 1·4 J to compute."""
    run = follow(LessonFilled(deadline_s=10.0), make_fleet(LATENCIES), 4)
    assert batches(run) == [[4, 1, 2, 1], [4, 1], [4, 1, 2], [4, 1, 1]]
    assert [plan.lr_scale for plan in run.plans] == [1.0] * 4
    assert [(end_s, merged) for end_s, _, merged in run.rounds] == [
        (10.0, [1, 0]),
        (20.0, [2, 1, 0]),
        (30.0, [3, 1, 0]),
        (40.0, [2, 1, 0]),
    ]
    assert [record.compute_j for record in run.records] == [6.0, 12.0, 10.0, 12.0]
    assert [record.transmit_j for record in run.records] == [30.0, 60.0, 70.0, 60.0]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[0].weights.tolist() == [0.5, 0.5]
    assert run.merges[1].weights.tolist() == pytest.approx([1 / 9, 4 / 9, 4 / 9])


@pytest.mark.parametrize(
    ("discount", "second", "third"),
    [(1, [1 / 3, 1 / 3, 1 / 3], [2 / 4, 1 / 4, 1 / 4]), (0, [2 / 4, 1 / 4, 1 / 4], [6 / 8, 1 / 8, 1 / 8])],
)
def test_discount_by_tier(discount: float, second: list[float], third: list[float]) -> None:
    """Clients have 1, 1, 2 and 6 samples; client 2 of tier 2 counts for a half and 3 of tier 3 for a third, or all."""
    fleet = make_fleet(LATENCIES, weight=[1, 1, 2, 6])
    merges = follow(LessonFilled(deadline_s=10.0, discount=discount), fleet, 3).merges
    assert merges[1].weights.tolist() == pytest.approx(second)
    assert merges[2].weights.tolist() == pytest.approx(third)


def test_discount_has_no_effect_on_a_single_tier() -> None:
    """Tiers 2 and 3 of 10 s: nobody in round 1, then client 0, then 1; each is all there is."""
    run = follow(LessonFilled(deadline_s=10.0, discount=100.0), make_fleet([15.0, 26.0]), 3)
    assert [record.merged.tolist() for record in run.records] == [[], [0], [1]]
    assert [merge.weights.tolist() for merge in run.merges] == [[], [1.0], [1.0]]


def test_late_updates_are_dropped_on_request() -> None:
    """Expected after 12 s, in round 2; if it comes in round 3 it is never merged."""
    strategy, late = LessonFilled(deadline_s=10.0, late="drop"), arrived([12.0], started_round=[1])
    merges = [strategy.merge(view(round), late) for round in (2, 3)]
    assert [(merge.updates.tolist(), merge.drops.tolist()) for merge in merges] == [([100], []), ([], [100])]


@pytest.mark.parametrize("deadline_s", [0.3, 0.7, 3.3])
def test_rounding_does_not_shorten_an_exactly_filled_slot(deadline_s: float) -> None:
    """Seven minibatches of a tenth of the deadline beside three tenths of sending."""
    fleet = make_fleet([0.4 * deadline_s, 1.5 * deadline_s], compute_share=0.25)
    run = follow(LessonFilled(deadline_s=deadline_s), fleet, 3)
    assert [first[0] for first in batches(run)] == [7, 7, 7]
    assert all(0 in record.merged for record in run.records)


def test_no_client_takes_more_minibatches_than_it_has_samples() -> None:
    assert batches(follow(LessonFilled(deadline_s=1e6), make_fleet([9.0], compute_share=1e-6), 1)) == [[100]]


def test_unsuitable_fleets_are_rejected() -> None:
    with pytest.raises(InputError, match="local_steps"):
        follow(LessonFilled(deadline_s=10.0), make_fleet(LATENCIES, local_steps=2), 1)
    unknown = make_fleet(LATENCIES)
    unknown.compute_s[:] = unknown.upload_s[:] = np.nan
    with pytest.raises(InputError, match="compute_s"):
        follow(LessonFilled(deadline_s=10.0), unknown, 1)
