"""Ringleader ASGD: A. Maranjyan, P. Richtárik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time
Complexity under Data Heterogeneity", ICLR 2026, arXiv:2509.22860.

All connected clients train all the time: a client starts from the newest model as soon as its update has arrived. A
round closes with the next arrival. First, updates wait until each of the n clients has sent b_i ≥ 1 of them; they form
a table, and the mean of the clients' means is added to the model: w ← w + η·(1/n)·Σ_i (1/b_i)·Σ_j Δ_ij, with
η = `server_lr` and Δ = m − base. Then the next update of each client that is still training joins the table, and this
mean is added again, so a table makes up to n versions; other updates wait for the next table. Malenia SGD makes one
version of each table, and drops what was being trained meanwhile.

Sources: a summary of the paper with its formulas (en.papernotes.org), and `RingleaderASGD` in the code of a paper that
A. Maranjyan and P. Richtárik also wrote (github.com/vectozavr/ringmaster-lmo).

Departures: the paper's workers compute single stochastic gradients; here, an update is the usual local training. A
client always starts from the newest model, as in that code; in the paper, it receives one model per table. Updates that
arrive at the same time create a single version. The n clients are those that are connected, and those that have
disconnected since they sent an update. A client that disconnects during training no longer adds to the current table. A
client whose updates are rejected adds 0.

The cost of a round grows with the number of updates that wait, and that of a version with the number of clients. The
server holds up to two vectors per client.
"""

from dataclasses import dataclass, field

import numpy as np

from lesson.core.arrays import NO_CLIENTS
from lesson.strategies.base import GroupMemory, Merge, ServerView, Updates
from lesson.strategies.shared import StepPerArrival


@dataclass
class Ringleader(StepPerArrival):
    """A table holds updates of all clients; each client adds the mean of the table to the model once."""

    _counts: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """Number b_i of each client's updates when the table was formed."""
    _added: list[int] = field(default_factory=list, init=False, repr=False)
    """Clients that have added another update to the table since then."""
    _pending: list[int] = field(default_factory=list, init=False, repr=False)
    """Clients that were training when the table was formed and still are."""

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = arrived[np.isin(arrived.client, self._pending)]
        self._pending = [client for client in self._pending if view.busy[client]]
        if not len(taken):
            if not self._pending:
                return self._form_table(view, arrived)
            return Merge(NO_CLIENTS, np.empty(0), of="updates")
        self._added += taken.client.tolist()
        groups = GroupMemory([_added(client) for client in taken.client.tolist()], self._shares())
        return Merge(taken.id, np.ones(len(taken)), of="updates", groups=groups)

    def _form_table(self, view: ServerView, arrived: Updates) -> Merge:
        """Return the merge of all waiting updates if every client has sent one, and otherwise an empty one."""
        clients, senders, counts = np.unique(arrived.client, return_inverse=True, return_counts=True)
        if not len(clients) or np.count_nonzero(view.connected[clients]) < view.num_connected:
            return Merge(NO_CLIENTS, np.empty(0), of="updates")
        resets = list(self._shares()) if self._counts else []
        self._counts, self._added = dict(zip(clients.tolist(), counts.tolist(), strict=True)), []
        self._pending = clients[view.busy[clients]].tolist()
        names = [_first(client) for client in arrived.client.tolist()]
        groups = GroupMemory(names, self._shares(), resets=resets)
        return Merge(arrived.id, 1 / counts[senders], of="updates", groups=groups)

    def _shares(self) -> dict[str, float]:
        """Return the weight of each group: all clients weigh the same, and so do all updates of a client."""
        share = self._eta / len(self._counts)
        shares = {_first(client): share for client in self._counts}
        for client in self._added:
            count = self._counts[client]
            shares |= {_first(client): share * count / (count + 1), _added(client): share / (count + 1)}
        return shares


def _first(client: int) -> str:
    """Return the group of the updates with which a client entered the table."""
    return f"client {client}"


def _added(client: int) -> str:
    """Return the group of the update that a client added to the table."""
    return f"client {client}, added"
