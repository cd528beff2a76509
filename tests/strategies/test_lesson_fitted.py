"""Fitted work, written out by hand. Deadline 10 s; half of each latency is computing 20 samples, half is sending.

Client 0 takes 0.1 s per sample and 2 s to send: 80 samples fit. 1 takes 0.2 s and 4 s: 30 fit, in granules of 4 28,
until 9.6 s. 2 takes 0.325 s and 6.5 s: 10.8, so 8, until 9.1 s. 3 takes 0.55 s and 11 s: not even 4 samples in tier 1;
in tier 2, 16.4, so 16, until 19.8 s.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from helpers.strategies import Run, follow
from helpers.views import arrived, view
from lesson import InputError
from lesson.core.errors import UnfitFleetError
from lesson.strategies import LessonFitted, fleet_for

LATENCIES = [4.0, 8.0, 13.0, 22.0]


def samples(run: Run) -> list[list[int]]:
    return [np.asarray(plan.samples).tolist() for plan in run.plans]


def first_samples(**options: Any) -> list[int]:
    return samples(follow(LessonFitted(deadline_s=10.0, **options), make_fleet(LATENCIES), 1))[0]


def test_trace() -> None:
    """A minibatch costs i + 1 J: 4·1 + 1.4·2 + 0.4·3 J in round 1, and 0.8·4 J more in round 2."""
    run = follow(LessonFitted(deadline_s=10.0), make_fleet(LATENCIES), 4)
    assert samples(run) == [[80, 28, 8, 16], [80, 28, 8], [80, 28, 8, 16], [80, 28, 8]]
    assert [plan.lr_scale for plan in run.plans] == [1.0] * 4
    assert run.rounds == [
        (10.0, [0, 1, 2, 3], [2, 1, 0]),
        (20.0, [0, 1, 2], [2, 1, 3, 0]),
        (30.0, [0, 1, 2, 3], [2, 1, 0]),
        (40.0, [0, 1, 2], [2, 1, 3, 0]),
    ]
    assert [record.compute_j for record in run.records] == pytest.approx([8.0, 11.2, 8.0, 11.2])
    assert [record.transmit_j for record in run.records] == [60.0, 100.0, 60.0, 100.0]
    assert {merge.of for merge in run.merges} == {"updates"}
    assert run.merges[0].weights.tolist() == pytest.approx([1 / 3] * 3)
    assert run.merges[1].weights.tolist() == pytest.approx([4 / 13, 4 / 13, 1 / 13, 4 / 13])


def test_options_of_the_work() -> None:
    """With a granule of 12 samples, client 2 needs 10.4 s, so it is in tier 2, where 41.5 fit."""
    assert first_samples(granule=10) == [80, 30, 10, 10]
    assert first_samples(granule=12) == [72, 24, 36, 12]
    assert first_samples(margin=0.2) == [60, 20, 4, 8]  # 8 or 16 s: 60, 20, 4.6 and 9.1 fit


def test_limit_of_tiers() -> None:
    """Client 3 is left out, and rounds last as long as if it were not; at 1 s, even client 0 is too slow."""
    run = follow(LessonFitted(deadline_s=10.0, max_tier=1), make_fleet(LATENCIES), 2)
    assert run.rounds == [(10.0, [0, 1, 2], [2, 1, 0]), (20.0, [0, 1, 2], [2, 1, 0])]
    everybody = follow(LessonFitted(deadline_s=10.0, max_tier=1), make_fleet(LATENCIES[:3]), 1)
    assert everybody.rounds[0][0] == 10.0
    with pytest.raises(UnfitFleetError, match="none fits 4 samples into 1 s"):
        follow(LessonFitted(deadline_s=1.0, max_tier=1), make_fleet(LATENCIES), 1)


def test_nobody_is_promoted() -> None:
    """Clients 0 and 1 need 12 and 14 s for 20 samples, and 7.2 and 8.4 s for four."""
    fleet = replace(make_fleet([12.0, 14.0]), ensure_first_tier=True)
    assert fleet_for("lesson-fitted", fleet, 10.0) is fleet


@pytest.mark.parametrize(
    ("half", "expected"),
    [(20.0, [8 / 28, 28 / 48, 80 / 100]), (math.inf, [8.0, 28.0, 80.0]), (0.0, [1.0, 1.0, 1.0])],
)
def test_weights_by_samples(half: float, expected: list[float]) -> None:
    (merge,) = follow(LessonFitted(deadline_s=10.0, half_weight_samples=half), make_fleet(LATENCIES), 1).merges
    assert merge.weights.tolist() == pytest.approx(np.array(expected) / sum(expected))


@pytest.mark.parametrize(("discount", "expected"), [(1, [2, 2, 2, 2]), (0, [2, 2, 4, 2])])
def test_discount_by_tier(discount: float, expected: list[float]) -> None:
    """Client 3 of tier 2 has twice the weight of the others, and counts for a half of that, or for all."""
    fleet = make_fleet(LATENCIES, weight=[1, 1, 1, 2])
    merges = follow(LessonFitted(deadline_s=10.0, discount=discount), fleet, 2).merges
    assert merges[1].weights.tolist() == pytest.approx(np.array(expected) / sum(expected))


def test_discount_has_no_effect_on_a_single_tier() -> None:
    """Weights in proportion to 2,500⁻¹⁰⁰ would be 0."""
    strategy, due = LessonFitted(deadline_s=10.0, discount=100.0), arrived([25_000.0], started_round=[1])
    assert strategy.merge(view(2500), due).weights.tolist() == [1.0]


def test_several_local_steps_are_normalized() -> None:
    """Steps take 1, 2, 3.25 and 5.5 s: 8, 3, 1 and, in tier 2, 1 fit. Mean of 1, 8 and 3 steps: 4."""
    run = follow(LessonFitted(deadline_s=10.0), make_fleet(LATENCIES, local_steps=2), 1)
    (plan,), (merge,) = run.plans, run.merges
    assert plan.samples is None
    assert np.asarray(plan.local_steps).tolist() == [8, 3, 1, 1]
    assert np.asarray(plan.tiers).tolist() == [1, 1, 1, 2]
    assert run.records[0].merged.tolist() == [2, 0, 1]
    assert merge.weights.tolist() == pytest.approx([4 / 3, 4 / 24, 4 / 9])


def test_late_updates_are_dropped_on_request() -> None:
    """Expected after 12 s, in round 2; if it comes in round 3 it is never merged."""
    strategy, late = LessonFitted(deadline_s=10.0, late="drop"), arrived([12.0], started_round=[1])
    merges = [strategy.merge(view(round), late) for round in (2, 3)]
    assert [(merge.updates.tolist(), merge.drops.tolist()) for merge in merges] == [([100], []), ([], [100])]


@pytest.mark.parametrize("deadline_s", [0.3, 0.7, 3.3])
def test_rounding_does_not_shorten_an_exactly_filled_slot(deadline_s: float) -> None:
    """140 samples of a two-hundredth of the deadline beside three tenths of sending."""
    fleet = replace(make_fleet([0.4 * deadline_s], compute_share=0.25), num_samples=np.array([1000]))
    run = follow(LessonFitted(deadline_s=deadline_s), fleet, 3)
    assert samples(run) == [[140], [140], [140]]
    assert all(0 in record.merged for record in run.records)


def test_no_client_trains_on_more_samples_than_it_has() -> None:
    """All 100 of client 0, though 100 is no multiple of 30, and the two of client 1."""
    fleet = replace(make_fleet([9.0, 9.0], compute_share=1e-6), num_samples=np.array([100, 2]))
    assert samples(follow(LessonFitted(deadline_s=10.0, granule=30), fleet, 1)) == [[100, 2]]


def test_compute_times_must_be_known() -> None:
    unknown = make_fleet(LATENCIES)
    unknown.compute_s[:] = unknown.upload_s[:] = np.nan
    with pytest.raises(InputError, match="compute_s"):
        follow(LessonFitted(deadline_s=10.0), unknown, 1)
