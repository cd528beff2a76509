"""Federated evaluation: clients evaluate a model on their own data while the others continue to train.

On the wall clock, a client evaluates only when it is idle, and it can train again when it has replied. Meanwhile,
rounds end at their deadlines, and no latency that the server measures includes an evaluation. On the virtual clock,
simulated time stands still while clients evaluate. After the last round, the server waits for all replies.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from lesson.clock.ledger import Ledger
from lesson.clock.records import named_clients
from lesson.clock.worlds import Returned
from lesson.clock.worlds.clients import NO_REPLY
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import RepeatedStream
from lesson.flower.clients import NOT_SENT, GridClients
from lesson.flower.mailbox import Answer
from lesson.flower.replies import CLIENT_ERROR, Reported, fault_of, read_report, tell, warn, weighted_means
from lesson.learn.guards import InvalidUpdateError
from lesson.report.words import count

POLL_S, TELL_EVERY_S = 0.05, 30.0


@dataclass
class _Evaluation:
    """The evaluation of the model after one round."""

    content: RecordDict
    round: int
    to_ask: set[int]
    """Clients that have not been asked yet."""
    awaited: set[int] = field(default_factory=set)
    """Clients that have not replied yet."""
    reported: dict[int, Reported] = field(default_factory=dict)
    faults: dict[int, InvalidUpdateError] = field(default_factory=dict)
    """Why there is no result, by client."""
    is_reported: bool = False


@dataclass(eq=False)
class FederatedEvaluation:
    """Evaluates models on clients, and puts the weighted means of their metrics into `results`."""

    clients: GridClients
    config: Mapping[str, object]
    results: dict[int, MetricRecord]
    """Means by round."""
    every: int = 0
    """Number of rounds between two evaluations; 0 for only one after the last round."""
    fraction: float = 1.0
    """Share of the connected clients that evaluate a model; 0 turns evaluation off."""
    timeout_s: float = 3600.0
    """Longest wait for a reply in seconds."""
    patience_s: Callable[[IntArray], FloatArray] | None = None
    """On the wall clock, returns how long the server waits for the replies of clients; None on the virtual clock."""
    pause_s: float = 0.0
    """On the wall clock, the longest delay of the next round in seconds if all clients are evaluating."""
    seed: int = 0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._latest: _Evaluation | None = None
        self._evaluating = Counter[int]()
        """Number of requests to each client that await a reply."""
        self._random = RepeatedStream(self.seed, "federated evaluation")

    def warm_up(self, arrays: ArrayRecord, ledger: Ledger, timeout_s: float) -> IntArray:
        """Let all connected clients evaluate the initial model; return those whose app has run, even if it failed.

        On first contact, a device installs the app, imports libraries and fills its caches, which may take minutes. No
        latency is measured meanwhile. If only some clients do not reply, they count as disconnected, so that the first
        round does not wait for them again.
        """
        evaluation = self._begin(0, arrays, np.flatnonzero(ledger.connected))
        tell(f"warm-up: waiting for {count(len(evaluation.to_ask), 'client')} to evaluate the initial model")
        self._ask(np.flatnonzero(ledger.connected), timeout_s)
        self._wait(timeout_s)
        self._report(evaluation)
        silent = [client for client, fault in evaluation.faults.items() if fault.reason == NO_REPLY]
        if evaluation.reported:
            ledger.disconnect(np.array(silent, dtype=np.int64))
        failed = [client for client, fault in evaluation.faults.items() if fault.reason == CLIENT_ERROR]
        return np.array(sorted([*evaluation.reported, *failed]), dtype=np.int64)

    def after_round(self, round: int, arrays: ArrayRecord, ledger: Ledger) -> None:
        """Begin the evaluation of a round's model if it is due, and ask clients that have become idle.

        On the virtual clock, the server waits for all replies. On the wall clock, it waits only while no client is
        training, for at most `pause_s`; after that, only until at least one client can train again.
        """
        if self.every and self.fraction and round % self.every == 0:
            self._begin(round, arrays, self._chosen(round, ledger))
        if self.patience_s is None:
            self._ask(np.flatnonzero(ledger.connected))
            self._wait()
            return
        ledger.disconnect(self._ask(np.flatnonzero(ledger.idle)))  # unavailable for training until they have replied
        until_s = time.monotonic() + self.pause_s

        def goes_on() -> bool:
            ledger.connect(self.clients.take_returned())
            return not ledger.num_busy and (time.monotonic() < until_s or not ledger.num_connected)

        self._wait(goes_on=goes_on)
        ledger.connect(self.clients.take_returned())

    def after_last_round(self, round: int, arrays: ArrayRecord, ledger: Ledger) -> None:
        """Let clients evaluate the final model, including those that are still training, and wait for all replies."""
        if not self.fraction:
            return
        chosen = self._chosen(round, ledger)
        evaluation = self._begin(round, arrays, chosen)
        self._ask(chosen)
        self._wait()
        self._report(evaluation)

    def _chosen(self, round: int, ledger: Ledger) -> IntArray:
        """Draw the clients that evaluate the model of a round."""
        evaluating = np.array(sorted(self._evaluating), dtype=np.int64)
        clients = np.union1d(np.flatnonzero(ledger.connected), evaluating)
        count = math.ceil(self.fraction * len(clients))
        return clients if count == len(clients) else self._random.at(round).choice(clients, count, replace=False)

    def _begin(self, round: int, arrays: ArrayRecord, chosen: IntArray) -> _Evaluation:
        """Begin to evaluate a model; clients that have not been asked about the previous one skip it."""
        if self._latest is not None:
            self._latest.to_ask.clear()
            self._report_if_complete(self._latest)
        fields, config = self.clients.fields, ConfigRecord({**self.config, "server-round": round})  # type: ignore[dict-item]  # checked by Flower
        content = RecordDict({fields.arrays: arrays, fields.config: config})
        self._latest = _Evaluation(content, round, set(chosen.tolist()))
        return self._latest

    def _ask(self, clients: IntArray, timeout_s: float | None = None) -> IntArray:
        """Ask those of these clients that are still to evaluate the latest model; return the ones that were asked."""
        evaluation = self._latest
        chosen = [] if evaluation is None else [client for client in clients.tolist() if client in evaluation.to_ask]
        who = np.array(chosen, dtype=np.int64)
        if evaluation is None or not chosen:
            return who
        waits_s = np.full(len(who), timeout_s or self.timeout_s)
        if timeout_s is None and self.patience_s is not None:
            waits_s = self.patience_s(who)
        group = str(evaluation.round)
        messages = [
            Message(evaluation.content, self.clients.node_of[client], MessageType.EVALUATE, ttl=wait_s, group_id=group)
            for client, wait_s in zip(chosen, waits_s.tolist(), strict=True)
        ]
        sent = self.clients.mailbox.send(messages, [partial(self._reply, evaluation, client) for client in chosen])
        evaluation.to_ask.difference_update(chosen)
        evaluation.faults |= {client: NOT_SENT for client, is_sent in zip(chosen, sent, strict=True) if not is_sent}
        asked: IntArray = who[np.array(sent)]
        evaluation.awaited.update(asked.tolist())
        self._evaluating.update(asked.tolist())
        self._report_if_complete(evaluation)
        return asked

    def _reply(self, evaluation: _Evaluation, client: int, answer: Answer, _: float) -> None:
        """Read a reply; its client can train again."""
        evaluation.awaited.discard(client)
        self._evaluating -= Counter([client])
        try:
            evaluation.reported[client] = read_report(answer, self.clients.fields)
        except Exception as error:
            evaluation.faults[client] = fault_of(error)
        self._report_if_complete(evaluation)
        if self.patience_s is not None and self.clients.is_connected(client):
            self.clients.events.append(Returned(client))

    def _wait(self, timeout_s: float | None = None, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Wait until all replies have arrived, `goes_on` returns False, or the timeout has passed."""
        until_s = time.monotonic() + (timeout_s or self.timeout_s)
        tell_s = time.monotonic() + TELL_EVERY_S
        while self._evaluating and goes_on() and time.monotonic() < until_s:
            self.clients.mailbox.dispatch()
            if time.monotonic() > tell_s:
                tell_s += TELL_EVERY_S
                tell(f"still waiting for {named_clients(self.clients.names, self._evaluating)} to evaluate the model")
            self.sleep(POLL_S if self._evaluating else 0)

    def _report_if_complete(self, evaluation: _Evaluation) -> None:
        if not evaluation.to_ask and not evaluation.awaited:
            self._report(evaluation)

    def _report(self, evaluation: _Evaluation) -> None:
        """Log and store the result of an evaluation; clients that have not replied yet count as faults."""
        if evaluation.is_reported:
            return
        evaluation.is_reported, reported, faults = True, evaluation.reported, evaluation.faults
        faults |= dict.fromkeys(evaluation.awaited, InvalidUpdateError(NO_REPLY, "no reply in time"))
        means, prefix = weighted_means(list(reported.values())), f"round {evaluation.round}: "
        if means is not None:
            self.results[evaluation.round] = means
            values = ", ".join(f"{name} {value:.4g}" for name, value in means.items() if isinstance(value, float))
            tell(f"{prefix}{count(len(reported), 'client')} evaluated the model: {values}")
        if faults:
            off = "" if reported else "; fraction_evaluate=0 turns evaluation off"
            why = next(iter(faults.values())).detail
            warn(f"{prefix}{named_clients(self.clients.names, faults)} did not evaluate the model: {why}{off}")
