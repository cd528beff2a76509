"""Rennala SGD: A. Tyurin, P. Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a
Fixed Computation Model", 2023, Method 4.

All connected clients train all the time: a client starts from the newest model as soon as its update has arrived. A
round closes with the next arrival. An update that started from an older version is dropped; the others wait, and a
client may send several of them. When S = `updates_per_round` updates of the newest version wait, they are aggregated
with equal weights: w ← w + η·Σ Δ / S, with η = `server_lr` and Δ = m − base. Clients that are still training are not
interrupted, so the next update of each of them is dropped.

Departures: the paper's workers compute single stochastic gradients of one common function; here, an update is the usual
local training on the client's own data. If more than S updates wait because several arrived at the same time, the
last ones are dropped. An iteration of the paper corresponds to a version here, not to a round.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import NO_CLIENTS
from lesson.core.validation import Count, Positive
from lesson.strategies.base import Merge, ServerView, Updates
from lesson.strategies.shared import AlwaysTraining


@dataclass
class Rennala(AlwaysTraining):
    """Updates of the newest version are collected and averaged; stale updates are dropped."""

    updates_per_round: Count = 10
    """Number S of updates that create a version. It may exceed the number of clients."""
    server_lr: Positive = 1.0
    """Factor η of the mean update."""

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        is_fresh = arrived.base_version == view.version
        fresh, stale = arrived.id[is_fresh], arrived.id[~is_fresh]
        count = self.updates_per_round
        if len(fresh) < count:
            return Merge(NO_CLIENTS, np.empty(0), of="updates", drops=stale)
        weights = np.full(count, self.server_lr / count)
        return Merge(fresh[:count], weights, of="updates", drops=np.concatenate([stale, fresh[count:]]))
