"""Updates in flight: which clients train, from which version, since when, and in which order their updates arrive.

The cost of starting and collecting updates depends on the clients involved, not on the size of the fleet.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import Updates

_IDLE = -1
_ARRAYS = (
    "started_round",
    "started_s",
    "_id",
    "_base_version",
    "_expected_s",
    "_num_starts",
    "_lr_scale",
    "_local_steps",
    "_batches",
    "_arrives_s",
)


class _Group(NamedTuple):
    """Clients that started together, in order of arrival. Groups are ordered by their next arrival, then by its id."""

    next_s: float
    number: int
    arrives_s: FloatArray
    clients: IntArray
    ids: IntArray


class InFlight:
    """Updates in flight, at most one per client.

    Arrays have shape (num_clients,) and describe each client's latest local training.
    """

    def __init__(self, num_clients: int) -> None:
        self.started_round: IntArray = np.zeros(num_clients, dtype=np.int64)
        self.started_s: FloatArray = np.full(num_clients, np.nan)
        self._id: IntArray = np.full(num_clients, _IDLE)
        self._base_version: IntArray = np.zeros(num_clients, dtype=np.int64)
        self._expected_s: FloatArray = np.full(num_clients, np.nan)
        self._num_starts: IntArray = np.zeros(num_clients, dtype=np.int64)
        self._lr_scale: FloatArray = np.ones(num_clients)
        self._local_steps: IntArray = np.zeros(num_clients, dtype=np.int64)
        self._batches: IntArray = np.ones(num_clients, dtype=np.int64)
        self._arrives_s: FloatArray = np.full(num_clients, -np.inf)
        self._groups: list[_Group] = []
        self._next_id = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def busy(self, clients: IntArray) -> BoolArray:
        """Return which of these clients have an update in flight, shape (len(clients),)."""
        return np.not_equal(self._id[clients], _IDLE)

    def everybody(self) -> IntArray:
        """Return the clients that have an update in flight, sorted."""
        return np.flatnonzero(self._id != _IDLE)

    def launch(
        self,
        clients: IntArray,
        *,
        version: int,
        round: int,
        now_s: float,
        arrives_s: FloatArray,
        expected_s: FloatArray,
        lr_scale: FloatArray | float,
        local_steps: IntArray,
        batches: IntArray | int,
    ) -> None:
        """Start idle clients from a model version. If `arrives_s` is inf, `arrive` sets the arrival time later."""
        ids = np.arange(self._next_id, self._next_id + len(clients))
        self._id[clients] = ids
        self._base_version[clients] = version
        self.started_round[clients] = round
        self.started_s[clients] = now_s
        self._expected_s[clients] = expected_s
        self._num_starts[clients] += 1
        self._lr_scale[clients] = lr_scale
        self._local_steps[clients] = local_steps
        self._batches[clients] = batches
        self._arrives_s[clients] = arrives_s
        self._next_id += len(clients)
        self._count += len(clients)
        order = np.argsort(arrives_s, kind="stable")
        order = order[np.isfinite(arrives_s[order])]
        self._push(arrives_s[order], clients[order], ids[order])

    def arrive(self, client: int, arrives_s: float) -> None:
        """Set the arrival time of an update that was launched with an infinite one."""
        self._arrives_s[client] = arrives_s
        at_s = np.array([arrives_s])
        self._push(at_s, np.array([client]), self._id[[client]])

    def reschedule(self, clients: IntArray, arrives_s: FloatArray) -> None:
        """Replace the arrival times of all updates in flight; `clients` must be all busy clients."""
        self._arrives_s[clients] = arrives_s
        self._groups = []
        order = np.lexsort((self._id[clients], arrives_s))
        order = order[np.isfinite(arrives_s[order])]
        self._push(arrives_s[order], clients[order], self._id[clients[order]])

    def num_starts(self, clients: IntArray) -> IntArray:
        """Return how many local trainings each of these clients has started."""
        return self._num_starts[clients]

    def land(self, until_s: float) -> Updates:
        """Remove and return the updates that arrive by `until_s`, in order of arrival, then of start."""
        limit_s = until_s * (1 + TOLERANCE)
        landed: list[tuple[int, IntArray]] = []
        while self._groups and self._groups[0].next_s <= limit_s:
            group = heapq.heappop(self._groups)
            end = int(np.searchsorted(group.arrives_s, limit_s, side="right"))
            landed.append((group.number, group.clients[:end][self._id[group.clients[:end]] == group.ids[:end]]))
            self._push(group.arrives_s[end:], group.clients[end:], group.ids[end:])
        clients = np.concatenate([NO_CLIENTS, *(group for _, group in sorted(landed, key=lambda entry: entry[0]))])
        return self.take(clients[np.argsort(self._arrives_s[clients], kind="stable")])

    def take(self, clients: IntArray) -> Updates:
        """Remove and return the updates of these clients, whether or not they have arrived."""
        updates = self.work_of(clients)
        self._id[clients] = _IDLE
        self._arrives_s[clients] = -np.inf
        self._count -= len(clients)
        return updates

    def work_of(self, clients: IntArray) -> Updates:
        """Return the updates of these clients, all of which must be busy."""
        return Updates(
            id=self._id[clients],
            client=clients,
            base_version=self._base_version[clients],
            started_round=self.started_round[clients],
            started_s=self.started_s[clients],
            expected_s=self._expected_s[clients],
            arrived_s=self._arrives_s[clients],
            index=self._num_starts[clients] - 1,
            lr_scale=self._lr_scale[clients],
            local_steps=self._local_steps[clients],
            batches=self._batches[clients],
        )

    def last_arrival_s(self, clients: IntArray) -> float:
        """Return when the last update of these clients arrives; −inf if none of them is busy."""
        return float(self._arrives_s[clients].max(initial=-np.inf))

    def nth_arrival_s(self, count: int) -> float:
        """Return when `count` more updates have arrived; −inf if `count` is 0 or less, inf if fewer are in flight."""
        if count <= 0:
            return -np.inf
        if count > self._count:
            return np.inf
        if count == 1:
            self._forget_dropped_heads()
            return self._groups[0].next_s if self._groups else np.inf
        return float(np.partition(self._arrives_s[self._id != _IDLE], count - 1)[count - 1])

    def final_arrival_s(self) -> float:
        """Return when the last update in flight arrives; −inf if there is none."""
        return float(self._arrives_s.max())

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, for `restore`."""
        return {name: getattr(self, name) for name in _ARRAYS} | {"next_id": np.array([self._next_id])}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned."""
        for name in _ARRAYS:
            getattr(self, name)[:] = state[name]
        self._next_id = int(state["next_id"][0])
        busy = self.everybody()
        self._count = len(busy)
        self.reschedule(busy, self._arrives_s[busy])

    def _push(self, arrives_s: FloatArray, clients: IntArray, ids: IntArray) -> None:
        if len(ids):
            heapq.heappush(self._groups, _Group(float(arrives_s[0]), int(ids[0]), arrives_s, clients, ids))

    def _forget_dropped_heads(self) -> None:
        while self._groups and self._id[self._groups[0].clients[0]] != self._groups[0].ids[0]:
            group = heapq.heappop(self._groups)
            self._push(group.arrives_s[1:], group.clients[1:], group.ids[1:])
