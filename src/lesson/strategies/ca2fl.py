"""CA²FL: Y. Wang, Y. Cao, J. Wu, R. Chen, J. Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning
with Cached Update Calibration", ICLR 2024.

Clients start and rounds close as in FedBuff. The server caches the latest update h_i of each client, 0 at first, and
h̄ = Σ h_i / N over all N clients. When the buffer S holds M = `buffer_size` updates, they are aggregated with equal
weights, calibrated by the caches: w ← w + η·v with v = h̄ + Σ_{i∈S} (Δ_i − h_i) / M and η = `server_lr`. Then
h_i ← Δ_i for the clients of S.

Departures: if a buffer holds several updates of a client, each is calibrated by the same h_i, and the new h_i is their
mean. A rejected update is left out of the sum and leaves h_i unchanged; if all updates of a buffer are rejected, the
model still moves by η·h̄. The caches of clients that leave or are excluded stay in h̄. N is the largest number of
clients that were connected at the same time, or the number that have trained so far, whichever is larger.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from lesson.core.validation import Positive
from lesson.strategies.base import GroupMemory, Merge, RoundPlan, ServerView, Updates
from lesson.strategies.fedbuff import Buffered


@dataclass
class CA2FL(Buffered):
    """FedBuff with updates calibrated by the latest update of every client, which the server caches."""

    server_lr: Positive = 1.0
    """Factor η of the calibrated update."""
    _num_clients: int = field(default=0, init=False, repr=False)
    """N."""
    _num_started: int = field(default=0, init=False, repr=False)
    """Number of clients that have started at least once."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        self._num_started += int(np.count_nonzero(view.started_round[plan.starts] == 0))
        self._num_clients = max(self._num_clients, self._num_started, view.num_connected)
        return plan

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = self.take_full_buffer(view, arrived)
        if not len(taken):
            return Merge(taken.id, np.empty(0), of="updates")
        names = [f"client {client}" for client in taken.client.tolist()]
        counts = Counter(names)
        shares = {name: self.server_lr * count / len(taken) for name, count in counts.items()}
        groups = GroupMemory(
            names,
            shares,
            previous={name: -share for name, share in shares.items()},
            previous_total=self.server_lr / self._num_clients,
        )
        return Merge(taken.id, np.array([1 / counts[name] for name in names]), of="updates", groups=groups)
