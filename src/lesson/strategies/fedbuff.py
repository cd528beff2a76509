"""FedBuff: J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.

`concurrency` clients train at all times: whenever one arrives, an idle one, drawn uniformly, starts. A round closes
with the next arrival; the update waits in the buffer, in which a client may have several. When the buffer holds K =
`buffer_size` of them, the first K move the model, w ← w + η·Σ s(d)·Δ / K, with η = `server_lr`, Δ = m − its base and
s(d) = 1 / √(1 + d) for a staleness of d versions (`scale_staleness`; else s = 1). The sum is divided by K, not by Σ s.

If more than K are there at once, the rest waits; should it fill the buffer again, another round closes at once, before
anybody starts. A round's work follows who takes part while half of the fleet stays idle.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lesson.arrays import NO_CLIENTS, IntArray
from lesson.strategies.base import Arrivals, Deadline, Merge, RoundPlan, ServerView, Updates
from lesson.strategies.checks import check_connected, check_count, check_flag, check_number


@dataclass
class FedBuff:
    """So many clients at work; the model moves when a buffer of updates is full."""

    buffer_size: int = 10
    concurrency: int = 20
    scale_staleness: bool = True
    server_lr: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset()
    _training: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)
    _num_buffered: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("buffer_size", self.buffer_size)
        check_count("concurrency", self.concurrency)
        check_number("server_lr", self.server_lr)
        check_flag("scale_staleness", self.scale_staleness)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, concurrency=self.concurrency, buffer_size=self.buffer_size)
        if self._num_buffered >= self.buffer_size:
            return RoundPlan(NO_CLIENTS, Deadline(view.now_s))
        training = self._training[view.connected[self._training] & ~view.idle[self._training]]
        num_idle = view.num_connected - len(training)
        starts = _draw_idle(view, min(self.concurrency - len(training), num_idle), num_idle, rng)
        self._training = np.concatenate([training, starts])
        return RoundPlan(starts, Arrivals(1))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = arrived[np.arange(self.buffer_size if len(arrived) >= self.buffer_size else 0)]
        self._num_buffered = len(arrived) - len(taken)
        staleness = view.version - taken.base_version
        scale = 1 / np.sqrt(1.0 + staleness) if self.scale_staleness else np.ones(len(taken))
        return Merge(taken.id, self.server_lr * scale / self.buffer_size, of="updates")

    def state(self) -> dict[str, Any]:
        return {"training": self._training.tolist(), "num_buffered": self._num_buffered}

    def restore(self, state: dict[str, Any]) -> None:
        self._training = np.array(state["training"], dtype=np.int64)
        self._num_buffered = state["num_buffered"]


def _draw_idle(view: ServerView, count: int, num_idle: int, rng: np.random.Generator) -> IntArray:
    """So many different idle clients, drawn uniformly: by trial where most are idle, which looks at few of them."""
    num_clients = len(view.idle)
    if num_idle - count < num_clients // 2:
        return rng.choice(np.flatnonzero(view.idle), count, replace=False)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        who = int(rng.integers(num_clients))
        if view.idle[who]:
            drawn[who] = None
    return np.array(list(drawn), dtype=np.int64)
