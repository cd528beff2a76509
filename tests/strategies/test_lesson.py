"""LESSON when actual latencies differ from the estimates, and its limits."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from helpers.views import arrived, view
from lesson import FedAvg, FedCS, InputError, Lesson, Simulation, assign_tiers, due, simulate
from lesson.strategies.base import AllOf


def test_an_early_reply_waits_until_it_is_due() -> None:
    """Expected to take 25 s, so tier 3: there in round 1 already, merged in round 3."""
    updates = arrived([25.0], started_round=[1])
    merges = [Lesson(10.0).merge(view(round), updates).updates.tolist() for round in (1, 2, 3)]
    assert merges == [[], [], [100]]


@pytest.mark.parametrize(("late", "merged", "dropped"), [("merge", [100, 101], []), ("drop", [101], [100])])
def test_a_late_reply_is_merged_when_it_comes_or_dropped(late: Any, merged: list[int], dropped: list[int]) -> None:
    """In round 3: expected within 10 s of round 1, so due two rounds ago; and one that is due now."""
    merge = Lesson(10.0, late=late).merge(view(3), arrived([10.0, 30.0], started_round=[1, 1]))
    assert merge.updates.tolist() == merged
    assert merge.drops.tolist() == dropped


def test_a_client_whose_update_waits_at_the_server_does_not_start() -> None:
    """Clients 0 and 2 are idle and free; client 1 is idle, but its early reply still waits."""
    plan = Lesson(10.0).open_round(view(3, now_s=20.0, waiting=[0, 1, 0]), np.random.default_rng(0))
    assert plan.starts.tolist() == [0, 2]


def test_a_round_of_tier_1_alone_still_ends_at_its_deadline() -> None:
    """All are expected within 15 s; if one is late, the round of a 20 s deadline closes at 20 s."""
    plan = Lesson(20.0).open_round(view(1, now_s=0.0), np.random.default_rng(0))
    assert isinstance(plan.closes, AllOf)
    assert plan.closes.by_s == 20.0


def test_a_shorter_deadline_merges_at_the_first_round_end_after_the_expected_arrival() -> None:
    """Rounds of 10 s until 30 s, then of 5 s. Client 1, 38 s from 0 s, is due at 40 s, after the second short round;
    client 0, 5 s, in every round."""
    simulation = Simulation(Lesson(10.0), make_fleet([5.0, 38.0]))
    lesson: Any = simulation.strategy
    merges = {}
    for round in range(1, 7):
        lesson.deadline_s = 10.0 if round <= 3 else 5.0
        record = simulation.step()
        merges[record.end_s] = record.merged.tolist()
    assert merges == {10.0: [0], 20.0: [0], 30.0: [0], 35.0: [0], 40.0: [1, 0], 45.0: [0]}


def test_a_longer_deadline_makes_no_update_late() -> None:
    """One round of 10 s, then of 40 s: client 1, 38 s from 0 s, is due at 50 s and not late there."""
    simulation = Simulation(Lesson(10.0, late="drop"), make_fleet([5.0, 38.0]))
    simulation.step()
    simulation.strategy.deadline_s = 40.0  # type: ignore[attr-defined]
    record = simulation.step()
    assert (record.end_s, record.merged.tolist()) == (50.0, [0, 1])


def test_fedcs_drops_late_updates() -> None:
    merge = FedCS(10.0).merge(view(3), arrived([10.0, 10.0], started_round=[2, 3]))
    assert merge.updates.tolist() == [101]
    assert merge.drops.tolist() == [100]


latency_lists = st.lists(st.floats(0.5, 200), min_size=1, max_size=12)


@given(latency_lists, st.floats(1, 10), st.integers(0, 2))
def test_a_deadline_beyond_the_slowest_client_is_fedavg_to_the_bit(
    latencies: list[float], factor: float, power: int
) -> None:
    deadline_s = [max(latencies), factor * max(latencies), math.inf][power]
    fleet = make_fleet(latencies)
    for lesson, fedavg in zip(
        simulate(Lesson(deadline_s), fleet, rounds=8), simulate(FedAvg(), fleet, rounds=8), strict=True
    ):
        for name, value in vars(lesson).items():
            assert np.array_equal(value, getattr(fedavg, name)), name


@given(latency_lists, st.floats(0.7, 250))
def test_the_schedule_is_equation_8(latencies: list[float], deadline_s: float) -> None:
    fleet = make_fleet(latencies)
    tiers = assign_tiers(fleet.latency_s, deadline_s)
    for record in simulate(Lesson(deadline_s), fleet, rounds=30):
        assert np.array_equal(np.sort(record.merged), np.flatnonzero(due(tiers, record.round)))
        if tiers.max() > 1:
            assert record.end_s == record.round * deadline_s


@given(latency_lists, st.floats(0.7, 250))
def test_staleness_is_at_most_the_tier_minus_one(latencies: list[float], deadline_s: float) -> None:
    fleet = make_fleet(latencies)
    tiers = assign_tiers(fleet.latency_s, deadline_s)
    for record in simulate(Lesson(deadline_s), fleet, rounds=30):
        assert np.all(record.staleness <= tiers[record.merged] - 1)
        if np.any(tiers == 1):
            assert np.array_equal(record.staleness, tiers[record.merged] - 1)


def test_edges_hold_late_in_a_run() -> None:
    """Latencies of exactly 1, 3 and 7 deadlines of 0.3 s keep their slots over 10,000 rounds, at times where a
    running sum of 0.3 has long left the multiples of 0.3."""
    fleet = make_fleet([0.3, 0.9, 2.1])
    tiers = np.array([1, 3, 7])
    for record in simulate(Lesson(0.3), fleet, rounds=10_000):
        assert np.array_equal(np.sort(record.merged), np.flatnonzero(due(tiers, record.round)))
        assert record.end_s == record.round * 0.3


def test_the_grid_moves_with_a_round_that_closed_early() -> None:
    """After a round that ended at 7 s the next deadlines are 17 s and 27 s; a restored strategy knows."""
    rng = np.random.default_rng(0)
    lesson, restored = Lesson(10.0), Lesson(10.0)
    assert lesson.open_round(view(2, now_s=7.0), rng).closes.by_s == 17.0
    restored.restore(lesson.state())
    assert restored.open_round(view(3, now_s=17.0), rng).closes.by_s == 27.0
    assert Lesson(10.0).open_round(view(3, now_s=20.0), rng).closes.by_s == 30.0


def test_each_round_counts_with_its_own_deadline() -> None:
    """Two rounds of 10 s and, from round 3 on, rounds of 20 s: 40 s after round 3, 60 s after round 4."""
    lesson, rng = Lesson(10.0), np.random.default_rng(0)
    lesson.open_round(view(1, now_s=0.0), rng)
    lesson.deadline_s = 20.0
    lesson.open_round(view(3, now_s=20.0), rng)
    updates = arrived([35.0, 45.0], started_round=[1, 1])
    assert [len(lesson.merge(view(round), updates).updates) for round in (3, 4)] == [1, 2]


def test_the_state_without_a_deadline_fits_into_a_checkpoint() -> None:
    """Checkpoints are strict JSON, which has no inf."""
    lesson, restored = Lesson(math.inf), Lesson(math.inf)
    restored.restore(json.loads(json.dumps(lesson.state(), allow_nan=False)))
    assert restored == lesson


def test_participation_of_everybody_is_lesson() -> None:
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0, 7.0])
    plain, limited = (
        [(record.end_s, record.started.tolist(), record.merged.tolist()) for record in simulate(one, fleet, rounds=24)]
        for one in (Lesson(10.0), Lesson(10.0, participation=5))
    )
    assert limited == plain


def test_participation_limits_the_starts_of_a_tier() -> None:
    """Twenty clients in tier 1 and nine in tier 3: two of each, tier 3 in rounds 1, 4, 7, …"""
    fleet = make_fleet([5.0] * 20 + [25.0] * 9)
    counts = np.zeros(29, dtype=np.int64)
    for record in simulate(Lesson(10.0, participation=2), fleet, rounds=600):
        slow = record.started[record.started >= 20]
        assert len(record.started) - len(slow) == 2
        assert len(slow) == (2 if record.round % 3 == 1 else 0)
        assert np.all(record.staleness <= 2)
        counts[record.started] += 1
    # 600 · 2 / 20 = 60 starts each in tier 1, 200 · 2 / 9 = 44 in tier 3; standard deviations of 7.3 and 5.9.
    assert np.all(np.abs(counts[:20] - 60) < 37)
    assert np.all(np.abs(counts[20:] - 44.4) < 30)


def test_participation_without_a_deadline_is_fedavg_with_some_of_the_clients() -> None:
    fleet = make_fleet([5.0, 16.0, 30.0, 38.0])
    for record in simulate(Lesson(math.inf, participation=2), fleet, rounds=20):
        assert sorted(record.merged) == record.started.tolist()
        assert record.end_s - record.start_s == pytest.approx(fleet.latency_s[record.started].max())


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_participation_must_be_a_number_of_clients(wrong: Any) -> None:
    with pytest.raises(InputError, match="participation must be a whole number >= 1"):
        Lesson(10.0, participation=wrong)
