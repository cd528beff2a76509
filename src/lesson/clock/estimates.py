"""What a server believes of its clients' times, by the last few it has seen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key, normals
from lesson.fleet.fleet import Fleet
from lesson.settings.settings import Settings

PARTS = ("download_s", "compute_s", "upload_s")
TIMES = (*PARTS, "shared_upload_s", "latency_s")


class SlidingWindow:
    """The last few times seen of each client; what is believed is their mean, or a quantile of them."""

    def __init__(self, num_clients: int, window: int, quantile: float | None = None) -> None:
        self.seen_s: FloatArray = np.full((num_clients, window), np.nan)
        """(num_clients, window), the newest last; NaN where less has been seen."""
        self._quantile = quantile

    def see(self, clients: IntArray, seconds: FloatArray) -> FloatArray:
        """Take in how long each of these clients took; what is believed of them now, (len(clients),)."""
        rows = np.concatenate([self.seen_s[clients, 1:], seconds[:, None]], axis=1)
        self.seen_s[clients] = rows
        counts = np.count_nonzero(~np.isnan(rows), axis=1)
        if self._quantile is None:
            return np.asarray(np.nansum(rows, axis=1) / counts)
        rank = np.ceil(self._quantile * counts * (1 - 1e-12)).astype(np.int64)
        return np.asarray(np.sort(rows, axis=1)[np.arange(len(rows)), rank - 1])

    def forget(self, client: int) -> None:
        """Begin anew with a client."""
        self.seen_s[client] = np.nan


def conservative_window(num_clients: int) -> SlidingWindow:
    """For real clients: the second longest of the last five, of two the longer. A client is then rarely later than
    believed, and one that was slow once is not taken for a slow one."""
    return SlidingWindow(num_clients, 5, 2 / 3)


class LatencyEstimator:
    """What a server believes of its clients, in the arrays of a fleet of its own, corrected by what it sees.

    It begins with what the fleet says. Every estimate is off by a factor of its own if the scenario says so.
    """

    def __init__(self, settings: Settings, fleet: Fleet, seed: int) -> None:
        self._nominal = fleet
        self.fleet = replace(fleet, **{name: getattr(fleet, name).copy() for name in TIMES})
        window = 1 if settings.server.estimate == "last" else settings.server.estimate_window
        quantile = settings.server.estimate_quantile if settings.server.estimate == "quantile" else None
        self._recent = {name: SlidingWindow(len(fleet), window, quantile) for name in (*PARTS, "latency_s")}
        self._num_seen: IntArray = np.zeros(len(fleet), dtype=np.int64)
        self._error, self._spread = key(seed, "estimate error"), settings.server.estimate_error
        if self._spread:
            # Whoever is taken as the deadline is believed to be: nobody else might be in tier 1.
            promoted = () if fleet.promoted is None else fleet.promoted.client
            wrong = np.delete(np.arange(len(fleet)), promoted)
            self._believe(wrong, {name: getattr(fleet, name)[wrong] for name in self._recent})
        self.first_latency_s = self.fleet.latency_s.copy()

    def see(self, clients: IntArray, took_s: Mapping[str, FloatArray]) -> None:
        """Take in how long the PARTS of the usual work took each of these clients, apart from how much it was."""
        self._num_seen[clients] += 1
        seen_s = {**took_s, "latency_s": sum(took_s.values(), start=np.zeros(len(clients)))}
        self._believe(clients, {name: recent.see(clients, seen_s[name]) for name, recent in self._recent.items()})

    def _believe(self, clients: IntArray, seconds: Mapping[str, FloatArray]) -> None:
        off = np.exp(self._spread * normals(self._error, clients, self._num_seen[clients])) if self._spread else 1.0
        for name, value_s in seconds.items():
            getattr(self.fleet, name)[clients] = value_s * off
        nominal_s = self._nominal.upload_s[clients]
        known = (nominal_s > 0) & (nominal_s < np.inf)
        slower = np.divide(self.fleet.upload_s[clients], nominal_s, out=np.ones(len(clients)), where=known)
        self.fleet.shared_upload_s[clients] = slower * self._nominal.shared_upload_s[clients]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as arrays, for `restore`."""
        seen = {f"seen.{name}": recent.seen_s for name, recent in self._recent.items()}
        return seen | {"num_seen": self._num_seen} | {name: getattr(self.fleet, name) for name in TIMES}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        for name, array in self.state().items():
            array[:] = state[name]
