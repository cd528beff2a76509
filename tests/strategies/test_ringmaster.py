"""Ringmaster ASGD on clients 0 to 3, which take 5, 16, 30 and 38 s, by hand."""

import numpy as np

from helpers.fleets import make_fleet
from helpers.strategies import follow
from lesson import Fleet, Ringmaster


def test_stale_updates_are_dropped(fleet: Fleet) -> None:
    """R = 4. Client 0 makes versions 1 to 3; client 1, from version 0, is 3 stale at 16 s and makes version 4. Client
    0, from version 3, makes 5 at 20 s, then 6 and 7. Client 2 is 6 stale at 30 s, and dropped. Client 1, from version
    4, is 3 stale at 32 s: version 8. Client 3 is 9 stale at 38 s, and makes no version: client 0, which started at
    35 s, is not stale at 40 s."""
    run = follow(Ringmaster(delay_threshold=4, server_lr=0.5), fleet, 12)
    assert run.trace == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (10.0, [0], [0], [0]),
        (15.0, [0], [0], [0]),
        (16.0, [0], [1], [3]),
        (20.0, [1], [0], [1]),
        (25.0, [0], [0], [0]),
        (30.0, [0], [0], [0]),
        (32.0, [0, 2], [1], [3]),
        (35.0, [1], [0], [1]),
        (38.0, [0], [], []),
        (40.0, [3], [0], [0]),
        (45.0, [0], [0], [0]),
    ]
    assert [len(merge.drops) for merge in run.merges] == [0] * 6 + [1, 0, 0, 1, 0, 0]
    assert [merge.weights.tolist() for merge in run.merges] == [[0.5]] * 9 + [[], [0.5], [0.5]]
    assert {merge.of for merge in run.merges} == {"updates"}


def test_clients_that_would_be_dropped_are_canceled(fleet: Fleet) -> None:
    """R = 4. At version 4, at 16 s, clients 2 and 3, from version 0, start again; they would need until 46 and 54 s. At
    version 8, at 32 s, they are canceled again."""
    run = follow(Ringmaster(delay_threshold=4, stops=True), fleet, 9)
    assert run.trace == [
        (5.0, [0, 1, 2, 3], [0], [0]),
        (10.0, [0], [0], [0]),
        (15.0, [0], [0], [0]),
        (16.0, [0], [1], [3]),
        (20.0, [1, 2, 3], [0], [1]),
        (25.0, [0], [0], [0]),
        (30.0, [0], [0], [0]),
        (32.0, [0], [1], [3]),
        (35.0, [1, 2, 3], [0], [1]),
    ]
    assert [sorted(plan.drops.tolist()) for plan in run.plans] == [[], [], [], [], [2, 3], [], [], [], [2, 3]]


def test_defaults() -> None:
    """R = 3, the number of reachable clients: each arrival follows two others, so staleness is at most 2. η = 1/3."""
    run = follow(Ringmaster(), make_fleet([3.0, 3.1, 3.2, np.inf]), 9)
    assert not any(len(merge.drops) for merge in run.merges)
    assert [merge.weights.tolist() for merge in run.merges] == [[1 / 3]] * 9
    assert max(staleness for _, _, _, stale in run.trace for staleness in stale) == 2
