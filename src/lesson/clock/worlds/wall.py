"""Real time, in which remote clients connect, disconnect and reply."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lesson.clock.estimates import TIMES, RecentLatencies
from lesson.clock.ledger import Ledger
from lesson.clock.records import named_clients, rejection_line
from lesson.clock.rejections import ALREADY_SEEN, OF_CONTENT, Rejection
from lesson.clock.worlds.base import Collected, closing_time, nominal_energy_j
from lesson.clock.worlds.clients import (
    LOST,
    NO_REPLY,
    RESTARTED,
    TELL_S,
    TOO_LATE,
    Clients,
    Event,
    Joined,
    Key,
    Left,
    Reply,
    Reports,
    Returned,
    restore_waiting_models,
    waiting_models,
)
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import RunStoppedError
from lesson.core.state import Arrays, restore_state, state_of
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import NO_UPDATES, Closing, Updates

PATIENCE, MIN_PATIENCE_S = 4.0, 60.0
"""The server waits for an update for PATIENCE times its expected latency, but at least MIN_PATIENCE_S."""
POLL_S = 0.1
NOBODY_S = 600.0
"""A run stops when no client has been connected for this many seconds."""
LAG_S, MIN_ROUND_S = 0.5, 1.0
"""A round ends at its deadline if the server notices within LAG_S, otherwise when it notices. A round in which no
client trains lasts at least MIN_ROUND_S, unless its deadline comes first."""


class WallWorld:
    """Remote clients in real time. The server estimates latencies from the arrivals it observes.

    A timeout does not change the estimate, but the server waits twice as long for this client the next time.

    Args:
        fleet: Clients with the latencies to assume until they are measured.
        clients: Connection to the clients.
        tell: Called with log lines.
        warn: Called with log lines about rejected updates and disconnected clients; by default, `tell`.
        timeout_s: Longest time to wait for a reply, in seconds.
        first_timeout_s: Time to wait for a reply of a client whose latency has not been measured; by default,
            `timeout_s`.
        first_is_cold: Whether no client has been contacted yet; see `RecentLatencies`.
    """

    SAVED = ("_round", "_measured", "_num_timeouts", "reports")
    varies = False

    def __init__(
        self,
        fleet: Fleet,
        clients: Clients,
        tell: Callable[[str], None] = lambda _: None,
        *,
        timeout_s: float = math.inf,
        first_timeout_s: float | None = None,
        warn: Callable[[str], None] | None = None,
        first_is_cold: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # Replies change times and weights; the copy keeps the caller's fleet unchanged.
        self.fleet = replace(fleet, **{name: getattr(fleet, name).copy() for name in (*TIMES, "client_weight")})
        self.first_latency_s = self.fleet.latency_s
        self.connected: BoolArray = self.fleet.reachable
        self.reports = Reports(self.fleet.client_weight)
        self._clients, self._tell, self._clock, self._sleep = clients, tell, clock, sleep
        self._timeout_s = timeout_s
        self.first_timeout_s = timeout_s if first_timeout_s is None else first_timeout_s
        self._warn = warn or tell
        self._measured = RecentLatencies(len(fleet), first_is_cold=first_is_cold)
        self._num_timeouts: IntArray = np.zeros(len(fleet), dtype=np.int64)
        """Number of times in a row that the server stopped waiting for each client."""
        self._round = 0
        self._zero_s = clock()
        self._last_connected_s = 0.0
        """When the server last saw a connected client, in seconds since the run began."""
        self._unfit = NO_UPDATES
        """Updates rejected because of their content since the last round closed; see `Collected.unfit`."""
        self._rejections: list[Rejection] = []
        """All rejections since the last round closed."""
        self._bytes_up = self._bytes_down = 0
        """Bytes of rejected updates that arrived, and of models that were sent, since the last round closed."""
        self._bytes_of: dict[Key, int] = {}
        """Bytes of updates that have arrived and have not been collected."""

    @property
    def are_measured(self) -> BoolArray:
        """Whether the latency of each client has been measured."""
        return self._measured.are_known

    def patience_s(self, clients: IntArray, expected_s: FloatArray) -> FloatArray:
        """Return how long the server waits for replies of clients that are expected after these times, in seconds."""
        usual_s = np.maximum(MIN_PATIENCE_S, PATIENCE * expected_s) * 2.0 ** self._num_timeouts[clients]
        return np.minimum(self._timeout_s, np.where(self.are_measured[clients], usual_s, self.first_timeout_s))

    def usual_patience_s(self, clients: IntArray) -> FloatArray:
        """Return how long the server waits for replies of clients that may take as long as a local training."""
        return self.patience_s(clients, self.fleet.latency_s[clients])

    def note_warm(self, clients: IntArray) -> None:
        """Record that these clients have replied before, so that their first update is a measurement."""
        self._measured.is_cold[clients] = False

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the run began, including those before a restart, but not the downtime."""
        return self._clock() - self._zero_s

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:  # noqa: ARG002
        """Return when the round opens: when the previous one closed, or now if an evaluation took long in between.

        The result is inf if all known clients are excluded; clients that are merely disconnected may join again. The
        clock starts with the first round.
        """
        self._round = round
        self.reports.open_round()
        self._assume_parts()
        if round == 1:
            self._zero_s = self._clock()
        elif ledger.is_deserted and ledger.excluded[np.isfinite(self.fleet.latency_s)].all():
            return np.inf
        return self.elapsed_s if self.elapsed_s - now_s > LAG_S else now_s

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> FloatArray:  # noqa: ARG002
        """Ask clients to train these updates; return inf for each, as its arrival time is not known."""
        if len(updates):
            wait_s = self.patience_s(updates.client, updates.expected_s)
            self._bytes_down += self._clients.send(updates, self._round, wait_s)
        return np.full(len(updates), np.inf)

    def cancel(self, updates: Updates) -> None:
        self._clients.give_up(updates)

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        """Wait until the round closes; return when that was, and a note. The time is inf if `until_s` passes first.

        The closing condition is applied to the updates that have arrived so far, as in simulated time: the round closes
        at its deadline, or when the server notices that the condition is met or that no update in flight can meet it.
        After a long evaluation, or while no client is connected, it closes late; no rounds are added to catch up.
        """
        tell_s = self.elapsed_s + TELL_S
        while True:
            elapsed_s = self.elapsed_s
            if elapsed_s >= tell_s and np.isinf(closes.by_s):
                tell_s += TELL_S
                waited_for = named_clients(self.fleet.names, ledger.clients_in_flight().tolist())
                self._tell(f"round {self._round}: still waiting for {waited_for}")
            for event in self._clients.poll():
                self._handle(event, ledger, elapsed_s)
            nobody = self._is_nobody_connected(ledger, elapsed_s)
            end_s, note = closing_time(closes, ledger, now_s)
            by_deadline = end_s == closes.by_s
            waited = by_deadline or ledger.num_in_flight or elapsed_s - now_s >= MIN_ROUND_S
            if end_s <= elapsed_s and waited and not nobody:
                return (end_s if by_deadline and elapsed_s - end_s < LAG_S else elapsed_s), note
            if elapsed_s > until_s:
                return np.inf, ""
            self._sleep(POLL_S if nobody else min(POLL_S, max(end_s - elapsed_s, POLL_S / 10)))

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:  # noqa: ARG002
        """Return the updates that have arrived, and those rejected since the last round closed."""
        num_bytes = self._bytes_up + sum(self._bytes_of.pop(key, 0) for key in due.keys), self._bytes_down
        collected = Collected(due, unfit=self._unfit, rejections=tuple(self._rejections), num_bytes=num_bytes)
        self._unfit, self._rejections = NO_UPDATES, []
        self._bytes_up = self._bytes_down = 0
        return collected

    def release(self, updates: Updates) -> None:
        self._clients.forget(updates)
        self.reports.release(updates)
        self._bytes_up += sum(self._bytes_of.pop(key, 0) for key in updates.keys)  # canceled after their arrival

    def next_change_s(self, now_s: float) -> float:  # noqa: ARG002
        """Return inf: it is not known in advance when clients join or leave."""
        return np.inf

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        """Return the energy of updates, assuming that they take as long as expected; NaN if it is unknown."""
        return nominal_energy_j(self.fleet, updates, elapsed_s)

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], Arrays]:
        """Return the measured latencies, the estimates, and the models of updates that wait at the server."""
        values, arrays = state_of(self)
        arrays |= {name: getattr(self.fleet, name) for name in TIMES}
        return values, arrays | waiting_models(self._clients, ledger)

    def restore(self, values: dict[str, Any], arrays: Arrays, ledger: Ledger, now_s: float) -> None:
        """Continue from what `state` returned with the clients that are connected now; updates in flight are lost."""
        self._zero_s, self._last_connected_s = self._clock() - now_s, now_s
        restore_state(self, values, arrays)
        restore_waiting_models(self._clients, ledger, arrays)
        ledger.disconnect(np.flatnonzero(~self.connected))
        ledger.connect(np.flatnonzero(self.connected))
        known = np.isfinite(arrays["latency_s"])  # also of clients that are not connected, for when they are
        for name in TIMES:
            getattr(self.fleet, name)[known] = arrays[name][known]
        lost = ledger.drop(ledger.clients_in_flight())
        self.release(lost)
        for client, index in lost.keys:
            self._note_rejected(Rejection(client, index, RESTARTED))
        ledger.reconsider(np.flatnonzero(ledger.idle))

    def _is_nobody_connected(self, ledger: Ledger, elapsed_s: float) -> bool:
        """Return whether no client is connected; raise RunStoppedError if none has been for NOBODY_S seconds."""
        if ledger.num_connected:
            self._last_connected_s = elapsed_s
        elif elapsed_s - self._last_connected_s > NOBODY_S:
            raise RunStoppedError(f"no client has been connected for {NOBODY_S:g} s; start some and resume the run")
        return not ledger.num_connected

    def _handle(self, event: Event, ledger: Ledger, now_s: float) -> None:
        match event:
            case Reply():
                self._handle_reply(event, ledger, now_s)
            case Left(client=client) if ledger.connected[client]:
                self._disconnect(client, ledger, now_s)
            case Joined(client=client) if not ledger.connected[client] and not ledger.excluded[client]:
                self._connect(event, ledger)
            case Returned(client=client) if not ledger.connected[client]:
                ledger.connect(np.array([client]))

    def _handle_reply(self, reply: Reply, ledger: Ledger, now_s: float) -> None:
        client, current = reply.client, reply.is_current(ledger)
        if reply.received is not None:  # a poll may take seconds
            now_s = reply.received - self._zero_s
        if not reply.fault and ledger.was_received(*reply.key):
            self._bytes_up += reply.num_bytes
            self._note_rejected(reply.rejection(ALREADY_SEEN))
        elif not reply.fault and current:
            ledger.arrive(client, now_s)
            self._bytes_of[reply.key] = reply.num_bytes
            self.reports.add(reply)
            self._measure(reply, ledger, now_s)
        else:
            self._bytes_up += reply.num_bytes
            self._note_rejected(reply.rejection("" if reply.fault else TOO_LATE))
            if current:
                self._reject(reply, ledger)

    def _note_rejected(self, rejection: Rejection) -> None:
        """Log a rejected update, and keep it for the record of the round."""
        self._rejections.append(rejection)
        self._warn(rejection_line(self._round, self.fleet.names, rejection))

    def _reject(self, reply: Reply, ledger: Ledger) -> None:
        """Drop an update in flight because of the fault in its reply."""
        self._num_timeouts[reply.client] += reply.fault == NO_REPLY
        update = ledger.drop(np.array([reply.client]))
        self.release(update)
        if reply.fault in OF_CONTENT:
            self._unfit = Updates.join(self._unfit, update)

    def _disconnect(self, client: int, ledger: Ledger, now_s: float) -> None:
        who = np.array([client])
        if ledger.last_arrival_s(who) == np.inf:  # training, and its update has not arrived
            update = ledger.updates_of(who)
            self._clients.give_up(update)
            self._handle_reply(Reply(client, int(update.index[0]), fault=LOST), ledger, now_s)
        ledger.disconnect(who)
        self._warn(f"round {self._round}: client {self.fleet.names[client]} disconnected")

    def _connect(self, joined: Joined, ledger: Ledger) -> None:
        client = joined.client
        if not math.isfinite(self.fleet.latency_s[client]):
            self.fleet.latency_s[client] = joined.assumed_s
            self._divide(client, math.nan)
        ledger.connect(np.array([client]))
        self._tell(f"round {self._round}: client {self.fleet.names[client]} connected")

    def _measure(self, reply: Reply, ledger: Ledger, now_s: float) -> None:
        """Update a client's latency estimate with the time since its start, scaled to the usual local training.

        Unless the client reports its compute time, this keeps its share of the estimated latency. All other time counts
        as upload time.
        """
        client, fleet = reply.client, self.fleet
        update = ledger.updates_of(np.array([client]))
        took_s = max(now_s - update.started_s[0], 1e-3)
        scale, upload_scale = update.compute_scale[0], update.upload_scale[0]
        if reply.compute_s is not None:
            compute_s = min(reply.compute_s, took_s)
        else:
            estimated_s = fleet.download_s[client] + fleet.compute_s[client] + fleet.upload_s[client]
            share = fleet.compute_s[client] / estimated_s if estimated_s != 0 else 0.0
            compute_s = took_s * scale * share / (scale * share + upload_scale * (1 - share))
        usual_s = took_s if scale == upload_scale == 1 else compute_s / scale + (took_s - compute_s) / upload_scale
        self._num_timeouts[client] = 0
        fleet.latency_s[client] = self._measured.see(client, usual_s, float(fleet.latency_s[client]))
        self._divide(client, compute_s / scale / usual_s)

    def _assume_parts(self) -> None:
        """Split latencies with an unknown compute time by the mean share of compute time in the others, if known."""
        compute_s, latency_s = self.fleet.compute_s, self.fleet.latency_s
        present = np.isfinite(latency_s) & (latency_s > 0)
        known, unknown = present & np.isfinite(compute_s), present & np.isnan(compute_s)
        if known.any():
            share = float(np.mean(compute_s[known] / latency_s[known]))
            for client in np.flatnonzero(unknown).tolist():
                self._divide(client, share)

    def _divide(self, client: int, share: float) -> None:
        """Split a client's estimated latency: `share` of it is compute time, the rest download and upload time.

        The download time keeps its share of the two.
        """
        fleet, latency_s = self.fleet, self.fleet.latency_s[client]
        transfer_s = fleet.download_s[client] + fleet.upload_s[client]  # NaN if only the latency was known
        download_share = fleet.download_s[client] / transfer_s if transfer_s > 0 else 0.0
        fleet.compute_s[client] = share * latency_s
        fleet.download_s[client] = download_share * (1 - share) * latency_s
        for column in (fleet.upload_s, fleet.shared_upload_s):
            column[client] = (1 - download_share) * (1 - share) * latency_s
