"""Clients that move: at random from waypoint to waypoint, or as an itinerary says.

A position is a pure function of the client and the time: the same bits whatever was asked before, in whatever order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import key, uniforms

Positions = tuple[FloatArray, FloatArray]
_CHUNK = 65_536
"""Legs that are walked at once, at most."""
_STRIDE = 8
"""Starts are kept of legs whose number is a multiple of 8, 64, 512, …: the newest of each kind."""


@dataclass(frozen=True, eq=False)
class _Starts:
    """Where legs of clients begin; arrays are (num_clients,)."""

    leg: IntArray
    time_s: FloatArray
    x_km: FloatArray
    y_km: FloatArray

    def of(self, rows: IntArray) -> "_Starts":
        return _Starts(self.leg[rows], self.time_s[rows], self.x_km[rows], self.y_km[rows])

    def put(self, rows: IntArray, starts: "_Starts") -> None:
        """Write these starts over those of some rows."""
        self.leg[rows], self.time_s[rows] = starts.leg, starts.time_s
        self.x_km[rows], self.y_km[rows] = starts.x_km, starts.y_km

    def pick(self, rows: IntArray, columns: IntArray) -> "_Starts":
        """One start of each of some rows, where arrays are (num_clients, num_legs)."""
        place = rows, columns
        return _Starts(self.leg[place], self.time_s[place], self.x_km[place], self.y_km[place])


class RandomWaypoint:
    """Clients that walk straight to a place drawn from the square, pause there, and walk on (Johnson, Maltz 1996).

    The square has its center at (0, 0). Client i is at (x_km[i], y_km[i]) at time 0. Every leg has a speed of its own,
    uniform between the two given.

    A leg starts when the one before it ends, so a time that is far from all that were asked for costs a sum over the
    legs before it, at less than 0.1 µs per leg and client. Around the times that were asked for, forward or back, a
    position costs as much at 10⁸ s as at 10 s.
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
        # The leg each client was in when last asked for, so that a clock moving forward walks every leg once. Behind it
        # are starts of earlier legs, farther and farther apart, to look up earlier times.
        self._known = self._home.of(np.arange(len(x_km)))
        self._kept: list[_Starts] = []
        usual_mps = (speed_mps[0] + speed_mps[1]) / 2
        self._usual_s = 1000 * area_km / 2 / usual_mps + pause_s  # the mean distance is about half a side
        self._area_km, self._speed_mps, self._pause_s = area_km, speed_mps, pause_s

    def at(self, clients: IntArray, times_s: FloatArray) -> Positions:
        """Positions x and y in km, (num_clients, num_times), of these clients at their times, which ascend in a row."""
        if not np.all((times_s >= 0) & (times_s < np.inf)):
            raise InputError("times_s must be >= 0 and finite; where a client that never stops ends has no answer")
        starts = self._starts_at(clients, times_s[:, 0])
        x_km, y_km = np.empty_like(times_s), np.empty_like(times_s)
        rows = np.arange(len(clients))
        while len(rows):
            after, arrival_s = self._leg(clients[rows], starts)
            times = times_s[rows]
            walk_s = np.maximum(arrival_s - starts.time_s, np.finfo(np.float64).tiny)
            share = np.clip((times - starts.time_s[:, None]) / walk_s[:, None], 0, 1)
            # Times beyond this leg are written too, and written over by the legs they lie in.
            begun = times >= starts.time_s[:, None]
            for values, here, there in ((x_km, starts.x_km, after.x_km), (y_km, starts.y_km, after.y_km)):
                walked = (1 - share) * here[:, None] + share * there[:, None]
                values[rows] = np.where(begun, walked, values[rows])
            going = np.flatnonzero(times[:, -1] >= after.time_s)
            rows, starts = rows[going], after.of(going)
            self._skip(clients[rows], starts, times[going])
        return x_km, y_km

    def _skip(self, clients: IntArray, starts: _Starts, times_s: FloatArray) -> None:
        """Move starts on to the leg in which the next of their times lies, where that is many legs away."""
        ahead = np.count_nonzero(times_s < starts.time_s[:, None], axis=1)
        next_s = times_s[np.arange(len(times_s)), ahead]
        far = np.flatnonzero(next_s - starts.time_s > _STRIDE * self._usual_s)
        if len(far):
            starts.put(far, self._walk(clients[far], starts.of(far), next_s[far]))

    def _starts_at(self, clients: IntArray, time_s: FloatArray) -> _Starts:
        """The starts of the legs in which clients are at a time each, kept for the next time."""
        starts = self._home.of(clients)
        for kept in (self._known, *self._kept):
            near = np.flatnonzero((kept.time_s[clients] <= time_s) & (kept.leg[clients] > starts.leg))
            if len(near):
                starts.put(near, kept.of(clients[near]))
        starts = self._walk(clients, starts, time_s)
        self._known.put(clients, starts)
        return starts

    def _walk(self, clients: IntArray, starts: _Starts, time_s: FloatArray) -> _Starts:
        """The starts of the legs in which clients are at a time each, which is not before the given starts."""
        starts, rows, num_legs = starts.of(np.arange(len(clients))), np.arange(len(clients)), 1
        while len(rows):
            legs = self._legs(clients[rows], starts.of(rows), num_legs)
            passed = np.count_nonzero(time_s[rows][:, None] >= legs.time_s, axis=1)
            over = np.flatnonzero(passed)
            self._keep(clients[rows[over]], legs, over, passed[over])
            starts.put(rows[over], legs.pick(over, passed[over] - 1))
            rows = rows[passed == num_legs]
            num_legs = min(2 * num_legs, max(1, _CHUNK // max(1, len(rows))))
        return starts

    def _keep(self, clients: IntArray, legs: _Starts, rows: IntArray, passed: IntArray) -> None:
        """Keep the newest starts of each kind among the first legs, as many as were passed, of some rows."""
        last = legs.leg[rows, passed - 1]
        stride, level = _STRIDE, 0
        while stride <= last.max(initial=0):
            if level == len(self._kept):
                self._kept.append(self._home.of(np.arange(len(self._home.leg))))
            newest = last - last % stride
            new = np.flatnonzero((newest >= legs.leg[rows, 0]) & (newest > self._kept[level].leg[clients]))
            self._kept[level].put(clients[new], legs.pick(rows[new], (newest - legs.leg[rows, 0])[new]))
            stride, level = stride * _STRIDE, level + 1

    def _legs(self, clients: IntArray, starts: _Starts, num_legs: int) -> _Starts:
        """The starts of so many legs after these, (num_clients, num_legs): the bits of one `_leg` after the other."""
        if num_legs == 1:
            after, _ = self._leg(clients, starts)
            return _Starts(after.leg[:, None], after.time_s[:, None], after.x_km[:, None], after.y_km[:, None])
        leg = starts.leg[:, None] + np.arange(num_legs)
        x, y, speed = uniforms(self._key, clients[:, None], leg, np.arange(3)[:, None, None])
        x_km, y_km = (x - 0.5) * self._area_km, (y - 0.5) * self._area_km
        slowest_mps, fastest_mps = self._speed_mps
        east_km = np.diff(x_km, axis=1, prepend=starts.x_km[:, None])
        north_km = np.diff(y_km, axis=1, prepend=starts.y_km[:, None])
        length_m = 1000 * np.hypot(east_km, north_km)
        # Times are summed up one after the other, as the clients walk and pause.
        steps_s = np.empty((len(clients), 2 * num_legs + 1))
        steps_s[:, 0], steps_s[:, 2::2] = starts.time_s, self._pause_s
        steps_s[:, 1::2] = length_m / (slowest_mps + (fastest_mps - slowest_mps) * speed)
        return _Starts(leg + 1, np.add.accumulate(steps_s, axis=1)[:, 2::2], x_km, y_km)

    def _leg(self, clients: IntArray, starts: _Starts) -> tuple[_Starts, FloatArray]:
        """Where and when the legs after these start, and when clients arrive there, before their pause."""
        x, y, speed = uniforms(self._key, clients, starts.leg, np.arange(3)[:, None])
        x_km, y_km = (x - 0.5) * self._area_km, (y - 0.5) * self._area_km
        slowest_mps, fastest_mps = self._speed_mps
        length_m = 1000 * np.hypot(x_km - starts.x_km, y_km - starts.y_km)
        arrival_s = starts.time_s + length_m / (slowest_mps + (fastest_mps - slowest_mps) * speed)
        return _Starts(starts.leg + 1, arrival_s + self._pause_s, x_km, y_km), arrival_s


class Itinerary:
    """Clients that are where they were seen: per client times, x and y of its waypoints, times ascending.

    Straight and steady between two waypoints; standing before the first and after the last.
    """

    def __init__(self, waypoints: Sequence[tuple[FloatArray, FloatArray, FloatArray]]) -> None:
        for client, (times_s, x_km, y_km) in enumerate(waypoints):
            if not 0 < len(times_s) == len(x_km) == len(y_km):
                raise InputError(
                    f"waypoints of client {client} must be as many times_s, x_km and y_km, at least one, "
                    f"got {len(times_s)}, {len(x_km)} and {len(y_km)}"
                )
            if np.any(np.diff(times_s) <= 0):
                raise InputError(f"times_s of client {client} must ascend; sort its waypoints and drop repeated ones")
        counts = np.array([len(times_s) for times_s, _, _ in waypoints])
        self._last = np.cumsum(counts) - 1
        self._first = self._last - counts + 1
        self._times_s, self._x_km, self._y_km = map(np.concatenate, zip(*waypoints, strict=True))
        self._halvings = int(counts.max()).bit_length()

    def at(self, clients: IntArray, times_s: FloatArray) -> Positions:
        """Positions x and y in km, (num_clients, num_times), of these clients at their times."""
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
