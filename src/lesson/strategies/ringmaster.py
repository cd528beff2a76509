"""Ringmaster ASGD: A. Maranjyan, A. Tyurin, P. Richtárik, "Ringmaster ASGD: The First Asynchronous SGD with Optimal
Time Complexity", ICML 2025, arXiv:2501.16168, Algorithms 4 and 5.

All connected clients train all the time: a client starts from the newest model as soon as its update has arrived. A
round closes with the next arrival. An update that is less than R = `delay_threshold` versions stale is added to the
model, w ← w + η·Δ with η = `server_lr` and Δ = m − base; otherwise it is dropped, and no version is created. With
`stops` (Algorithm 5), a client whose base has become R versions old is canceled and starts again from the newest model.

Sources: the abstract and the list of algorithms of the paper. The comparison δ < R is that of the authors' code for
Ringmaster LMO (arXiv:2605.18174, github.com/vectozavr/ringmaster-lmo), whose `RingmasterASGD` is Algorithm 5.

Departures: the paper's workers compute single stochastic gradients of one common function; here, an update is the usual
local training on the client's own data. The paper derives R from the variance of the gradients; by default, it is the
number of clients here, with which clients of equal speed are never dropped. Updates that arrive at the same time create
a single version.
"""

from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.validation import Count, Flag
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates
from lesson.strategies.shared import StepPerArrival, count_of


@dataclass
class Ringmaster(StepPerArrival):
    """Every update is added to the model on arrival, unless it is too stale."""

    delay_threshold: Count | None = None
    """Staleness R in versions from which updates are dropped. None: the number of reachable clients in the first
    round."""
    stops: Flag = False
    """Whether clients whose update would be dropped are canceled and start again."""
    _threshold: int = field(default=0, init=False, repr=False)
    """R; 0 before the first round."""
    _base_version: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    """Version from which each client started last, in the order of these starts; only with `stops`."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        self._threshold = self._threshold or count_of(self.delay_threshold, len(view.latency_s), view)
        drops = self._outdated(view)
        starts = np.concatenate([plan.starts, drops])
        if self.stops:
            for client in starts.tolist():
                self._base_version.pop(client, None)
                self._base_version[client] = view.version
        return replace(plan, starts=starts, drops=drops)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        is_recent = view.version - arrived.base_version < self._threshold
        taken = arrived.id[is_recent]
        return Merge(taken, np.full(len(taken), self._eta), of="updates", drops=arrived.id[~is_recent])

    def _outdated(self, view: ServerView) -> IntArray:
        """Return the clients that are training from a version that is at least R versions old."""
        oldest = takewhile(lambda one: view.version - one[1] >= self._threshold, self._base_version.items())
        outdated = [client for client, _ in oldest if view.busy[client]]
        return np.array(outdated, dtype=np.int64)
