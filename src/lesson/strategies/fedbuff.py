"""FedBuff: J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.

`concurrency` clients train at all times: whenever one arrives, an idle one, drawn uniformly, starts. A round closes
with the next arrival; the update waits in the buffer, in which a client may have several. When the buffer holds K =
`buffer_size` of them, the first K move the model, w ← w + η·Σ s(d)·Δ / K, with η = `server_lr`, Δ = m − its base and
s(d) = 1 / √(1 + d) for a staleness of d versions (`scale_staleness`; else s = 1). The sum is divided by K, not by Σ s.

By default, K is 10 and 20 clients train; in a fleet with fewer clients, both are its size.

If more than K are there at once, the rest waits; should it fill the buffer again, another round closes at once, before
anybody starts. A round's work follows who takes part while half of the fleet stays idle. A client that disconnects
while it trains is replaced by another one; if it rejoins before its work is lost, more than `concurrency` clients train
for a while.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lesson.core.arrays import NO_CLIENTS, IntArray
from lesson.strategies.base import Arrivals, Deadline, Merge, RoundPlan, ServerView, Updates
from lesson.strategies.checks import check_connected, check_count, check_flag, check_number, count_of

USUAL_BUFFER_SIZE, USUAL_CONCURRENCY = 10, 20


@dataclass
class FedBuff:
    """So many clients at work; the model moves when a buffer of updates is full."""

    buffer_size: int | None = None
    """None: 10, or the number of reachable clients when the first round opens, if that is less."""
    concurrency: int | None = None
    """None: 20, or everybody in a smaller fleet."""
    scale_staleness: bool = True
    server_lr: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset()
    _training: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)
    _num_buffered: int = field(default=0, init=False, repr=False)
    _capacity: int = field(default=0, init=False, repr=False)
    """K; 0 until it is known."""

    def __post_init__(self) -> None:
        for name in ("buffer_size", "concurrency"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_number("server_lr", self.server_lr)
        check_flag("scale_staleness", self.scale_staleness)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, concurrency=self.concurrency, buffer_size=self.buffer_size)
        training = self._find_training(view)
        num_idle = view.num_connected - len(training)
        if self._num_buffered >= self._buffer_size(view):
            self._training = training
            return RoundPlan(NO_CLIENTS, Deadline(view.now_s))
        missing = max(0, (self.concurrency or USUAL_CONCURRENCY) - len(training))
        starts = _draw_idle(view, min(missing, num_idle), num_idle, rng)
        self._training = np.concatenate([training, starts])
        return RoundPlan(starts, Arrivals(1))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        capacity = self._buffer_size(view)
        taken = arrived[np.arange(capacity if len(arrived) >= capacity else 0)]
        self._num_buffered = len(arrived) - len(taken)
        staleness = view.version - taken.base_version
        scale = 1 / np.sqrt(1.0 + staleness) if self.scale_staleness else np.ones(len(taken))
        return Merge(taken.id, self.server_lr * scale / capacity, of="updates")

    def state(self) -> dict[str, Any]:
        return {
            "training": self._training.tolist(),
            "num_buffered": self._num_buffered,
            "buffer_size": self._capacity,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._training = np.array(state["training"], dtype=np.int64)
        self._num_buffered = state["num_buffered"]
        self._capacity = state["buffer_size"]

    def _find_training(self, view: ServerView) -> IntArray:
        """The connected clients that work. One that has disconnected and is back, still at work, is among the freed."""
        back = view.freed[~np.isin(view.freed, self._training)]
        candidates = np.concatenate([self._training, back])
        training: IntArray = candidates[view.connected[candidates] & ~view.idle[candidates]]
        return training

    def _buffer_size(self, view: ServerView) -> int:
        if not self._capacity:
            self._capacity = count_of(self.buffer_size, USUAL_BUFFER_SIZE, view)
        return self._capacity


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
