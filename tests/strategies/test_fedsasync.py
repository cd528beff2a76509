"""FedSaSync on clients 0 to 3, which take 5, 16, 30 and 38 s, by hand."""

import pytest

from helpers.fleets import make_fleet
from helpers.strategies import follow
from lesson import FedAvg, FedSaSync, Fleet


def test_rounds_close_at_the_second_arrival(fleet: Fleet) -> None:
    """M = 2. 1. Clients 0 and 1 at 5 and 16 s. 2. 0 again at 21 s, and 2 at 30 s, from version 0. 3. 1, from version 1,
    at 32 s, and 0 at 35 s. 4. 3 at 38 s, from version 0, and 0 at 40 s. 5. 0 at 45 s and 1, which started at 35 s, at
    51 s. 6. 0 at 56 s, and 2, which started at 30 s from version 2, at 60 s. 7. 0 at 65 s and 1 at 67 s. 8. 0 at 72 s,
    and 3, which started at 40 s from version 4, at 78 s."""
    run = follow(FedSaSync(sync_degree=2), fleet, 8)
    assert run.trace == [
        (16.0, [0, 1, 2, 3], [0, 1], [0, 0]),
        (30.0, [0, 1], [0, 2], [0, 1]),
        (35.0, [0, 2], [1, 0], [1, 0]),
        (40.0, [0, 1], [3, 0], [3, 0]),
        (51.0, [0, 3], [0, 1], [0, 1]),
        (60.0, [0, 1], [0, 2], [0, 3]),
        (67.0, [0, 2], [0, 1], [0, 1]),
        (78.0, [0, 1], [0, 3], [0, 3]),
    ]
    assert {merge.of for merge in run.merges} == {"models"}


def test_models_are_weighted_regardless_of_staleness() -> None:
    """In the second round, clients 0 and 2, which is 1 stale, weigh 1 and 3."""
    run = follow(FedSaSync(sync_degree=2), make_fleet([5.0, 16.0, 30.0, 38.0], weight=[1, 2, 3, 4]), 2)
    assert run.merges[1].weights == pytest.approx([0.25, 0.75])


def test_a_round_waits_for_all_if_fewer_are_training(fleet: Fleet) -> None:
    """By default, M = 10, so that rounds are those of FedAvg; none of them ends because nobody is left."""
    run = follow(FedSaSync(), fleet, 3)
    assert run.trace == follow(FedAvg(), fleet, 3).trace
    assert not any(record.note for record in run.records)


def test_a_fraction_of_the_clients_starts(fleet: Fleet) -> None:
    """M = 1. Two start per round while one arrives, so that 2, 1 + 2 and 2 + 2 train; then only one is idle."""
    run = follow(FedSaSync(sync_degree=1, fraction=0.5), fleet, 20)
    assert [len(plan.starts) for plan in run.plans][:4] == [2, 2, 2, 1]
    assert all(len(plan.starts) <= 2 for plan in run.plans)
