"""Simulated time in which channels, compute speed and availability change, and the server estimates latencies."""

import heapq
from typing import Any

import numpy as np

from lesson.clock.estimates import LatencyEstimator
from lesson.clock.faults import Disconnections
from lesson.clock.ledger import Ledger
from lesson.clock.resources import size_scale
from lesson.clock.worlds.actual_times import ActualTimes
from lesson.clock.worlds.base import Collected, closing_time
from lesson.core.arrays import BoolArray, FloatArray, distinct
from lesson.core.errors import InputError
from lesson.core.state import Arrays, restore_state, state_of
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE
from lesson.fleet.traces import Presence, WorkTrace
from lesson.settings.settings import Settings
from lesson.strategies.base import NO_UPDATES, Closing, Updates


class VaryingWorld:
    """A world in which actual times differ from the server's estimates, and clients join, leave and disconnect."""

    SAVED = ("_times", "_estimator", "_back_s", "_returns", "_noted_s", "_num_refreshed")
    varies = True

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        seed: int,
        disconnections: Disconnections | None = None,
        trace: WorkTrace | None = None,
        presence: Presence | None = None,
    ) -> None:
        self._times = ActualTimes(settings, fleet, seed, disconnections, trace, presence)
        self._estimator = LatencyEstimator(settings, fleet, seed)
        self.fleet, self.first_latency_s = self._estimator.fleet, self._estimator.first_latency_s
        self._presence = self._times.presence
        self._back_s: FloatArray = np.zeros(len(fleet))
        """When each client rejoins after the latest disconnection that the server noticed: inf if never, 0 if none."""
        self._returns: list[tuple[float, int]] = []
        """Heap of upcoming (time, client) pairs of clients that rejoin after a disconnection."""
        self._clients_come_and_go = disconnections is not None or self._presence.next_change_s(-np.inf) < np.inf
        self.connected: BoolArray = self.fleet.reachable & self._presence.is_available(0.0)
        self._noted_s = 0.0
        """Time up to which clients that joined or left have been connected or disconnected in the ledger."""
        self._refresh_every_s, self._num_refreshed = settings.server.refresh_estimates_every_s, 0
        self._overhead_s = settings.server.overhead_s
        self._has_measured_times_or_shared_band = bool(settings.fleet.trace) or settings.radio.spectrum != "fixed"

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:
        """Return when the round opens: after the overhead of an aggregation, or when a client joins.

        It waits for a client only if none is connected and no update is pending. Estimates of idle clients are
        refreshed every `refresh_estimates_every_s`.
        """
        now_s += self._overhead_s * ledger.version_is_new
        self._note_changes(ledger, now_s)
        while ledger.is_deserted:
            if round == 1 and not self._clients_come_and_go:
                break  # the strategy handles a run that begins without clients
            joins_s = min(self._next_return_s(), self._presence.next_arrival_s(now_s))
            if joins_s > until_s * (1 + TOLERANCE) or joins_s == np.inf:
                return joins_s
            now_s = joins_s
            self._note_changes(ledger, now_s)
        self._refresh_estimates(ledger, now_s)
        return now_s

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> FloatArray:
        """Start the updates; return when they arrive or when the server notices that they are lost."""
        if not len(updates):
            return updates.arrived_s
        free_s = ledger.final_arrival_s() if updates.in_turn.any() else None
        upload_scale, resources = updates.upload_scale, ledger.resources
        if resources is not None:
            if self._has_measured_times_or_shared_band:
                raise InputError("RoundPlan.allocation cannot be combined with [radio] spectrum or [fleet] trace")
            upload_scale = size_scale(self.fleet, updates)  # the server's estimates do not determine actual rates
        return self._times.launch(
            updates.client, updates.index, updates.compute_scale, upload_scale, now_s, free_s, resources
        )

    def cancel(self, updates: Updates) -> None:
        """Remove canceled uploads from the shared band."""
        self._times.leave_band(updates.client, dropped=True)

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:  # noqa: ARG002
        self._times.forecast(ledger)
        return closing_time(closes, ledger, now_s)

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        """Separate updates that arrived from those that were lost, and update estimates with the measured times."""
        self._times.pass_time(now_s)
        self._times.leave_band(due.client)
        lost, arrived, is_lost = NO_UPDATES, due, self._times.lost[due.client]
        if is_lost.any():
            lost, arrived = due[is_lost], due[~is_lost]
            offline = lost.client[self._times.back_s[lost.client] > now_s]
            self._back_s[offline] = back_s = self._times.back_s[offline]
            for client, at_s in zip(offline.tolist(), back_s.tolist(), strict=True):
                if at_s < np.inf:
                    heapq.heappush(self._returns, (at_s, client))
            ledger.disconnect(offline, for_good=np.isinf(back_s))
        self._estimator.see(arrived.client, self._times.parts_s(arrived, ledger.resources))
        self._note_changes(ledger, now_s)
        return Collected(arrived, lost)

    def release(self, updates: Updates) -> None:
        """Do nothing: no models are held here."""

    def next_change_s(self, now_s: float) -> float:
        return min(self._next_return_s(), self._presence.next_change_s(now_s))

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        return self._times.energy_j(updates, elapsed_s)

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], Arrays]:  # noqa: ARG002
        return state_of(self)

    def restore(self, values: dict[str, Any], arrays: Arrays, ledger: Ledger, now_s: float) -> None:  # noqa: ARG002
        restore_state(self, values, arrays)

    def _note_changes(self, ledger: Ledger, now_s: float) -> None:
        """Connect clients that have joined since the last call, and disconnect those that have left."""
        if not self._clients_come_and_go or now_s == self._noted_s:
            return
        came, left = self._presence.changes(self._noted_s, now_s)
        self._noted_s = now_s
        returned = []
        while self._next_return_s() <= now_s:
            returned.append(heapq.heappop(self._returns)[1])
        back = np.array(returned, dtype=np.int64)
        back = back[self._presence.leaves_s(back, now_s) > now_s]
        joined = distinct([came[self._back_s[came] <= now_s], back])
        ledger.disconnect(left)
        ledger.connect(joined[np.isfinite(self.fleet.latency_s[joined])])

    def _next_return_s(self) -> float:
        return self._returns[0][0] if self._returns else np.inf

    def _refresh_estimates(self, ledger: Ledger, now_s: float) -> None:
        """Ask all idle clients for their current times once per `refresh_estimates_every_s`."""
        due = int(now_s * (1 + TOLERANCE) / self._refresh_every_s)
        if due > self._num_refreshed:
            self._num_refreshed = due
            idle = np.flatnonzero(ledger.idle)
            self._estimator.see(idle, self._times.asked_s(idle, now_s))
            ledger.reconsider(idle)
