"""A tenth of each client's samples that it never trains on, for strategies that ask how well clients are served."""

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.core.streams import stream
from lesson.learn.holdings import Holdings
from lesson.learn.partition import Partition

SHARE = 0.1


def hold_out(holdings: Holdings, seed: int) -> tuple[Partition, Partition]:
    """What each client trains on, and what it holds out: max(1, round(n / 10)) of its n samples, none of a single one.

    Drawn by a stream of its own for each client. Samples that a client of a pool holds more than once count as one, so
    that none is on both sides.
    """
    parts = [_hold_out(holdings[client], seed, client) for client in range(len(holdings.num_samples))]
    training, held = (Partition.of(list(side)) for side in zip(*parts, strict=True))
    if not len(held.samples):
        raise InputError("clients that hold out a tenth must have 2 samples or more; take fewer clients")
    return training, held


def _hold_out(samples: IntArray, seed: int, client: int) -> tuple[IntArray, IntArray]:
    distinct = np.unique(samples)
    if len(distinct) < 2:
        return samples, samples[:0]
    count = max(1, round(SHARE * len(distinct)))
    held = np.isin(samples, stream(seed, "held-out", client).choice(distinct, count, replace=False))
    return samples[~held], samples[held]
