"""Malenia SGD: A. Tyurin, P. Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a
Fixed Computation Model", 2023, Method 6.

All connected clients train all the time: a client starts from the newest model as soon as its update has arrived. A
round closes with the next arrival. An update that started from an older version is dropped; the others wait, and a
client may send several of them. When each of the n clients has sent B_i ≥ 1 updates of the newest version, and the
harmonic mean of the B_i is at least S / n with S = `updates_per_round`, all of them are aggregated, and each client has
the same weight: w ← w + η·(1/n)·Σ_i (1/B_i)·Σ_j Δ_ij, with η = `server_lr` and Δ = m − base. Without S, or with S ≤ n,
one update of each client is enough. Clients that are still training are not interrupted, so the next update of each of
them is dropped.

Departures: the paper's workers compute single stochastic gradients; here, an update is the usual local training. The n
clients are those that are connected, and those that have disconnected since they sent an update of the newest version.
An iteration of the paper corresponds to a version here, not to a round.

The cost of a round grows with the number of waiting updates, many of which are from fast clients.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import NO_CLIENTS
from lesson.core.validation import Count, Positive
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import Merge, ServerView, Updates
from lesson.strategies.shared import AlwaysTraining


@dataclass
class Malenia(AlwaysTraining):
    """Every client sends at least one update of the newest version; all clients have the same weight."""

    updates_per_round: Count | None = None
    """Number S: the harmonic mean of the clients' numbers of updates must reach S divided by the number of clients.
    None: one update of each client is enough."""
    server_lr: Positive = 1.0
    """Factor η of the mean update."""

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        is_fresh = arrived.base_version == view.version
        fresh, stale = arrived[is_fresh], arrived.id[~is_fresh]
        clients, senders, counts = np.unique(fresh.client, return_inverse=True, return_counts=True)
        num_clients, num_updates = len(clients), self.updates_per_round or 0
        num_missing = view.num_connected - np.count_nonzero(view.connected[clients])
        # n / Σ 1/B ≥ S/n
        too_few = num_clients**2 * (1 + TOLERANCE) < num_updates * np.sum(1 / counts)
        if not num_clients or num_missing or too_few:
            return Merge(NO_CLIENTS, np.empty(0), of="updates", drops=stale)
        weights = self.server_lr / num_clients / counts[senders]
        return Merge(fresh.id, weights, of="updates", drops=stale)
