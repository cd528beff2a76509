"""Availability of clients, as given by a presence file and interrupted by disconnections."""

import heapq

import numpy as np

from lesson.core.arrays import FloatArray, IntArray, distinct
from lesson.fleet.traces import Presence


class Availability:
    """When clients join and leave, from the presence file and disconnections; arrays have shape (num_clients,)."""

    SAVED = ("back_s", "_returns")

    def __init__(self, num_clients: int, presence: Presence) -> None:
        self._presence = presence
        self.back_s: FloatArray = np.zeros(num_clients)
        """When each client rejoins after its latest disconnection: inf if never, 0 if it has not disconnected."""
        self._returns: list[tuple[float, int]] = []
        """Heap of upcoming (time, client) pairs of clients that rejoin."""

    def drop_out(self, clients: IntArray, back_s: FloatArray) -> None:
        """Disconnect these clients until `back_s`, which may be inf."""
        self.back_s[clients] = back_s
        for client, at_s in zip(clients.tolist(), back_s.tolist(), strict=True):
            if at_s < np.inf:
                heapq.heappush(self._returns, (at_s, client))

    def next_change_s(self, now_s: float) -> float:
        """Return the next time after `now_s` at which a client may join or leave; inf if there is none."""
        return min(self._next_return_s(), self._presence.next_change_s(now_s))

    def next_arrival_s(self, now_s: float) -> float:
        """Return the next time after `now_s` at which a client may join; inf if there is none."""
        return min(self._next_return_s(), self._presence.next_arrival_s(now_s))

    def changes(self, after_s: float, until_s: float) -> tuple[IntArray, IntArray]:
        """Return the clients that joined and those that left between `after_s` and `until_s`, both sorted.

        Clients that left are those that leave according to the file, not those passed to `drop_out`. A client that
        rejoins is returned once, so `until_s` must not decrease from call to call.
        """
        came, left = self._presence.changes(after_s, until_s)
        came, back = came[self.back_s[came] <= until_s], self._come_back(until_s)
        return distinct([came, back[self._presence.leaves_s(back, until_s) > until_s]]), left

    def _come_back(self, until_s: float) -> IntArray:
        back = []
        while self._returns and self._returns[0][0] <= until_s:
            back.append(heapq.heappop(self._returns)[1])
        return np.array(back, dtype=np.int64)

    def _next_return_s(self) -> float:
        return self._returns[0][0] if self._returns else np.inf
