"""Queue of the updates in flight, in order of arrival.

Clients that start together form a group that is sorted once, so the cost of starting and collecting updates depends on
the clients involved, not on the size of the fleet.
"""

import heapq
from typing import NamedTuple

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray
from lesson.fleet.tiers import TOLERANCE


class _Group(NamedTuple):
    """Clients that started together, in order of arrival. Groups are ordered by their next arrival, then by its id."""

    next_s: float
    number: int
    arrives_s: FloatArray
    clients: IntArray
    ids: IntArray


class ArrivalQueue:
    """Updates by arrival time. `current_id` has the id of each client's update in flight, shape (num_clients,).

    The owner of `current_id` removes an update by changing its entry; the queue skips entries that are out of date.
    """

    def __init__(self, current_id: IntArray) -> None:
        self._current_id = current_id
        self._groups: list[_Group] = []

    def add(self, arrives_s: FloatArray, clients: IntArray, ids: IntArray) -> None:
        """Add updates, in order of their ids; those whose arrival time is infinite are left out."""
        order = np.argsort(arrives_s, kind="stable")
        order = order[np.isfinite(arrives_s[order])]
        self._push(arrives_s[order], clients[order], ids[order])

    def clear(self) -> None:
        """Remove all updates."""
        self._groups = []

    def pop(self, until_s: float) -> IntArray:
        """Remove the updates that arrive by `until_s`; return their clients, in no particular order of arrival."""
        limit_s = until_s * (1 + TOLERANCE)
        popped: list[tuple[int, IntArray]] = []
        while self._groups and self._groups[0].next_s <= limit_s:
            group = heapq.heappop(self._groups)
            end = int(np.searchsorted(group.arrives_s, limit_s, side="right"))
            current = self._current_id[group.clients[:end]] == group.ids[:end]
            popped.append((group.number, group.clients[:end][current]))
            self._push(group.arrives_s[end:], group.clients[end:], group.ids[end:])
        return np.concatenate([NO_CLIENTS, *(clients for _, clients in sorted(popped, key=lambda entry: entry[0]))])

    def next_s(self) -> float:
        """Return when the next update arrives; inf if none does."""
        while self._groups and self._current_id[self._groups[0].clients[0]] != self._groups[0].ids[0]:
            group = heapq.heappop(self._groups)
            self._push(group.arrives_s[1:], group.clients[1:], group.ids[1:])
        return self._groups[0].next_s if self._groups else np.inf

    def _push(self, arrives_s: FloatArray, clients: IntArray, ids: IntArray) -> None:
        if len(ids):
            heapq.heappush(self._groups, _Group(float(arrives_s[0]), int(ids[0]), arrives_s, clients, ids))
