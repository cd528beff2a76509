"""ACE: X. Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning", 2025,
arXiv:2511.19066.

In the first round, all connected clients start, and the round closes when all updates have arrived. From then on, all
clients train all the time, and a round closes with the next arrival. The server caches the latest update h_i of each
client, and every round adds the mean of the cache to the model: w ← w + η·Σ h_i / N, with η = `server_lr` and N the
number of clients in the cache. A client whose update arrives then starts again from the newest model.

Sources: the abstract of the paper, and `StaleSGDConceptualServer` in the code of its first author
(github.com/xchang1121/AsyncFL, 1fe1799). Its variant ACED, which leaves old updates out of the mean, is not included,
because the code aggregates at other times than the algorithm that it cites.

Departures: the paper's clients compute single stochastic gradients; here, an update is the usual local training.
Updates that arrive at the same time are one step. A client that is first heard of later joins the cache then. A
rejected update leaves h_i unchanged. The caches of clients that leave or are excluded stay in the mean.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from lesson.core.arrays import NO_CLIENTS
from lesson.strategies.base import AllOf, GroupMemory, Merge, RoundPlan, ServerView, Updates
from lesson.strategies.shared import StepPerArrival


@dataclass
class ACE(StepPerArrival):
    """Every arrival adds the mean of the latest updates of all clients, which the server caches."""

    _cached: set[int] = field(default_factory=set, init=False, repr=False)
    """Clients with an update in the cache."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        return plan if view.version else replace(plan, closes=AllOf(plan.starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        if not len(arrived):
            return Merge(NO_CLIENTS, np.empty(0), of="updates")
        self._cached.update(arrived.client.tolist())
        share = self._eta / len(self._cached)
        names = [f"client {client}" for client in arrived.client.tolist()]
        groups = GroupMemory(
            names, dict.fromkeys(names, share), previous=dict.fromkeys(names, -share), previous_total=share
        )
        return Merge(arrived.id, np.ones(len(arrived)), of="updates", groups=groups)
