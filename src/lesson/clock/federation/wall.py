"""Federation on the wall clock."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.estimates import conservative_window
from lesson.clock.federation.base import Federation
from lesson.clock.federation.clients import LOST, NO_REPLY, RESTARTED, TOO_LATE, Event, Joined, Left, Reply
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import ALREADY_SEEN, OF_CONTENT
from lesson.core.arrays import FloatArray, IntArray, copied
from lesson.core.errors import RunStoppedError
from lesson.strategies.base import Closing, Updates

POLL_S = 0.1
NOBODY_S = 600.0
"""A run stops when no client has been connected for this many seconds."""
LAG_S, MIN_ROUND_S = 0.5, 1.0
"""A round whose deadline passed LAG_S ago or longer ends now, not at its deadline. A round in which no client trains
lasts at least MIN_ROUND_S, unless its deadline comes first."""


class WallFederation(Federation):
    """Federation on the wall clock: updates arrive in real time, and clients disconnect and rejoin."""

    def __init__(
        self,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.estimates = conservative_window(len(self.fleet))
        self._clock, self._sleep = clock, sleep
        self._zero_s = clock()
        self._alone_s = 0.0
        """When a client was last connected, on the run's clock."""

    def step(self, until_s: float = np.inf) -> RoundRecord | None:
        """Run the next round; see `Federation`. The clock starts with the first round."""
        if not self.round:
            self._zero_s = self._clock()
        if self.elapsed_s - self.now_s > LAG_S:  # a round does not include the evaluation before it
            self.now_s = self.elapsed_s
        return super().step(until_s)

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the state of the run; see `Federation`. It includes the measured latencies."""
        values, arrays = super().state()
        return values, arrays | copied({"seen_s": self.estimates.seen_s, "latency_s": self.fleet.latency_s})

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned with the clients connected now; updates in flight are lost."""
        super().restore(values, arrays)
        self._zero_s, self._alone_s = self._clock() - self.now_s, self.now_s
        known = self._connected & np.isfinite(arrays["latency_s"])
        self.estimates.seen_s[:] = arrays["seen_s"]
        self.fleet.latency_s[known] = arrays["latency_s"][known]
        lost = self._flight.take(self._flight.everybody())
        for client, index in lost.keys:
            self._reject(Reply(client, index, fault=RESTARTED))
        self._let_go(lost)
        self._idle[:] = self._connected
        self._freed.append(np.flatnonzero(self._idle))

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the run began, including those before a restart, but not the downtime."""
        return self._clock() - self._zero_s

    def _opens(self, until_s: float) -> bool:
        # Clients that are not connected may still join, unless all known ones are excluded.
        known = np.isfinite(self.fleet.latency_s)
        return not self.rejection_ledger.excluded[known].all() or super()._opens(until_s)

    def _arrives_s(self, starts: IntArray, expected_s: FloatArray) -> FloatArray:  # noqa: ARG002
        return np.full_like(expected_s, np.inf)

    def _close(self, closes: Closing, until_s: float) -> tuple[float, str]:
        """Wait until the round closes; return when that was, and a note. The time is inf if `until_s` passes first.

        The conditions are those of the virtual clock, applied to the updates that have arrived so far: the round closes
        at its deadline, or when the server notices that nothing is left to wait for. After a long evaluation, or while
        no client is connected, it closes late; no rounds are added to catch up.
        """
        while True:
            now_s = self.elapsed_s
            for event in self._clients.poll():
                self._happens(event, now_s)
            alone = self._alone(now_s)
            end_s, note = self._closing_s(closes)
            by_deadline = end_s == closes.by_s
            waited = by_deadline or len(self._flight) or now_s - self.now_s >= MIN_ROUND_S
            if end_s <= now_s and waited and not alone:
                return (end_s if by_deadline and now_s - end_s < LAG_S else now_s), note
            if now_s > until_s:
                return np.inf, ""
            self._sleep(POLL_S if alone else min(POLL_S, max(end_s - now_s, POLL_S / 10)))

    def _alone(self, now_s: float) -> bool:
        """Return whether no client is connected; raise RunStoppedError after NOBODY_S of that."""
        if self._num_connected:
            self._alone_s = now_s
        elif now_s - self._alone_s > NOBODY_S:
            raise RunStoppedError(f"no client has been connected for {NOBODY_S:g} s; start some and resume the run")
        return not self._num_connected

    def _happens(self, event: Event, now_s: float) -> None:
        match event:
            case Reply():
                self._replied(event, now_s)
            case Left(client=client) if self._connected[client]:
                self._gone(client, now_s)
            case Joined(client=client) if not self._connected[client] and not self.rejection_ledger.excluded[client]:
                self._come(client, event)

    def _replied(self, reply: Reply, now_s: float) -> None:
        client, current = reply.client, self._is_at(reply)
        if not reply.fault and self.rejection_ledger.already_seen(client, reply.index):
            self._reject(replace(reply, fault=ALREADY_SEEN))
            return
        if not reply.fault and current:
            self.rejection_ledger.receive(client, reply.index)
            self._flight.arrive(client, now_s)
            self._take_in(reply)
            self._see(client, now_s)
            return
        self._reject(reply if reply.fault else replace(reply, fault=TOO_LATE))
        if reply.fault == NO_REPLY and current:
            self._see(client, now_s)
        if current:
            work = self._flight.take(np.array([client]))
            self._let_go(work)
            self._rejected_on_arrival = (
                Updates.join(self._rejected_on_arrival, work)
                if reply.fault in OF_CONTENT
                else self._rejected_on_arrival
            )

    def _gone(self, client: int, now_s: float) -> None:
        who = np.array([client])
        if self._flight.last_arrival_s(who) == np.inf:  # training, and its update has not arrived
            self._clients.give_up(who)
            self._replied(Reply(client, int(self._flight.work_of(who).index[0]), fault=LOST), now_s)
        self._disconnect(who)
        self._tell(f"round {self.round}: client {self.fleet.names[client]} disconnected")

    def _come(self, client: int, measured: Joined) -> None:
        if not math.isnan(measured.latency_s):
            self.estimates.forget(client)
            self.observe_latency(client, measured.latency_s)
            self._divide(client, measured.compute_s / measured.latency_s)
        self._connected[client] = True
        self._idle[client] = not self._flight.busy(np.array([client]))[0]
        self._num_connected += 1
        self._freed.append(np.array([client]))
        self._tell(f"round {self.round}: client {self.fleet.names[client]} connected")

    def _see(self, client: int, now_s: float) -> None:
        """Update a client's latency estimate with the time since its start, scaled to the usual local training.

        The compute time keeps its share of the estimated latency.
        """
        took_s = max(now_s - self._flight.started_s[client], 1e-3)
        fleet = self.fleet
        estimated_s = fleet.download_s[client] + fleet.compute_s[client] + fleet.upload_s[client]
        share = fleet.compute_s[client] / estimated_s if estimated_s != 0 else 0.0
        if self._work[client] != 1:
            took_s /= 1 + share * (self._work[client] - 1)
        self.observe_latency(client, took_s)
        self._divide(client, share)

    def observe_latency(self, client: int, seconds: float) -> None:
        """Update a client's latency estimate with a measured latency in seconds."""
        self.fleet.latency_s[client] = self.estimates.see(np.array([client]), np.array([seconds]))[0]

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
