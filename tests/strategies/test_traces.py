"""Four clients over twelve rounds, written out by hand: exact starts, merges, staleness and times.

Deadline 10 s. Client 0 takes 5 s (tier 1), 1 takes 16 s (tier 2), 2 takes exactly 30 s (tier 3), 3 takes 38 s (tier 4).
"""

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import FedAvg, FedCS, Fleet, InputError, Lesson, simulate
from lesson.strategies import LessonAdaptive, LessonFilled, LessonMemory, Strategy


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet([5.0, 16.0, 30.0, 38.0])


def trace(strategy: Strategy, fleet: Fleet, rounds: int = 12) -> list[tuple[float, list[int], list[int], list[int]]]:
    return [
        (record.end_s, record.started.tolist(), record.merged.tolist(), record.staleness.tolist())
        for record in simulate(strategy, fleet, rounds=rounds)
    ]


def test_lesson(fleet: Fleet) -> None:
    """Merged in the order of arrival. Client 1 starts at 0, 20, 40, … and arrives 16 s later; client 2 starts at
    0, 30, 60, 90 and arrives exactly at the end of its slot; client 3 starts at 0, 40, 80, arrives at 38, 78, 118."""
    assert trace(Lesson(deadline_s=10.0), fleet) == [
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


def test_fedavg(fleet: Fleet) -> None:
    """Everybody, every 38 s."""
    assert trace(FedAvg(), fleet) == [
        (38.0 * round, [0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0]) for round in range(1, 13)
    ]


def test_fedcs(fleet: Fleet) -> None:
    """Client 0 alone, every 10 s."""
    assert trace(FedCS(deadline_s=10.0), fleet) == [(10.0 * round, [0], [0], [0]) for round in range(1, 13)]


def test_bytes_and_joules_of_the_lesson_trace(fleet: Fleet) -> None:
    """100 kbit are 12,500 bytes. Client i spends i + 1 J on computing and 10·(i + 1) J on sending, where it arrives."""
    records = list(simulate(Lesson(deadline_s=10.0), fleet, rounds=4))
    assert [record.bytes_down for record in records] == [50_000, 12_500, 25_000, 25_000]
    assert [record.bytes_up for record in records] == [12_500, 25_000, 25_000, 37_500]
    assert [record.uploads for record in records] == [1, 2, 2, 3]
    assert [record.compute_j for record in records] == [1.0, 3.0, 4.0, 7.0]
    assert [record.transmit_j for record in records] == [10.0, 30.0, 40.0, 70.0]


def test_step_sizes_are_the_tiers(fleet: Fleet) -> None:
    lesson = Lesson(deadline_s=10.0)
    plans = []
    original = lesson.open_round
    lesson.open_round = lambda view, rng: plans.append(original(view, rng)) or plans[-1]  # type: ignore[method-assign,func-returns-value]
    list(simulate(lesson, fleet, rounds=4))
    assert [np.asarray(plan.lr_scale).tolist() for plan in plans] == [[1, 2, 3, 4], [1], [1, 2], [1, 3]]


def test_merges_are_weighted_by_data() -> None:
    """Eq. (10): in round 2 clients 0 and 1 are merged, with 100 and 300 samples, as a quarter and three quarters."""
    fleet = make_fleet([5.0, 16.0], weight=[100, 300])
    lesson = Lesson(deadline_s=10.0)
    merges = []
    original = lesson.merge
    lesson.merge = lambda view, arrived: merges.append(original(view, arrived)) or merges[-1]  # type: ignore[method-assign,func-returns-value]
    list(simulate(lesson, fleet, rounds=2))
    assert merges[0].weights.tolist() == [1.0]
    assert merges[1].weights.tolist() == [0.25, 0.75]


def test_a_round_without_due_updates_leaves_the_model_unchanged() -> None:
    """Tiers 2 and 3 alone. Versions are made in rounds 2, 3, 4, 6; client 1, from version 0, misses that of round 2."""
    records = list(simulate(Lesson(deadline_s=10.0), make_fleet([15.0, 26.0]), rounds=6))
    assert [record.merged.tolist() for record in records] == [[], [0], [1], [0], [], [0, 1]]
    assert [record.version for record in records] == [0, 1, 2, 3, 3, 4]
    assert [record.staleness.tolist() for record in records] == [[], [0], [1], [1], [], [0, 1]]
    assert [record.end_s for record in records] == [10, 20, 30, 40, 50, 60]


def test_a_round_with_all_clients_in_tier_1_closes_at_the_last_arrival() -> None:
    """Client 1 is the last, 8 s after each start."""
    assert trace(Lesson(deadline_s=10.0), make_fleet([5.0, 8.0, 7.0]), 3) == [
        (8.0, [0, 1, 2], [0, 2, 1], [0, 0, 0]),
        (16.0, [0, 1, 2], [0, 2, 1], [0, 0, 0]),
        (24.0, [0, 1, 2], [0, 2, 1], [0, 0, 0]),
    ]


@pytest.mark.parametrize("kind", [Lesson, LessonAdaptive, LessonFilled, LessonMemory])
def test_without_close_early_a_round_waits_for_the_deadline(kind: type[Lesson]) -> None:
    """The same clients and updates, but round k closes at k·10 s, as in the paper.

    With lesson-filled, client 0 fits three minibatches of 2.5 s before its upload of 2.5 s and arrives last, at 10 s;
    the others fit one each.
    """
    order = [2, 1, 0] if kind is LessonFilled else [0, 2, 1]
    assert trace(kind(deadline_s=10.0, close_early=False), make_fleet([5.0, 8.0, 7.0]), 3) == [
        (10.0, [0, 1, 2], order, [0, 0, 0]),
        (20.0, [0, 1, 2], order, [0, 0, 0]),
        (30.0, [0, 1, 2], order, [0, 0, 0]),
    ]


def test_lesson_with_an_unreachable_client_leaves_it_out() -> None:
    assert trace(Lesson(deadline_s=10.0), make_fleet([5.0, np.inf, 16.0]), 2) == [
        (10.0, [0, 2], [0], [0]),
        (20.0, [0], [0, 2], [0, 1]),
    ]


def test_fedcs_without_a_first_tier_says_so() -> None:
    with pytest.raises(InputError, match=r"none meets deadline_s = 10, the fastest takes 15 s"):
        list(simulate(FedCS(deadline_s=10.0), make_fleet([15.0, 25.0]), rounds=1))


def test_the_first_record_mentions_a_promoted_client() -> None:
    records = list(
        simulate(FedCS(deadline_s=10.0), make_fleet([15.0, 25.0], ensure_first_tier=True).at_deadline(10.0), rounds=2)
    )
    assert (
        records[0].note == "tier 1 would be empty: the latency of the fastest client, 0, is set to 10 s instead of 15 s"
    )
    assert records[1].note == ""
    assert records[0].merged.tolist() == [0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lesson(deadline_s=0.0), "deadline_s must be > 0, got 0.0"),
        (lambda: FedCS(deadline_s=-1.0), "deadline_s must be > 0, got -1.0"),
        (lambda: FedCS(deadline_s=np.inf), "deadline_s must be finite for fedcs, got inf"),
        (lambda: Lesson(deadline_s=10.0, late="wait"), "late must be 'merge' or 'drop', got 'wait'"),
        (lambda: Lesson(deadline_s=10.0, close_early=0), "close_early must be true or false, got 0"),
        (lambda: Lesson(deadline_s=np.inf, close_early=False), "close_early must be true if deadline_s is inf"),
    ],
)
def test_bad_settings(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
