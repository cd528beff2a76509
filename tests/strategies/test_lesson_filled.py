"""Filled slots, written out by hand. Deadline 10 s; half of each latency is computing, half is sending.

Client 0 takes 2 + 2 s: in 8 s four minibatches fit. 1 takes 4 + 4 s: one and a half, so one. 2 takes 6 + 6 s, tier 2:
14 s, two. 3 takes 11 + 11 s, tier 3: 19 s, one.
"""

from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from helpers.views import arrived, view
from lesson import InputError, Simulation, simulate
from lesson.strategies import LessonFilled
from lesson.strategies.base import Merge, RoundPlan

LATENCIES = [4.0, 8.0, 12.0, 22.0]


def decided(
    strategy: LessonFilled, rounds: int, latencies: list[float] = LATENCIES, **fleet: Any
) -> tuple[list[RoundPlan], list[Merge], list[Any]]:
    plans: list[RoundPlan] = []
    merges: list[Merge] = []
    open_round, merge = strategy.open_round, strategy.merge
    strategy.open_round = lambda view, rng: plans.append(open_round(view, rng)) or plans[-1]  # type: ignore[method-assign,func-returns-value]
    strategy.merge = lambda view, arrived: merges.append(merge(view, arrived)) or merges[-1]  # type: ignore[method-assign,func-returns-value]
    simulation = Simulation(strategy, make_fleet(latencies, **fleet))
    return plans, merges, [simulation.step() for _ in range(rounds)]


def test_trace() -> None:
    """Slots are LESSON's; the first arrivals are at 10, 8, 18 and 22 s, and cost 4·1, 1·2, 2·3 and 1·4 J to compute."""
    plans, merges, records = decided(LessonFilled(deadline_s=10.0), 4)
    assert [np.asarray(plan.batches).tolist() for plan in plans] == [[4, 1, 2, 1], [4, 1], [4, 1, 2], [4, 1, 1]]
    assert [plan.lr_scale for plan in plans] == [1.0] * 4
    assert [(record.end_s, record.merged.tolist()) for record in records] == [
        (10.0, [1, 0]),
        (20.0, [2, 1, 0]),
        (30.0, [3, 1, 0]),
        (40.0, [2, 1, 0]),
    ]
    assert [record.compute_j for record in records] == [6.0, 12.0, 10.0, 12.0]
    assert [record.transmit_j for record in records] == [30.0, 60.0, 70.0, 60.0]
    assert {merge.of for merge in merges} == {"updates"}
    assert merges[0].weights.tolist() == [0.5, 0.5]
    assert merges[1].weights.tolist() == pytest.approx([1 / 9, 4 / 9, 4 / 9])


def test_discount_by_tier() -> None:
    """Beside their data, client 2 of tier 2 counts for a half and 3 of tier 3 for a third; or all the same."""
    _, merges, _ = decided(LessonFilled(deadline_s=10.0, discount=1), 3, weight=[1, 1, 2, 6])
    assert merges[1].weights.tolist() == pytest.approx([1 / 3] * 3)
    assert merges[2].weights.tolist() == pytest.approx([2 / 4, 1 / 4, 1 / 4])
    _, merges, _ = decided(LessonFilled(deadline_s=10.0, discount=0), 2, weight=[1, 1, 2, 6])
    assert merges[1].weights.tolist() == pytest.approx([2 / 4, 1 / 4, 1 / 4])


def test_a_tier_that_is_due_alone_counts_whatever_the_discount() -> None:
    """Tiers 2 and 3 of 10 s: nobody in round 1, then client 0, then 1; each is all there is."""
    _, merges, records = decided(LessonFilled(deadline_s=10.0, discount=100.0), 3, latencies=[15.0, 26.0])
    assert [record.merged.tolist() for record in records] == [[], [0], [1]]
    assert [merge.weights.tolist() for merge in merges] == [[], [1.0], [1.0]]


def test_late_updates_of_filled_slots_are_dropped_if_late_is_drop() -> None:
    """Expected after 12 s, in round 2; if it comes in round 3 it is never merged."""
    strategy = LessonFilled(deadline_s=10.0, late="drop")
    late = arrived([12.0], started_round=[1])
    merges = [strategy.merge(view(round), late) for round in (2, 3)]
    assert [(merge.updates.tolist(), merge.drops.tolist()) for merge in merges] == [([100], []), ([], [100])]


@pytest.mark.parametrize("deadline_s", [0.3, 0.7, 3.3])
def test_a_slot_that_is_filled_to_the_last_moment_counts_as_full(deadline_s: float) -> None:
    """Seven minibatches of a tenth of the deadline beside three tenths of sending: rounding takes none away, and the
    update still is of tier 1."""
    plans, _, records = decided(
        LessonFilled(deadline_s=deadline_s), 3, latencies=[0.4 * deadline_s, 1.5 * deadline_s], compute_share=0.25
    )
    assert [np.asarray(plan.batches).tolist()[0] for plan in plans] == [7, 7, 7]
    assert all(0 in record.merged for record in records)


def test_no_client_takes_more_minibatches_than_it_has_samples() -> None:
    fleet = make_fleet([9.0], compute_share=1e-6)
    plan_of: list[Any] = []
    strategy = LessonFilled(deadline_s=1e6)
    open_round = strategy.open_round
    strategy.open_round = lambda view, rng: plan_of.append(open_round(view, rng)) or plan_of[-1]  # type: ignore[method-assign,func-returns-value]
    list(simulate(strategy, fleet, rounds=1))
    assert plan_of[0].batches.tolist() == [100]


def test_rejected() -> None:
    with pytest.raises(InputError, match="set local_steps = 1 and local_epochs = 0"):
        list(simulate(LessonFilled(deadline_s=10.0), make_fleet(LATENCIES, local_steps=2), rounds=1))
    unknown = make_fleet(LATENCIES)
    unknown.compute_s[:] = unknown.upload_s[:] = np.nan
    with pytest.raises(InputError, match="needs compute_s and upload_s of every client"):
        list(simulate(LessonFilled(deadline_s=10.0), unknown, rounds=1))
    for discount in (-1, 101, "much", True):
        with pytest.raises(InputError, match="discount must be a number >= 0 and <= 100"):
            LessonFilled(deadline_s=10.0, discount=discount)  # type: ignore[arg-type]
