"""Moving clients: random waypoints, or recorded positions.

A position is a pure function of client and time, bit-identical in whatever order positions are requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key, uniforms

Positions = tuple[FloatArray, FloatArray]
_CHUNK = 65_536
"""Maximum number of legs computed at once, over all clients."""
_STRIDE = 8
"""Cache level l keeps, for each client, the start of the newest leg whose number is a multiple of 8^(l + 1)."""


@dataclass(frozen=True, eq=False)
class _Starts:
    """Start of one leg of each client: number of the leg, time and position; arrays have shape (num_clients,)."""

    leg: IntArray
    time_s: FloatArray
    x_km: FloatArray
    y_km: FloatArray

    def of(self, rows: IntArray) -> "_Starts":
        return _Starts(self.leg[rows], self.time_s[rows], self.x_km[rows], self.y_km[rows])

    def put(self, rows: IntArray, starts: "_Starts") -> None:
        """Overwrite the starts of these rows."""
        self.leg[rows], self.time_s[rows] = starts.leg, starts.time_s
        self.x_km[rows], self.y_km[rows] = starts.x_km, starts.y_km

    def pick(self, rows: IntArray, columns: IntArray) -> "_Starts":
        """Return one start for each of these rows, out of arrays of shape (num_clients, num_legs)."""
        place = rows, columns
        return _Starts(self.leg[place], self.time_s[place], self.x_km[place], self.y_km[place])


class RandomWaypoint:
    """Clients that walk straight to a random point of the square, pause there, and walk on (Johnson, Maltz 1996).

    The square is centered at (0, 0). Client i is at (x_km[i], y_km[i]) at time 0. The speed of each leg is uniform in
    `speed_mps`.

    A leg starts when the previous one ends, so a time far from all previous requests costs a sum over the legs before
    it, less than 0.1 µs per leg and client. Near previously requested times, before or after them, a position costs as
    much at 10⁸ s as at 10 s.
    """

    def __init__(
        self,
        seed: int,
        x_km: FloatArray,
        y_km: FloatArray,
        area_km: float,
        speed_mps: tuple[float, float],
        pause_s: float,
    ) -> None:
        self._key = key(seed, "mobility/waypoint")
        self._home = _Starts(np.zeros(len(x_km), dtype=np.int64), np.zeros(len(x_km)), x_km, y_km)
        # The leg of each client at the last request, so that a clock that moves forward computes every leg once.
        # `_cache` has starts of earlier legs, farther and farther apart, for requests of earlier times.
        self._recent = self._home.of(np.arange(len(x_km)))
        self._cache: list[_Starts] = []
        self._area_km, self._speed_mps, self._pause_s = area_km, speed_mps, pause_s

    def at(self, clients: IntArray, times_s: FloatArray) -> Positions:
        """Return positions x and y in km, each with the shape (num_clients, num_times) of `times_s`.

        Times must be finite and >= 0, and ascend in each row.
        """
        starts = self._starts_at(clients, times_s[:, 0])
        x_km, y_km = np.empty_like(times_s), np.empty_like(times_s)
        rows = np.arange(len(clients))
        while len(rows):
            legs, arrivals_s = self._legs(clients[rows], starts, 1)
            after, arrival_s = legs.pick(np.arange(len(rows)), np.array(0)), arrivals_s[:, 0]
            times = times_s[rows]
            walk_s = np.maximum(arrival_s - starts.time_s, np.finfo(np.float64).tiny)
            share = np.clip((times - starts.time_s[:, None]) / walk_s[:, None], 0, 1)
            # Times after this leg are written as well, and overwritten by the legs they belong to.
            begun = times >= starts.time_s[:, None]
            for values, here, there in ((x_km, starts.x_km, after.x_km), (y_km, starts.y_km, after.y_km)):
                walked = (1 - share) * here[:, None] + share * there[:, None]
                values[rows] = np.where(begun, walked, values[rows])
            going = np.flatnonzero(times[:, -1] >= after.time_s)
            rows, starts = rows[going], after.of(going)
        return x_km, y_km

    def _starts_at(self, clients: IntArray, time_s: FloatArray) -> _Starts:
        """Return the start of the leg that each client is in at its time, and remember it for the next request."""
        starts = self._home.of(clients)
        for cached in (self._recent, *self._cache):
            near = np.flatnonzero((cached.time_s[clients] <= time_s) & (cached.leg[clients] > starts.leg))
            if len(near):
                starts.put(near, cached.of(clients[near]))
        starts = self._walk(clients, starts, time_s)
        self._recent.put(clients, starts)
        return starts

    def _walk(self, clients: IntArray, starts: _Starts, time_s: FloatArray) -> _Starts:
        """Return the start of the leg that each client is in at its time, which must not precede the given start."""
        starts, rows, num_legs = starts.of(np.arange(len(clients))), np.arange(len(clients)), 1
        while len(rows):
            legs, _ = self._legs(clients[rows], starts.of(rows), num_legs)
            passed = np.count_nonzero(time_s[rows][:, None] >= legs.time_s, axis=1)
            over = np.flatnonzero(passed)
            self._store(clients[rows[over]], legs, over, passed[over])
            starts.put(rows[over], legs.pick(over, passed[over] - 1))
            rows = rows[passed == num_legs]
            num_legs = min(2 * num_legs, max(1, _CHUNK // max(1, len(rows))))
        return starts

    def _store(self, clients: IntArray, legs: _Starts, rows: IntArray, passed: IntArray) -> None:
        """Cache the newest start of each level among the first `passed` legs of these rows."""
        last = legs.leg[rows, passed - 1]
        stride, level = _STRIDE, 0
        while stride <= last.max(initial=0):
            if level == len(self._cache):
                self._cache.append(self._home.of(np.arange(len(self._home.leg))))
            newest = last - last % stride
            new = np.flatnonzero((newest >= legs.leg[rows, 0]) & (newest > self._cache[level].leg[clients]))
            self._cache[level].put(clients[new], legs.pick(rows[new], (newest - legs.leg[rows, 0])[new]))
            stride, level = stride * _STRIDE, level + 1

    def _legs(self, clients: IntArray, starts: _Starts, num_legs: int) -> tuple[_Starts, FloatArray]:
        """Return the starts of the next `num_legs` legs, and when the client arrives there, before it pauses.

        All arrays have shape (num_clients, num_legs); they do not depend on how legs are batched.
        """
        leg = starts.leg[:, None] + np.arange(num_legs)
        x, y, speed = uniforms(self._key, clients[:, None], leg, np.arange(3)[:, None, None])
        x_km, y_km = (x - 0.5) * self._area_km, (y - 0.5) * self._area_km
        slowest_mps, fastest_mps = self._speed_mps
        east_km = np.diff(x_km, axis=1, prepend=starts.x_km[:, None])
        north_km = np.diff(y_km, axis=1, prepend=starts.y_km[:, None])
        length_m = 1000 * np.hypot(east_km, north_km)
        # Walks and pauses are summed one by one, so that rounding is the same for any number of legs.
        steps_s = np.empty((len(clients), 2 * num_legs + 1))
        steps_s[:, 0], steps_s[:, 2::2] = starts.time_s, self._pause_s
        steps_s[:, 1::2] = length_m / (slowest_mps + (fastest_mps - slowest_mps) * speed)
        times_s = np.add.accumulate(steps_s, axis=1)
        return _Starts(leg + 1, times_s[:, 2::2], x_km, y_km), times_s[:, 1::2]


class Itinerary:
    """Clients that follow recorded waypoints: times in s, ascending, and x and y in km for each client.

    They move at constant speed between two waypoints, and stand still before the first and after the last.
    """

    def __init__(self, waypoints: Sequence[tuple[FloatArray, FloatArray, FloatArray]]) -> None:
        counts = np.array([len(times_s) for times_s, _, _ in waypoints])
        self._last = np.cumsum(counts) - 1
        self._first = self._last - counts + 1
        self._times_s, self._x_km, self._y_km = map(np.concatenate, zip(*waypoints, strict=True))
        self._halvings = int(counts.max()).bit_length()

    def at(self, clients: IntArray, times_s: FloatArray) -> Positions:
        """Return positions x and y in km at `times_s`; all have shape (num_clients, num_times)."""
        last = self._last[clients][:, None]
        low = np.broadcast_to(self._first[clients][:, None], times_s.shape)
        high = np.broadcast_to(last, times_s.shape)
        for _ in range(self._halvings):
            middle = (low + high + 1) // 2
            later = self._times_s[middle] > times_s
            low, high = np.where(later, low, middle), np.where(later, np.maximum(middle - 1, low), high)
        after = np.minimum(low + 1, last)
        walk_s = np.where(after > low, self._times_s[after] - self._times_s[low], 1.0)
        share = np.clip((times_s - self._times_s[low]) / walk_s, 0, 1)
        x_km, y_km = ((1 - share) * values[low] + share * values[after] for values in (self._x_km, self._y_km))
        return x_km, y_km
