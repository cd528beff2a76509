"""Hand-made server views and arrivals."""

import numpy as np

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
        num_samples=np.ones(3, dtype=np.int64),
        client_weight=np.ones(3),
        idle=np.ones(3, dtype=np.bool_),
        busy=np.zeros(3, dtype=np.bool_),
        num_busy=0,
        waiting=np.zeros(3, dtype=np.int64) if waiting is None else np.array(waiting),
        freed=np.arange(3),
        started_round=np.ones(3, dtype=np.int64),
        started_s=nothing,
        signals={},
    )


def arrived(expected_s: list[float], started_round: list[int]) -> Updates:
    count = len(expected_s)
    return Updates(
        id=np.arange(100, 100 + count),
        client=np.arange(count),
        base_version=np.zeros(count, dtype=np.int64),
        started_round=np.array(started_round),
        started_s=10.0 * (np.array(started_round) - 1),
        expected_s=np.array(expected_s),
        arrived_s=np.full(count, 1.0),
        index=np.zeros(count, dtype=np.int64),
        lr_scale=np.ones(count),
        local_steps=np.ones(count, dtype=np.int64),
        batches=np.ones(count, dtype=np.int64),
        compute_scale=np.ones(count),
        in_turn=np.zeros(count, dtype=np.bool_),
    )
