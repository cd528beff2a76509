"""Who is there: by a file of intervals, and as clients drop out and come back."""

import heapq

import numpy as np

from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray, distinct
from lesson.fleet.traces import Presence


class Attendance:
    """Who comes and leaves when; arrays are (num_clients,)."""

    def __init__(self, num_clients: int, presence: Presence | None = None) -> None:
        self._presence = presence
        self.back_s: FloatArray = np.zeros(num_clients)
        """When each client is back that has dropped out; infinite if never."""
        self._returns: list[tuple[float, int]] = []
        """Those to come, the next first."""

    def drop_out(self, clients: IntArray, back_s: FloatArray) -> None:
        """Have these clients be away until then."""
        self.back_s[clients] = back_s
        for client, at_s in zip(clients.tolist(), back_s.tolist(), strict=True):
            if at_s < np.inf:
                heapq.heappush(self._returns, (at_s, client))

    def is_there(self, now_s: float) -> BoolArray:
        """Whether each client is there."""
        there: BoolArray = self.back_s <= now_s
        return there if self._presence is None else there & self._presence.is_there(now_s)

    def next_change_s(self, now_s: float) -> float:
        """The next time after `now_s` at which anybody may come or leave; infinite if there is none."""
        return min(self._next_return_s(), np.inf if self._presence is None else self._presence.next_change_s(now_s))

    def next_arrival_s(self, now_s: float) -> float:
        """The next time after `now_s` at which anybody may come; infinite if there is none."""
        return min(self._next_return_s(), np.inf if self._presence is None else self._presence.next_arrival_s(now_s))

    def changes(self, after_s: float, until_s: float) -> tuple[IntArray, IntArray]:
        """Who is there at `until_s` and was not at `after_s`, and who leaves by a file meanwhile, sorted.

        Times never go back: whoever comes back by `until_s` is told of once.
        """
        came, left = (NO_CLIENTS, NO_CLIENTS) if self._presence is None else self._presence.changes(after_s, until_s)
        came, back = came[self.back_s[came] <= until_s], self._come_back(until_s)
        if self._presence is not None and len(back):
            back = back[self._presence.leaves_s(back, until_s) > until_s]
        return distinct([came, back]), left

    def restore(self, back_s: FloatArray, now_s: float) -> None:
        """Go on at a time from `back_s` as it was then."""
        self.back_s[:] = back_s
        away = np.flatnonzero((back_s > now_s) & np.isfinite(back_s))
        self._returns = sorted(zip(back_s[away].tolist(), away.tolist(), strict=True))

    def _come_back(self, until_s: float) -> IntArray:
        back = []
        while self._returns and self._returns[0][0] <= until_s:
            back.append(heapq.heappop(self._returns)[1])
        return np.array(back, dtype=np.int64)

    def _next_return_s(self) -> float:
        return self._returns[0][0] if self._returns else np.inf
