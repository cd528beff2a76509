"""Real clients in simulated time: a simulated world decides when updates arrive; the server waits for the replies."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.clock.records import named_clients, rejection_line
from lesson.clock.rejections import ALREADY_SEEN, OF_CONTENT, Rejection
from lesson.clock.worlds.base import Collected, World
from lesson.clock.worlds.clients import TELL_S, Clients, Key, Reply, Reports, restore_waiting_models, waiting_models
from lesson.core.arrays import FloatArray, with_prefix
from lesson.core.state import Arrays, restore_state, state_of
from lesson.strategies.base import Closing, Updates

POLL_S = 0.02


class RemoteWorld:
    """Real clients in simulated time. `inner` determines in which round an update arrives.

    `tell` is called with warnings. With `counts_bytes`, records have the actual sizes of arrays, instead of the size of
    the fleet's model.
    """

    SAVED = ("_round", "reports")

    def __init__(
        self,
        inner: World,
        clients: Clients,
        tell: Callable[[str], None] = lambda _: None,
        *,
        timeout_s: float = 3600.0,
        counts_bytes: bool = False,
    ) -> None:
        self._inner, self._clients, self._tell = inner, clients, tell
        self._counts_bytes, self._bytes_down = counts_bytes, 0
        self.timeout_s = timeout_s
        """Real seconds after which the server stops waiting for an update."""
        self.fleet = replace(inner.fleet, client_weight=inner.fleet.client_weight.copy())
        self.first_latency_s, self.connected, self.varies = inner.first_latency_s, inner.connected, inner.varies
        self.reports = Reports(self.fleet.client_weight)
        self._round = 0
        self._early: dict[Key, Reply] = {}
        """Replies for updates that have not arrived in simulated time yet."""

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:
        self._round = round
        self.reports.open_round()
        return self._inner.open(ledger, round, now_s, until_s)

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> FloatArray:
        """Ask clients to train these updates; return when they arrive in simulated time."""
        arrives_s = self._inner.start(updates, ledger, now_s)
        self._bytes_down += self._send(updates)
        return arrives_s

    def cancel(self, updates: Updates) -> None:
        self._give_up(updates)
        self._inner.cancel(updates)

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        return self._inner.wait(closes, ledger, now_s, until_s)

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        """Wait for the actual replies of the updates that have arrived in simulated time."""
        collected = self._inner.collect(due, ledger, now_s)
        self._give_up(collected.lost)
        arrived = collected.arrived
        new = self._wait_for(set(arrived.keys), ledger)
        replies = [self._early.pop(key) for key in arrived.keys]
        new += [reply.rejection() for reply in replies if reply.fault]
        for rejection in new:
            self._tell(rejection_line(self._round, self.fleet.names, rejection))
        for reply in replies:
            if not reply.fault:
                self.reports.add(reply)
        usable = np.array([not reply.fault for reply in replies], dtype=np.bool_)
        unfit = np.array([reply.fault in OF_CONTENT for reply in replies], dtype=np.bool_)
        num_bytes = sum(reply.num_bytes for reply in replies), self._bytes_down
        self._bytes_down = 0
        return Collected(
            arrived[usable],
            collected.lost,
            Updates.join(collected.unfit, arrived[unfit]),
            (*collected.rejections, *new),
            num_bytes if self._counts_bytes else None,
        )

    def release(self, updates: Updates) -> None:
        self._clients.forget(updates)
        self.reports.release(updates)

    def next_change_s(self, now_s: float) -> float:
        return self._inner.next_change_s(now_s)

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        return self._inner.energy_j(updates, elapsed_s)

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], Arrays]:
        """Return the state of the inner world, the reports and the models that wait at the server."""
        (values, arrays), (inner, of_inner) = state_of(self), self._inner.state(ledger)
        arrays |= {f"inner.{name}": array for name, array in of_inner.items()}
        return values | {"inner": inner}, arrays | waiting_models(self._clients, ledger)

    def restore(self, values: dict[str, Any], arrays: Arrays, ledger: Ledger, now_s: float) -> None:
        """Continue from what `state` returned; clients are asked again to train the updates in flight."""
        restore_state(self, values, arrays)
        self._inner.restore(values["inner"], with_prefix(arrays, "inner."), ledger, now_s)
        restore_waiting_models(self._clients, ledger, arrays)
        self._send(ledger.updates_of(ledger.clients_in_flight()))

    def _send(self, updates: Updates) -> int:
        """Ask clients to train; return the number of bytes sent."""
        if not len(updates):
            return 0
        return self._clients.send(updates, self._round, np.full(len(updates), self.timeout_s))

    def _give_up(self, updates: Updates) -> None:
        if len(updates):
            self._clients.give_up(updates)
            for key in updates.keys:
                self._early.pop(key, None)

    def _wait_for(self, awaited: set[Key], ledger: Ledger) -> list[Rejection]:
        """Wait until there is a reply for each of these updates; return rejections of duplicate replies.

        Replies for other updates in flight are kept for later rounds.
        """
        told_s, duplicates = time.monotonic(), list[Rejection]()
        while missing := awaited - self._early.keys():
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                waited_for = named_clients(self.fleet.names, [client for client, _ in sorted(missing)])
                self._tell(f"round {self._round}: still waiting for {waited_for}")
            replies = [event for event in self._clients.poll() if isinstance(event, Reply)]
            for reply in replies:
                received = not reply.fault and ledger.was_received(*reply.key)
                if reply.key in self._early or received:
                    duplicates.append(reply.rejection(ALREADY_SEEN))
                # Any other reply belongs to an update that the strategy dropped: it is ignored, not rejected.
                elif reply.key in awaited or reply.is_current(ledger):
                    self._early[reply.key] = reply
            if not replies:
                time.sleep(POLL_S)
        return duplicates
