"""Federated evaluation: clients evaluate a model on their own data while the others continue to train.

On the wall clock, a client evaluates only when it is idle, and it can train again when it has replied. Meanwhile,
rounds end at their deadlines, and no latency that the server measures includes an evaluation. On the virtual clock,
simulated time stands still while clients evaluate. After the last round, the server waits for all replies.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from lesson.clock.ledger import Ledger
from lesson.clock.worlds import Event, Returned
from lesson.clock.worlds.wall import patience_s
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import printable
from lesson.core.random import RepeatedStream
from lesson.flower.post import FieldNames, GridClients, error_text, weighted_means
from lesson.flower.replies import check_weight, pull_replies, read_metrics, scalars
from lesson.learn.guards import InvalidUpdateError

POLL_S = 0.05
Reported = tuple[float, Mapping[str, float]]
"""Number of examples of a client, and the metrics it reports."""


@dataclass
class _Evaluation:
    """The evaluation of the model after one round."""

    content: RecordDict
    round: int
    to_ask: set[int]
    """Clients that have not been asked yet."""
    num_asked: int = 0
    reported: dict[int, Reported] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    """Why there is no result, by client."""
    ended: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all clients have been asked and have replied."""
        return not self.to_ask and self.num_asked == len(self.reported) + len(self.faults)


@dataclass(eq=False)
class FederatedEvaluation:
    """Evaluates models on the clients of `post`, and puts the weighted means of their metrics into `results`."""

    post: GridClients
    latency_s: FloatArray
    """Latency estimate of each client in seconds, which limits the wait for its reply."""
    config: Mapping[str, object]
    results: dict[int, MetricRecord]
    """Means by round."""
    every: int = 0
    """Number of rounds between two evaluations; 0 for only one after the last round."""
    fraction: float = 1.0
    """Share of the connected clients that evaluate a model; 0 turns evaluation off."""
    on_wall: bool = True
    pause_s: float = 0.0
    """On the wall clock, the longest delay of the next round in seconds if all clients are evaluating."""
    timeout_s: float = 3600.0
    seed: int = 0
    tell: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._asked: dict[str, tuple[int, _Evaluation]] = {}
        """Client and evaluation of each message without a reply."""
        self._latest: _Evaluation | None = None
        self._random = RepeatedStream(self.seed, "federated evaluation")
        self.post.other_events = self.poll

    def after_round(self, round: int, arrays: ArrayRecord, ledger: Ledger) -> None:
        """Begin the evaluation of a round's model if it is due, and ask clients that have become idle.

        On the virtual clock, the server waits for all replies. On the wall clock, it waits only while no client is
        training, for at most `pause_s`; after that, only until at least one client can train again.
        """
        if self.every and self.fraction and round % self.every == 0:
            self._begin(round, arrays, ledger)
        if not self.on_wall:
            self._ask(np.flatnonzero(ledger.connected))
            self._wait()
            return
        self._ask_idle(ledger)
        until_s = time.monotonic() + self.pause_s
        self._wait(lambda: not ledger.num_busy and (time.monotonic() < until_s or not ledger.num_connected), ledger)

    def after_last_round(self, round: int, arrays: ArrayRecord, ledger: Ledger) -> None:
        """Let clients evaluate the final model, also those that are still training, and wait for all replies."""
        if self.fraction:
            chosen = self._begin(round, arrays, ledger)
            self._ask(np.array(sorted(chosen), dtype=np.int64))
            self._wait()
        while self._asked:
            _, (client, evaluation) = self._asked.popitem()
            evaluation.faults[client] = f"no reply within {self.timeout_s:g} s"
            self._report(evaluation)

    def poll(self) -> Sequence[Event]:
        """Read the replies that have arrived; return which clients can train again."""
        free: list[Event] = []
        for number, message in pull_replies(self.post.grid, list(self._asked), at_once=self.post.at_once):
            client, evaluation = self._asked.pop(number)
            try:
                evaluation.reported[client] = read_reply(message, self.post.words)
            except InvalidUpdateError as error:
                evaluation.faults[client] = error.detail
            if self.on_wall and self.post.is_connected(client):
                free.append(Returned(client))
            self._report(evaluation)
        return free

    def _begin(self, round: int, arrays: ArrayRecord, ledger: Ledger) -> set[int]:
        """Draw and return the clients that evaluate this model; those not yet asked about an earlier one skip it."""
        clients = np.flatnonzero(ledger.connected)
        evaluating = [client for client, _ in self._asked.values()]
        chosen = sample(np.union1d(clients, np.array(evaluating, dtype=np.int64)), self.fraction, self._random, round)
        if self._latest is not None:
            self._latest.to_ask.clear()
            self._report(self._latest)
        content = evaluate_content(arrays, self.config, round, self.post.words)
        self._latest = _Evaluation(content, round, set(chosen.tolist()))
        return set(self._latest.to_ask)

    def _ask_idle(self, ledger: Ledger) -> None:
        """Ask idle clients; each of them is unavailable for training until it has replied."""
        evaluating = self._ask(np.flatnonzero(ledger.idle))
        ledger.disconnect(evaluating)

    def _ask(self, clients: IntArray) -> IntArray:
        """Ask those of these clients that have yet to evaluate the latest model, and return them."""
        evaluation = self._latest
        chosen = [] if evaluation is None else [client for client in clients.tolist() if client in evaluation.to_ask]
        who = np.array(chosen, dtype=np.int64)
        if evaluation is None or not chosen:
            return who
        expected_s = np.nan_to_num(self.latency_s[who], nan=math.inf, posinf=math.inf)
        waits_s = patience_s(expected_s, self.timeout_s) if self.on_wall else np.full(len(who), self.timeout_s)
        nodes = [self.post.node_of[client] for client in chosen]
        messages = [evaluate_message(evaluation, node, wait_s) for node, wait_s in zip(nodes, waits_s, strict=True)]
        accepted = set(self.post.grid.push_messages(messages)) - {""}
        sent: list[int] = []
        for client, message in zip(chosen, messages, strict=True):
            evaluation.to_ask.remove(client)
            evaluation.num_asked += 1
            if (number := message.metadata.message_id) in accepted:
                self._asked[number] = client, evaluation
                sent.append(client)
            else:
                evaluation.faults[client] = "not sent: the node is not connected, or the model is too large"
        self._report(evaluation)
        return np.array(sent, dtype=np.int64)

    def _wait(self, goes_on: Callable[[], bool] = lambda: True, ledger: Ledger | None = None) -> None:
        """Poll until all replies have arrived, `goes_on` returns False, or the timeout has passed."""
        until_s = time.monotonic() + self.timeout_s
        while self._asked and goes_on() and time.monotonic() < until_s:
            for event in self.poll():
                if ledger is not None and isinstance(event, Returned):
                    ledger.connect(np.array([event.client]))
            self.sleep(POLL_S if self._asked else 0)

    def _report(self, evaluation: _Evaluation) -> None:
        """Log and store the result of an evaluation once all of its clients have replied."""
        if evaluation.ended or not evaluation.is_complete:
            return
        evaluation.ended, reported, faults = True, evaluation.reported, evaluation.faults
        means, prefix = weighted_means(list(reported.values())), f"round {evaluation.round}: "
        if means is not None:
            self.results[evaluation.round] = means
            told = ", ".join(f"{name} {value:.4g}" for name, value in means.items() if isinstance(value, float))
            self.tell(f"{prefix}{len(reported)} clients evaluated the model: {told}")
        if faults:
            client, why = next(iter(faults.items()))
            off = "" if reported else "; fraction_evaluate=0 turns evaluation off"
            self.tell(f"{prefix}{len(faults)} clients did not evaluate the model; client {client}: {why}{off}")


def evaluate_content(arrays: ArrayRecord, config: Mapping[str, object], round: int, words: FieldNames) -> RecordDict:
    """Return what a client gets to evaluate a model: the model, and the evaluate config with `server-round`."""
    told = ConfigRecord({**config, "server-round": round})  # type: ignore[dict-item]  # checked by Flower
    return RecordDict({words.arrays: arrays, words.config: told})


def evaluate_message(evaluation: _Evaluation, node: int, ttl: float) -> Message:
    """Return the request to a node; it expires after `ttl` seconds."""
    group = str(evaluation.round)
    return Message(evaluation.content, node, MessageType.EVALUATE, ttl=float(ttl), group_id=group)


def read_reply(message: Message | Exception, words: FieldNames) -> Reported:
    """Return the weight and the metrics in a reply; raise InvalidUpdateError if it cannot be used."""
    if isinstance(message, Exception):
        raise InvalidUpdateError("unreadable", printable(f"{type(message).__name__}: {message}"))
    if message.has_error():
        raise InvalidUpdateError("error reply", error_text(message.error))
    metrics = read_metrics(message.content)
    weight = check_weight(words.weight, metrics.pop(words.weight, None))
    return weight, scalars(metrics)


def aggregate_replies(
    replies: Iterable[Message], words: FieldNames, tell: Callable[[str], None]
) -> MetricRecord | None:
    """Return the weighted means of the metrics in replies, and log those that cannot be used; None without any."""
    reported: list[Reported] = []
    for message in replies:
        try:
            reported.append(read_reply(message, words))
        except InvalidUpdateError as error:
            tell(f"node {message.metadata.src_node_id} did not evaluate the model: {error.detail}")
    return weighted_means(reported)


def sample(clients: IntArray, fraction: float, random: RepeatedStream, round: int) -> IntArray:
    """Return a share of clients drawn at random, at least one of them, sorted; all of them if `fraction` is 1."""
    count = math.ceil(fraction * len(clients))
    return clients if count == len(clients) else np.sort(random.at(round).choice(clients, count, replace=False))
