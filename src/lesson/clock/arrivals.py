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
    """Clients that started together, in order of arrival. Groups are sorted by the time and id of their next one."""

    next_s: float
    number: int
    arrives_s: FloatArray
    clients: IntArray
    ids: IntArray


class ArrivalQueue:
    """Priority queue of updates. `current_id` holds the id of each client's update in flight, shape (num_clients,).

    To remove an update, change its client's entry in `current_id`: the queue skips updates whose id is not current.
    """

    def __init__(self, current_id: IntArray) -> None:
        self._current_id = current_id
        self._groups: list[_Group] = []

    def add(self, arrives_s: FloatArray, clients: IntArray, ids: IntArray) -> None:
        """Add updates, which must be sorted by id; updates with an infinite arrival time are left out."""
        order = arrives_s.argsort(kind="stable")
        self._push(arrives_s[order], clients[order], ids[order], 0)

    def pop(self, until_s: float) -> IntArray:
        """Remove the updates that arrive by `until_s` and return their clients.

        They are not sorted by arrival, but clients whose updates arrive at the same time are in order of start.
        """
        limit_s = until_s * (1 + TOLERANCE)
        popped: dict[int, IntArray] = {}
        while self._groups and self._groups[0].next_s <= limit_s:
            _, number, arrives_s, clients, ids = heapq.heappop(self._groups)
            end = int(arrives_s.searchsorted(limit_s, side="right"))
            due = clients[:end]
            popped[number] = due[self._current_id[due] == ids[:end]]
            self._push(arrives_s, clients, ids, end)
        parts = [popped[number] for number in sorted(popped)]
        return parts[0] if len(parts) == 1 else np.concatenate([NO_CLIENTS, *parts])

    def next_s(self) -> float:
        """Return when the next update arrives; inf if there is none."""
        while self._groups and self._current_id[self._groups[0].clients[0]] != self._groups[0].ids[0]:
            group = heapq.heappop(self._groups)
            self._push(group.arrives_s, group.clients, group.ids, 1)
        return self._groups[0].next_s if self._groups else np.inf

    def _push(self, arrives_s: FloatArray, clients: IntArray, ids: IntArray, begin: int) -> None:
        """Add a group without its first `begin` clients, if others remain that will arrive."""
        if begin < len(ids) and (next_s := float(arrives_s[begin])) < np.inf:
            group = _Group(next_s, int(ids[begin]), arrives_s[begin:], clients[begin:], ids[begin:])
            heapq.heappush(self._groups, group)
