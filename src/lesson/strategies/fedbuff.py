"""FedBuff: J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.

`concurrency` clients, by default all, train at all times: whenever an update arrives, an idle client, drawn uniformly,
starts. A round closes with the next arrival; the update waits in the buffer, which may hold several updates of a
client. When the buffer holds K = `buffer_size` updates (by default 10, or the number of clients in a smaller fleet),
the first K are aggregated: w ← w + η·Σ s(d)·Δ / K, with η = `server_lr`, Δ = m − base and s(d) = 1 / √(1 + d) for a
staleness of d versions (s = 1 without `scale_staleness`). The sum is divided by K, not by Σ s.

If more than K updates are in the buffer, the others keep waiting; if they fill it again, another round closes at once,
before any client starts. While all clients train, or at least half of the fleet is idle, the cost of a round depends
only on the clients involved. A client that disconnects during training is replaced by another one; if it rejoins before
its update is lost, more than `concurrency` clients train for a while.

With `rate_per_s`, as in FLSim, the authors' simulator, clients instead start one by one at given times, whatever
arrives; if all clients train at such a time, none starts. A round closes with the next arrival or at the next start.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import numpy as np

from lesson.core.arrays import NO_CLIENTS
from lesson.core.validation import Count, Flag, Positive
from lesson.strategies.base import NO_UPDATES, Arrivals, CheckedOptions, Deadline, Merge, RoundPlan, ServerView, Updates
from lesson.strategies.shared import (
    StartSchedule,
    StartTimes,
    check_connected,
    check_start_times,
    count_of,
    draw_idle,
)

USUAL_BUFFER_SIZE = 10


@dataclass
class Buffered(CheckedOptions):
    """Base class of FedBuff and of strategies that differ from it only in how they aggregate a full buffer."""

    rounds_are_arrivals: ClassVar[bool] = True
    buffer_size: Count | None = None
    """Number of updates in a full buffer. None: 10, or the number of reachable clients in the first round if that is
    less."""
    concurrency: Count | None = None
    """Number of clients that train at the same time. None: all clients."""
    _: KW_ONLY
    rate_per_s: Positive | None = None
    """Number of clients that start per second, whatever arrives, the first at 0 s. A start at which nobody is idle is
    skipped, and one while the server is busy takes place after that. None: whenever an update arrives, another client
    starts."""
    start_times: StartTimes = "constant"
    """With `rate_per_s`: whether starts are equally spaced or a Poisson process."""
    _starts: StartSchedule = field(default_factory=StartSchedule, init=False, repr=False)
    _num_buffered: int = field(default=0, init=False, repr=False)
    _capacity: int = field(default=0, init=False, repr=False)
    """K; 0 before the first round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start_times(self.rate_per_s, self.start_times, self.concurrency)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, concurrency=self.concurrency, buffer_size=self.buffer_size)
        if self._num_buffered >= self._buffer_size(view):
            return RoundPlan(NO_CLIENTS, Deadline(view.now_s))
        if self.rate_per_s is not None:
            return self._starts.plan(self.rate_per_s, self.start_times, view, rng)
        num_idle = view.num_connected - view.num_busy
        missing = num_idle if self.concurrency is None else max(0, self.concurrency - view.num_busy)
        return RoundPlan(draw_idle(view, min(missing, num_idle), num_idle, rng), Arrivals(1))

    def take_full_buffer(self, view: ServerView, arrived: Updates) -> Updates:
        """Return the first K updates and remove them from the buffer; return none if it is not full."""
        capacity, self._num_buffered = self._buffer_size(view), len(arrived)
        if len(arrived) < capacity:
            return NO_UPDATES
        self._num_buffered -= capacity
        return arrived[np.arange(capacity)]

    def _buffer_size(self, view: ServerView) -> int:
        if not self._capacity:
            self._capacity = count_of(self.buffer_size, USUAL_BUFFER_SIZE, view)
        return self._capacity


@dataclass
class FedBuff(Buffered):
    """A fixed number of clients train at all times; updates are aggregated when a buffer is full."""

    scale_staleness: Flag = True
    """Whether stale updates get less weight, 1 / √(1 + staleness)."""
    server_lr: Positive = 1.0
    """Factor η of the aggregated update."""

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = self.take_full_buffer(view, arrived)
        if not len(taken):
            return Merge(taken.id, np.empty(0), of="updates")
        staleness = view.version - taken.base_version
        scale = 1 / np.sqrt(1.0 + staleness) if self.scale_staleness else np.ones(len(taken))
        return Merge(taken.id, self.server_lr * scale / len(taken), of="updates")
