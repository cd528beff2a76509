"""The server's estimates of its clients' times, from the last few measurements, and the latencies it expects."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import key, normals
from lesson.fleet.fleet import Fleet
from lesson.settings.settings import Settings

PARTS = ("download_s", "compute_s", "upload_s")
TIMES = (*PARTS, "shared_upload_s", "latency_s")


class RecentLatencies:
    """The last five measured latencies of each real client; the estimate is the second longest of them.

    A single slow local training therefore does not move a client to a higher tier, but two of the last five do: this is
    how soon a slower client is noticed. With only one measurement, the estimate is that one. If `first_is_cold`, the
    first measurement of a client can only lower its estimate and is not kept: on first contact, the device installs the
    app, imports libraries and fills its caches, which no later local training has to wait for.
    """

    SAVED = ("seen_s", "is_cold")

    def __init__(self, num_clients: int, *, first_is_cold: bool = False) -> None:
        self.seen_s: FloatArray = np.full((num_clients, 5), np.nan)
        """Measured latencies, newest last; NaN where there are fewer measurements."""
        self.is_cold: BoolArray = np.full(num_clients, first_is_cold)
        """Whether the next measurement of a client is its first one."""

    @property
    def are_known(self) -> BoolArray:
        """Whether there is a measurement of each client."""
        return np.asarray(~np.isnan(self.seen_s[:, -1]))

    def see(self, client: int, seconds: float, estimate_s: float) -> float:
        """Add a measured latency; return the client's new estimate, which was `estimate_s` before."""
        was_cold, self.is_cold[client] = self.is_cold[client], False
        if was_cold:
            return min(seconds, estimate_s)
        self.seen_s[client] = np.append(self.seen_s[client, 1:], seconds)
        longest_last = np.sort(self.seen_s[client][~np.isnan(self.seen_s[client])])
        return float(longest_last[-2:][0])


class LatencyEstimator:
    """The server's latency estimates: `fleet` is a copy of the given fleet, updated with measured times.

    The first estimates are the times of the given fleet. Every estimate is multiplied by a random factor if
    `[server] estimate_error` is set.
    """

    SAVED = ("_seen_s", "_num_seen", "_estimates_s")

    def __init__(self, settings: Settings, fleet: Fleet, seed: int) -> None:
        self._nominal = fleet
        self._estimates_s = {name: getattr(fleet, name).copy() for name in TIMES}
        """Arrays of `fleet`."""
        self.fleet = replace(fleet, **self._estimates_s)
        window = 1 if settings.server.estimate == "last" else settings.server.estimate_window
        self._quantile = settings.server.estimate_quantile if settings.server.estimate == "quantile" else None
        self._seen_s = {name: np.full((len(fleet), window), np.nan) for name in (*PARTS, "latency_s")}
        """Measured times, shape (num_clients, window), newest last; NaN where there are fewer measurements."""
        self._num_seen: IntArray = np.zeros(len(fleet), dtype=np.int64)
        self._error, self._spread = key(seed, "estimate error"), settings.server.estimate_error
        if self._spread:
            # The promoted client's first estimate has no error: otherwise tier 1 might be empty.
            promoted = () if fleet.promoted is None else fleet.promoted.client
            wrong = np.delete(np.arange(len(fleet)), promoted)
            self._set_estimates(wrong, {name: getattr(fleet, name)[wrong] for name in self._seen_s})
        self.first_latency_s = self.fleet.latency_s.copy()

    def see(self, clients: IntArray, took_s: Mapping[str, FloatArray]) -> None:
        """Update the estimates of these clients with the measured duration of each of the PARTS.

        `took_s` holds seconds for the usual local training, even if a client trained more or less than that.
        """
        self._num_seen[clients] += 1
        took_s = {**took_s, "latency_s": sum(took_s.values(), start=np.zeros(len(clients)))}
        self._set_estimates(clients, {name: self._estimate(name, clients, took_s[name]) for name in self._seen_s})

    def _estimate(self, name: str, clients: IntArray, seconds: FloatArray) -> FloatArray:
        """Add a measured time for each of these clients; return the mean or a quantile of the last few."""
        rows = np.concatenate([self._seen_s[name][clients, 1:], seconds[:, None]], axis=1)
        self._seen_s[name][clients] = rows
        counts = np.count_nonzero(~np.isnan(rows), axis=1)
        if self._quantile is None:
            return np.asarray(np.nansum(rows, axis=1) / counts)
        rank = np.ceil(self._quantile * counts * (1 - 1e-12)).astype(np.int64)
        return np.asarray(np.sort(rows, axis=1)[np.arange(len(rows)), rank - 1])

    def _set_estimates(self, clients: IntArray, seconds: Mapping[str, FloatArray]) -> None:
        off = np.exp(self._spread * normals(self._error, clients, self._num_seen[clients])) if self._spread else 1.0
        for name, value_s in seconds.items():
            self._estimates_s[name][clients] = value_s * off
        nominal_s = self._nominal.upload_s[clients]
        known = (nominal_s > 0) & (nominal_s < np.inf)
        slower = np.divide(self.fleet.upload_s[clients], nominal_s, out=np.ones(len(clients)), where=known)
        self.fleet.shared_upload_s[clients] = slower * self._nominal.shared_upload_s[clients]


def expected_latency_s(
    fleet: Fleet,
    clients: IntArray,
    compute_scale: FloatArray,
    upload_scale: FloatArray | float,
    *,
    in_turn: bool,
    now_s: float,
    free_s: float,
) -> FloatArray:
    """Return the expected latency in seconds of clients that start now: download, compute and upload time.

    `compute_scale` multiplies the compute time, and `upload_scale` the upload time. If clients upload in turn
    (`in_turn`), the latency includes waiting for the channel, which is free from `free_s` on.
    """
    compute_s = fleet.download_s[clients] + compute_scale * fleet.compute_s[clients]
    upload_s = upload_scale * (fleet.shared_upload_s if in_turn else fleet.upload_s)[clients]
    if np.any(np.isnan(compute_s + upload_s)):
        raise InputError(
            "this strategy needs compute_s and upload_s of every client, but only their sum is known; add both columns "
            "to the file of latencies or, on Flower, the mod report_times to the client app, or use another strategy"
        )
    if not in_turn:
        return compute_s + upload_s
    begins_s, takes_s = take_turns(now_s + compute_s, free_s, lambda place, _: float(upload_s[place]))
    return begins_s + takes_s - now_s


def take_turns(
    ready_s: FloatArray, free_s: float, upload_s: Callable[[int, float], float], leaves_s: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return when each upload begins and how long it takes, if clients upload one after the other in this order.

    The channel is free from `free_s` on. An upload begins when its client is ready and the previous upload has ended or
    its client has left, at the time in `leaves_s`. `upload_s` returns the duration of an upload, given its place in the
    order and the time at which it begins.
    """
    begins_s, takes_s = np.empty(len(ready_s)), np.empty(len(ready_s))
    for place, ready in enumerate(ready_s.tolist()):
        begins_s[place] = begin_s = max(ready, free_s)
        takes_s[place] = upload_s(place, begin_s)
        end_s = begin_s + takes_s[place]
        free_s = max(free_s, end_s if leaves_s is None else min(end_s, float(leaves_s[place])))
    return begins_s, takes_s
