"""When a federation whose clients fail is ended, and when it is not; rounds of 10 s, by hand."""

from itertools import pairwise
from typing import Any

import pytest

from helpers.fleets import make_fleet
from helpers.wall import Federation, Took, on_the_wall
from lesson import FedAvg, FedBuff, Lesson
from lesson.clock.worlds import Left
from lesson.core.errors import RunStoppedError
from lesson.flower.watch import UpdateWatch
from lesson.strategies import FedCS


def counts(federation: Federation, num_rounds: int, watch: UpdateWatch | None = None) -> list[int]:
    """Return the number of rounds that count after each round."""
    watch, numbers = watch or UpdateWatch(99, "fix them"), []
    for _ in range(num_rounds):
        record = federation.step()
        assert record is not None
        watch.see(record, federation.ledger)
        numbers.append(watch.num_rounds)
    return numbers


def federation(takes: list[list[Took]], latency_s: list[float], strategy: Any = None, **options: Any) -> Federation:
    return on_the_wall(strategy or Lesson(10.0), make_fleet(latency_s), takes, **options)[0]


def test_error_counts_the_reasons() -> None:
    both = federation([["client error"], ["no weight"]], [5.0, 16.0], exclude_after=0)
    with pytest.raises(RunStoppedError, match="in 4 rounds: 4 × client error, 4 × no weight; fix them"):
        counts(both, 99, UpdateWatch(4, "fix them"))
    assert both.round == 4


def test_run_waits_for_a_healthy_client_in_a_high_tier() -> None:
    assert counts(federation([["client error"], [118.0]], [5.0, 118.0]), 13) == 13 * [0]


def test_aggregation_resets_the_count() -> None:
    takes: list[list[Took]] = [[*3 * ["client error"], 5.0, "client error"]]
    assert counts(federation(takes, [5.0]), 6) == [1, 2, 3, 0, 1, 2]


def test_run_waits_for_a_client_that_has_recovered() -> None:
    """Client 0 always fails. Client 1 fails once, so rounds count until its second update, of 118 s, is aggregated.

    While it trains the third one, they do not count.
    """
    takes: list[list[Took]] = [["client error"], ["client error", 118.0]]
    numbers = counts(federation(takes, [5.0, 118.0]), 22)
    merged = numbers.index(0)
    assert numbers[:merged] == list(range(1, merged + 1))
    assert 10 < merged < 16
    assert numbers[merged:] == (22 - merged) * [0]


def test_silent_clients_count_when_they_are_given_up() -> None:
    """Nobody replies within the timeout of 60 s, which is a failure; both are asked again, and so on."""
    numbers = counts(federation([["silent"], ["silent"]], [5.0, 5.0], timeout_s=60.0), 20)
    assert [round for round, (before, after) in enumerate(pairwise([0, *numbers]), 1) if after > before] == [6, 12, 18]


def test_filling_buffer_is_not_a_failure() -> None:
    """Client 0 has updates in the buffer, which is aggregated with every second one, while client 1 only fails."""
    both = federation([[3.0], ["client error"]], [3.0, 3.0], FedBuff(buffer_size=2, concurrency=2))
    assert max(counts(both, 12)) <= 1


def test_deadline_that_nobody_meets_counts() -> None:
    """FedCS at 10 s: the only client turns out to take 15 s and is not started again."""
    with pytest.raises(RunStoppedError, match="in 10 rounds: the strategy started no client"):
        counts(federation([[15.0]], [5.0], FedCS(10.0)), 99, UpdateWatch(10, ""))


def test_client_lost_once_does_not_count() -> None:
    lost, clients = on_the_wall(FedAvg(), make_fleet([5.0, 6.0]), [[5.0], [6.0]])
    clients.clock.at(1.0, Left(1))
    assert counts(lost, 3) == [0, 0, 0]


def test_run_that_ends_with_its_initial_model_is_an_error() -> None:
    watch = UpdateWatch(10, "fix them")
    counts(federation([["client error"], ["client error"]], [5.0, 16.0]), 3, watch)
    with pytest.raises(RunStoppedError, match="in 3 rounds: 6 × client error"):
        watch.check_end(num_rounds=3, version=0)
    watch.check_end(num_rounds=3, version=1)
    UpdateWatch(10, "fix them").check_end(num_rounds=3, version=0)  # nobody was due yet
