"""LESSON with a deadline of 10 s, written out by hand, and what holds for any fleet.

In `fleet`, client 0 takes 5 s (tier 1), 1 takes 16 s (tier 2), 2 takes exactly 30 s (tier 3), 3 takes 38 s (tier 4).
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from helpers.strategies import follow
from helpers.views import arrived, view
from lesson import Every, FedAvg, Fleet, InputError, Lesson, assign_tiers, make_loop, simulate


def test_trace(fleet: Fleet) -> None:
    """Merged in the order of arrival. Client 1 starts at 0, 20, 40, … and arrives 16 s later; client 2 starts at
    0, 30, 60, 90 and arrives exactly at the end of its slot; client 3 starts at 0, 40, 80, arrives at 38, 78, 118."""
    run = follow(Lesson(deadline_s=10.0), fleet, 12)
    assert run.trace == [
        (10.0, [0, 1, 2, 3], [0], [0]),
        (20.0, [0], [0, 1], [0, 1]),
        (30.0, [0, 1], [0, 2], [0, 2]),
        (40.0, [0, 2], [0, 1, 3], [0, 1, 3]),
        (50.0, [0, 1, 3], [0], [0]),
        (60.0, [0], [0, 1, 2], [0, 1, 2]),
        (70.0, [0, 1, 2], [0], [0]),
        (80.0, [0], [0, 1, 3], [0, 1, 3]),
        (90.0, [0, 1, 3], [0, 2], [0, 2]),
        (100.0, [0, 2], [0, 1], [0, 1]),
        (110.0, [0, 1], [0], [0]),
        (120.0, [0], [0, 1, 3, 2], [0, 1, 3, 2]),
    ]
    assert [np.asarray(plan.lr_scale).tolist() for plan in run.plans[:4]] == [[1, 2, 3, 4], [1], [1, 2], [1, 3]]
    assert follow(Lesson(10.0, scaling=False), fleet, 1).plans[0].lr_scale == 1.0


def test_bytes_and_energy(fleet: Fleet) -> None:
    """100 kbit are 12,500 bytes. Client i spends i + 1 J on computing and 10·(i + 1) J on sending, where it arrives."""
    records = list(simulate(Lesson(deadline_s=10.0), fleet, rounds=4))
    assert [record.bytes_down for record in records] == [50_000, 12_500, 25_000, 25_000]
    assert [record.bytes_up for record in records] == [12_500, 25_000, 25_000, 37_500]
    assert [record.uploads for record in records] == [1, 2, 2, 3]
    assert [record.compute_j for record in records] == [1.0, 3.0, 4.0, 7.0]
    assert [record.transmit_j for record in records] == [10.0, 30.0, 40.0, 70.0]


def test_models_are_weighted_by_data() -> None:
    """Eq. (10): in round 2 clients 0 and 1 are merged, with 100 and 300 samples, as a quarter and three quarters."""
    merges = follow(Lesson(deadline_s=10.0), make_fleet([5.0, 16.0], weight=[100, 300]), 2).merges
    assert [merge.weights.tolist() for merge in merges] == [[1.0], [0.25, 0.75]]
    assert {merge.of for merge in merges} == {"models"}


def test_round_without_due_updates_leaves_the_model_unchanged() -> None:
    """Tiers 2 and 3 alone. Versions are made in rounds 2, 3, 4, 6; client 1, from version 0, misses that of round 2."""
    run = follow(Lesson(deadline_s=10.0), make_fleet([15.0, 26.0]), 6)
    assert [record.version for record in run.records] == [0, 1, 2, 3, 3, 4]
    assert [(end_s, merged, staleness) for end_s, _, merged, staleness in run.trace] == [
        (10, [], []),
        (20, [0], [0]),
        (30, [1], [1]),
        (40, [0], [1]),
        (50, [], []),
        (60, [0, 1], [0, 1]),
    ]


@pytest.mark.parametrize(("close_early", "ends_s"), [(True, [8, 16, 24]), (False, [10, 20, 30])])
def test_rounds_of_tier_1_alone_may_close_at_the_last_arrival(close_early: bool, ends_s: list[float]) -> None:
    run = follow(Lesson(10.0, close_early=close_early), make_fleet([5.0, 8.0, 7.0]), 3)
    assert run.rounds == [(end_s, [0, 1, 2], [0, 2, 1]) for end_s in ends_s]


def test_unreachable_clients_never_start() -> None:
    assert follow(Lesson(deadline_s=10.0), make_fleet([5.0, np.inf, 16.0]), 2).rounds == [
        (10.0, [0, 2], [0]),
        (20.0, [0], [0, 2]),
    ]


def test_early_reply_waits_until_it_is_due() -> None:
    """Expected to take 25 s, so tier 3: there in round 1 already, merged in round 3."""
    updates = arrived([25.0], started_round=[1])
    merges = [Lesson(10.0).merge(view(round), updates).updates.tolist() for round in (1, 2, 3)]
    assert merges == [[], [], [100]]


@pytest.mark.parametrize(("late", "merged", "dropped"), [("merge", [100, 101], []), ("drop", [101], [100])])
def test_late_reply_is_merged_on_arrival_or_dropped(late: Any, merged: list[int], dropped: list[int]) -> None:
    """In round 3: expected within 10 s of round 1, so due two rounds ago; and one that is due now."""
    merge = Lesson(10.0, late=late).merge(view(3), arrived([10.0, 30.0], started_round=[1, 1]))
    assert (merge.updates.tolist(), merge.drops.tolist()) == (merged, dropped)


def test_client_with_a_waiting_update_does_not_start() -> None:
    """Clients 0 and 2 are idle and free; client 1 is idle, but its early reply still waits."""
    plan = Lesson(20.0).open_round(view(3, now_s=40.0, waiting=[0, 1, 0]), np.random.default_rng(0))
    assert plan.starts.tolist() == [0, 2]
    assert isinstance(plan.closes, Every)
    assert (plan.closes.interval_s, plan.closes.unless_done) == (20.0, None)


def test_deadlines_shift_after_an_early_close() -> None:
    """A round of tier 1 alone lasts 7 s. Then client 1 is slower: the next deadlines are 17 s, 27 s, ..., also after a
    restore."""
    loop, restored = (make_loop(Lesson(10.0), make_fleet([5.0, 7.0])) for _ in range(2))
    assert loop.step().end_s == 7.0
    loop.fleet.latency_s[1] = 12.0
    assert [loop.step().end_s for _ in range(2)] == [17.0, 27.0]
    restored.restore(*loop.state())
    restored.fleet.latency_s[1] = 12.0
    assert [restored.step().end_s for _ in range(2)] == [37.0, 47.0]


latency_lists = st.lists(st.floats(0.5, 200), min_size=1, max_size=12)


@given(latency_lists, st.sampled_from([1.0, 3.7, math.inf]))
def test_deadline_beyond_the_slowest_client_equals_fedavg(latencies: list[float], factor: float) -> None:
    fleet = make_fleet(latencies)
    lessons = simulate(Lesson(factor * max(latencies)), fleet, rounds=4)
    for lesson, fedavg in zip(lessons, simulate(FedAvg(), fleet, rounds=4), strict=True):
        assert lesson.tiers is not None
        assert np.all(lesson.tiers == 1)
        for name, value in vars(lesson).items():
            if name != "tiers":  # FedAvg has none
                assert np.array_equal(value, getattr(fedavg, name)), name


@given(latency_lists, st.floats(0.7, 250))
def test_schedule_is_equation_8(latencies: list[float], deadline_s: float) -> None:
    """Staleness is at most the tier minus one, and exactly that if tier 1 makes a version in every round."""
    fleet = make_fleet(latencies)
    tiers = assign_tiers(fleet.latency_s, deadline_s)
    for record in simulate(Lesson(deadline_s), fleet, rounds=24):
        assert np.array_equal(np.sort(record.merged), np.flatnonzero(record.round % tiers == 0))
        assert np.all(record.staleness <= tiers[record.merged] - 1)
        if np.any(tiers == 1):
            assert np.array_equal(record.staleness, tiers[record.merged] - 1)
        if tiers.max() > 1:
            assert record.end_s == record.round * deadline_s


def test_exact_latencies_keep_their_slots_late_in_a_run() -> None:
    """Latencies of exactly 1, 3 and 7 deadlines of 0.3 s keep their slots at times where a running sum of 0.3 has long
    left the multiples of 0.3."""
    tiers = np.array([1, 3, 7])
    for record in simulate(Lesson(0.3), make_fleet([0.3, 0.9, 2.1]), rounds=1200):
        assert np.array_equal(np.sort(record.merged), np.flatnonzero(record.round % tiers == 0))
        assert record.end_s == record.round * 0.3


def test_full_participation_equals_lesson() -> None:
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0, 7.0])
    assert follow(Lesson(10.0, participation=5), fleet, 24).trace == follow(Lesson(10.0), fleet, 24).trace


def test_participation_limits_the_starts_of_a_tier() -> None:
    """Twenty clients in tier 1 and nine in tier 3: two of each, tier 3 in rounds 1, 4, 7, …"""
    counts = np.zeros(29, dtype=np.int64)
    for record in simulate(Lesson(10.0, participation=2), make_fleet([5.0] * 20 + [25.0] * 9), rounds=600):
        slow = record.started[record.started >= 20]
        assert len(record.started) - len(slow) == 2
        assert len(slow) == (2 if record.round % 3 == 1 else 0)
        counts[record.started] += 1
    # 600 · 2 / 20 = 60 starts each in tier 1, 200 · 2 / 9 = 44 in tier 3; standard deviations of 7.3 and 5.9.
    assert np.all(np.abs(counts[:20] - 60) < 37)
    assert np.all(np.abs(counts[20:] - 44.4) < 30)


def test_participation_without_a_deadline_equals_fedavg_with_a_fraction(fleet: Fleet) -> None:
    for record in simulate(Lesson(math.inf, participation=2), fleet, rounds=20):
        assert sorted(record.merged) == record.started.tolist()
        assert record.end_s - record.start_s == pytest.approx(fleet.latency_s[record.started].max())


def test_run_without_a_deadline_must_be_able_to_close_early() -> None:
    with pytest.raises(InputError, match="close_early"):
        Lesson(math.inf, close_early=False)
