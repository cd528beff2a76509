"""Hand-made server views and arrivals."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lesson.fleet.tiers import assign_tiers
from lesson.strategies.base import ServerView, Updates


def view(round: int, now_s: float | None = None, waiting: list[int] | None = None) -> ServerView:
    nothing = np.zeros(3)
    return ServerView(
        round=round,
        version=round,
        now_s=10.0 * round if now_s is None else now_s,
        num_connected=3,
        connected=np.ones(3, dtype=np.bool_),
        compute_s=nothing,
        upload_s=nothing,
        shared_upload_s=nothing,
        download_s=nothing,
        latency_s=np.full(3, 15.0),
        first_latency_s=np.full(3, 15.0),
        local_steps=np.ones(3, dtype=np.int64),
        batch_samples=np.ones(3, dtype=np.int64),
        num_samples=np.ones(3, dtype=np.int64),
        client_weight=np.ones(3),
        idle=np.ones(3, dtype=np.bool_),
        busy=np.zeros(3, dtype=np.bool_),
        num_busy=0,
        waiting=np.zeros(3, dtype=np.int64) if waiting is None else np.array(waiting),
        to_consider=np.arange(3),
        started_round=np.ones(3, dtype=np.int64),
        started_s=nothing,
        upload_bits=1.0,
        level_bits={},
        compute_j=nothing,
        transmit_j=nothing,
        signals={},
    )


def updates(client: Sequence[int], base: int | Sequence[int] = 0, scale: float | Sequence[float] = 1.0) -> Updates:
    """Return updates of these clients, with the versions they started from and the factors of their step sizes."""
    count = len(client)
    whole, real = np.zeros(count, dtype=np.int64), np.zeros(count)
    return Updates(
        id=np.arange(count),
        client=np.array(client, dtype=np.int64),
        base_version=whole + np.array(base, dtype=np.int64),
        started_round=whole,
        started_s=real,
        expected_s=real,
        arrived_s=real,
        index=whole,
        lr_scale=real + np.array(scale),
        local_steps=whole + 1,
        samples=whole,  # unknown
        tier=whole,
        level=real + np.nan,
        compute_scale=real + 1,
        upload_scale=real + 1,
        in_turn=whole > 0,
    )


def arrived(expected_s: list[float], started_round: list[int]) -> Updates:
    """Return updates 100, 101, … of clients 0, 1, …, which started in rounds of 10 s and have arrived at 1 s.

    Their tiers follow from when they were expected.
    """
    some, rounds = updates(range(len(expected_s))), np.array(started_round)
    started_s, arrived_s = 10.0 * (rounds - 1), some.arrived_s + 1
    times = {"started_s": started_s, "expected_s": np.array(expected_s), "arrived_s": arrived_s}
    tiers = assign_tiers(times["expected_s"], 10.0)
    return replace(some, id=some.id + 100, started_round=rounds, tier=tiers, **times)
