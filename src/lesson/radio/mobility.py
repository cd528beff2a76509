"""Moving clients: random waypoints, or recorded positions.

A position is a pure function of client and time, bit-identical in whatever order positions are requested.
"""

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key, uniforms

Positions = tuple[FloatArray, FloatArray]
_CHUNK = 65_536
"""Maximum number of legs computed at once, over all clients."""


class RandomWaypoint:
    """Clients that walk straight to a random point of the square, pause there, and walk on (Johnson, Maltz 1996).

    The square is centered at (0, 0). Client i is at (x_km[i], y_km[i]) at time 0. The speed of each leg is uniform in
    `speed_mps`.

    A leg starts when the previous one ends, so a step forward costs a sum over the legs that it passes, and a step back
    a sum over all legs before it: less than 0.1 µs per leg and client.
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
        self._home: FloatArray = np.array([np.zeros(len(x_km)), np.zeros(len(x_km)), x_km, y_km])
        """Start of each client's first leg: number of the leg, time and position, shape (4, num_clients)."""
        self._recent = self._home.copy()
        """The same of the leg at the last request, so that a clock that moves forward computes every leg once."""
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
            after, (_, start_s, *here) = legs[:, :, 0], starts[:, :, None]
            times = times_s[rows]
            walk_s = np.maximum(arrivals_s - start_s, np.finfo(np.float64).tiny)
            share = np.clip((times - start_s) / walk_s, 0, 1)
            # Times after this leg are written as well, and overwritten by the legs they belong to.
            for values, begin_km, end_km in zip((x_km, y_km), here, after[2:, :, None], strict=True):
                walked = (1 - share) * begin_km + share * end_km
                values[rows] = np.where(times >= start_s, walked, values[rows])
            going = np.flatnonzero(times[:, -1] >= after[1])
            rows, starts = rows[going], after[:, going]
        return x_km, y_km

    def _starts_at(self, clients: IntArray, time_s: FloatArray) -> FloatArray:
        """Return the start of the leg that each client is in at its time, shape (4, len(clients))."""
        recent = self._recent[:, clients]
        starts: FloatArray = np.where(recent[1] <= time_s, recent, self._home[:, clients])
        rows, num_legs = np.arange(len(clients)), 1
        while len(rows):
            legs, _ = self._legs(clients[rows], starts[:, rows], num_legs)
            passed = np.count_nonzero(time_s[rows, None] >= legs[1], axis=1)
            over = np.flatnonzero(passed)
            starts[:, rows[over]] = legs[:, over, passed[over] - 1]
            rows = rows[passed == num_legs]
            num_legs = min(2 * num_legs, max(1, _CHUNK // max(1, len(rows))))
        self._recent[:, clients] = starts
        return starts

    def _legs(self, clients: IntArray, starts: FloatArray, num_legs: int) -> tuple[FloatArray, FloatArray]:
        """Return the starts of the next `num_legs` legs, and when the client arrives there, before it pauses.

        Shapes (4, num_clients, num_legs) and (num_clients, num_legs); values do not depend on how legs are batched.
        """
        first, start_s, start_x_km, start_y_km = starts[:, :, None]
        leg = first.astype(np.int64) + np.arange(num_legs)
        x, y, speed = uniforms(self._key, clients[:, None], leg, np.arange(3)[:, None, None])
        x_km, y_km = (x - 0.5) * self._area_km, (y - 0.5) * self._area_km
        slowest_mps, fastest_mps = self._speed_mps
        east_km = np.diff(x_km, axis=1, prepend=start_x_km)
        north_km = np.diff(y_km, axis=1, prepend=start_y_km)
        length_m = 1000 * np.hypot(east_km, north_km)
        # Walks and pauses are summed one by one, so that rounding is the same for any number of legs.
        steps_s = np.empty((len(clients), 2 * num_legs + 1))
        steps_s[:, :1], steps_s[:, 2::2] = start_s, self._pause_s
        steps_s[:, 1::2] = length_m / (slowest_mps + (fastest_mps - slowest_mps) * speed)
        times_s = np.add.accumulate(steps_s, axis=1)
        return np.array([leg + 1, times_s[:, 2::2], x_km, y_km]), times_s[:, 1::2]


class Itinerary:
    """Clients that follow recorded waypoints.

    They move at constant speed between two waypoints, and stand still before the first and after the last.

    Args:
        waypoints: Times in s, client by client and ascending within each; x and y in km; and the place of each client's
            first waypoint, with the number of waypoints at the end.
    """

    def __init__(self, waypoints: tuple[FloatArray, FloatArray, FloatArray, IntArray]) -> None:
        self._times_s, self._x_km, self._y_km, offsets = waypoints
        self._first, self._last = offsets[:-1], offsets[1:] - 1
        self._sorted_s = np.sort(self._times_s)
        self._keys = self._key(np.repeat(np.arange(len(self._first)), np.diff(offsets)), self._times_s)

    def at(self, clients: IntArray, times_s: FloatArray) -> Positions:
        """Return positions x and y in km at `times_s`; all have shape (num_clients, num_times)."""
        clients = clients[:, None]
        places = np.searchsorted(self._keys, self._key(clients, times_s), side="right") - 1
        low = np.maximum(places, self._first[clients])
        after = np.minimum(low + 1, self._last[clients])
        walk_s = np.where(after > low, self._times_s[after] - self._times_s[low], 1.0)
        share = np.clip((times_s - self._times_s[low]) / walk_s, 0, 1)
        x_km, y_km = ((1 - share) * values[low] + share * values[after] for values in (self._x_km, self._y_km))
        return x_km, y_km

    def _key(self, clients: IntArray, times_s: FloatArray) -> IntArray:
        """Return integers in the order of (client, time), equal for times between the same two waypoints."""
        return clients * (len(self._sorted_s) + 1) + np.searchsorted(self._sorted_s, times_s, side="right")
