"""Exchange of messages with clients over Flower's grid: sends models, collects updates and classifies faults."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from lesson.clock.rejections import UNREADABLE, WRONG_ARRAYS
from lesson.clock.worlds import Event, Joined, Left, Reply
from lesson.clock.worlds.clients import LOST, NO_REPLY, TOO_LATE, Key
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import printable
from lesson.flower.arrays import Layout, Vector, num_bytes
from lesson.flower.identity import Node, Roster, given_names
from lesson.flower.profile import Profiler
from lesson.flower.replies import check_weight, in_simulation, pull_replies, read_metrics, scalars
from lesson.learn.guards import InvalidUpdateError
from lesson.learn.lane import Lane
from lesson.learn.remote import Received
from lesson.strategies.base import Updates, shares

LOOK_EVERY_S = 2.0
"""Seconds between two checks of which nodes are connected."""
FAULTS = {
    1: "client error",  # the ClientApp cannot be loaded
    2: "client error",  # the ClientApp raised an exception
    3: NO_REPLY,  # the message has expired
    4: NO_REPLY,  # its reply has expired
    5: LOST,  # the node is unavailable
    8: "client crashed",  # the process of the ClientApp ended
}
"""Faults by the code of Flower's `Error`. Flower names the codes only in a private module."""


@dataclass(frozen=True)
class FieldNames:
    """Names of the records and fields in messages; the defaults are those of Flower's own strategies."""

    arrays: str = "arrays"
    config: str = "config"
    weight: str = "num-examples"
    lr: str = "lr"


@dataclass(eq=False)
class GridClients:
    """Implements `lesson.clock.worlds.Clients` on Flower's grid."""

    grid: Grid
    num_clients: int
    node_of: dict[int, int]
    """Node of each known client."""
    layout: Layout
    lane: Lane
    received: Received
    config: Mapping[str, object] = field(default_factory=dict)
    """Config that every client gets, in addition to its step size and the size of its local training."""
    words: FieldNames = field(default_factory=FieldNames)
    clients_report_weight: bool = True
    """Whether clients report their weight; otherwise, the weights of the fleet are kept."""
    profiler: Profiler | None = None
    """Asks unknown nodes which client they are."""
    roster: Roster | None = None
    """Knows which client an unknown node is, if nodes are not asked; without it, nobody can join later."""
    assumed_s: Callable[[int], float] = lambda _: math.nan
    """Returns the latency to assume for a client of the roster until it is measured, in seconds."""
    names: Sequence[int | str] = ()
    """Names of the clients in the log; by default, their numbers."""
    tell: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    other_events: Callable[[], Sequence[Event]] = tuple
    """Called with every poll for events that do not come from training, such as the end of an evaluation."""

    def __post_init__(self) -> None:
        self._sent: dict[str, Key] = {}
        self._given_up: dict[str, Key] = {}
        self._faults: deque[Reply] = deque()
        self._there = set(self.node_of.values())
        self._asked: dict[str, tuple[int, float]] = {}
        """Node that each profile request went to and when it was sent, by message id."""
        self._ask_at_s: dict[int, float] = {}
        """When to ask a node again that is not a client yet."""
        self._warm: set[int] = set()
        """Nodes that have given a usable answer."""
        self._given_names: dict[int, str] = {}
        """Registered names of nodes."""
        self._left_out: dict[int, str] = {}
        """Why a node takes no part, for nodes whose profile contradicts others."""
        self._looked_s = self.clock()
        self._told_capped: set[tuple[int, float]] = set()
        """Clients and step-size factors whose step size was logged as limited."""

    @cached_property
    def at_once(self) -> bool:
        """Whether one call can pull all replies; see `pull_replies`."""
        return in_simulation(self.grid)

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        """Ask clients to train these updates, each from its base version; messages expire after `patience_s`.

        Returns the size of the arrays that were sent, in bytes.
        """
        bases = {int(base): self._record(int(base)) for base in set(updates.base_version.tolist())}
        messages, rates, sent_bytes = [], self.lane.step_sizes(updates).tolist(), 0
        self._warn_capped(updates, rates)
        for row, (client, index) in enumerate(updates.keys):
            work = {
                "local-steps": int(updates.local_steps[row]),
                "batches": int(updates.batches[row]),
                "update": index,
            }
            told = {"server-round": round, self.words.lr: rates[row]}
            config = ConfigRecord({**work, **self.config, **told})  # type: ignore[dict-item]  # checked by Flower
            content = RecordDict({self.words.arrays: bases[int(updates.base_version[row])], self.words.config: config})
            ttl, node = float(patience_s[row]), self.node_of[client]
            messages.append(Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(round)))
        # For an unknown node, some grids return '' in its place and others return nothing.
        accepted = set(self.grid.push_messages(messages)) - {""}
        for update, message in zip(updates.keys, messages, strict=True):
            if message.metadata.message_id in accepted:
                self._sent[message.metadata.message_id] = update
                sent_bytes += content_bytes(message.content)
            else:
                why = "the node is not connected, or the model is too large"
                self._faults.append(Reply(*update, fault="not sent", detail=why))
        return sent_bytes

    def poll(self) -> Sequence[Event]:
        """Return what has happened since the last call; does not wait."""
        events: list[Event] = list(self._faults)
        self._faults.clear()
        for number, message in pull_replies(self.grid, list(self._sent), at_once=self.at_once):
            events.append(replace(self._reply(self._sent.pop(number), message), received=self.clock()))
        for number, message in pull_replies(self.grid, list(self._given_up), at_once=self.at_once):
            update = self._given_up.pop(number)
            if not isinstance(message, Exception) and not message.has_error():
                why, size = "the server had stopped waiting for it", content_bytes(message.content)
                events.append(Reply(*update, fault=TOO_LATE, detail=why, num_bytes=size))
        for number, message in pull_replies(self.grid, list(self._asked), at_once=self.at_once):
            events += self._introduced(number, message)
        if self.clock() - self._looked_s >= LOOK_EVERY_S:
            events += self._look()
        return [*events, *self.other_events()]

    def is_connected(self, client: int) -> bool:
        """Return whether a client's node was connected when the server last looked."""
        return self.node_of.get(client) in self._there

    def give_up(self, clients: IntArray) -> None:
        """Stop waiting for updates of these clients; updates that still arrive are reported as too late."""
        gone = set(clients.tolist())
        for number in [number for number, (client, _) in self._sent.items() if client in gone]:
            self._given_up[number] = self._sent.pop(number)

    def forget(self, updates: Updates) -> None:
        """Drop the models of these updates."""
        for update in updates.keys:
            self.received.held.pop(update, None)

    def models_of(self, updates: Updates) -> Sequence[Vector]:
        """Return the models of these updates, which must have arrived."""
        return [self.received.held[update] for update in updates.keys]

    def put_back(self, updates: Updates, models: Sequence[Vector]) -> None:
        """Restore the models of updates that had arrived, when a run is resumed."""
        self.received.held |= dict(zip(updates.keys, models, strict=True))

    def _introduced(self, number: str, message: Message | Exception) -> list[Event]:
        """Handle the answer to a profile request: assign the node to a new client or to one whose node has left.

        Its first answer only warms it up, as in `Profiler.ask_twice`.
        """
        assert self.profiler is not None, "nobody else asks"
        node, asked_s = self._asked.pop(number)
        profile = self.profiler.read(node, message, self.clock() - asked_s)
        if profile is None:
            return []
        old = self.node_of.get(profile.client)
        if profile.num_clients != self.num_clients:
            return self._leave_out(node, f"it reports {profile.num_clients} partitions, the run has {self.num_clients}")
        if old in self._there:  # a node that claims the partition of another cannot displace it
            return self._leave_out(node, f"it claims partition {profile.client}, which node {old} has")
        if node not in self._warm:
            self._warm.add(node)
            self._ask(self.profiler, node)
            return []
        if (given := self._given_names.get(node)) is not None and isinstance(self.names, list):
            self.names[profile.client] = given
        if old is not None:
            self.tell(f"client {self._name(profile.client)} moved from node {old}, which disconnected, to node {node}")
        self.node_of[profile.client] = node
        return [Joined(profile.client, profile.latency_s, profile.compute_s)]

    def _leave_out(self, node: int, why: str) -> list[Event]:
        """Log once why a node takes no part. It is asked again later, as the client in its place may disconnect."""
        if self._left_out.get(node) != why:
            self._left_out[node] = why
            self.warn(f"ignoring node {node}: {why}")
        return []

    def _record(self, version: int) -> ArrayRecord:
        return self.layout.record(self.lane.versions[version].cpu().numpy())

    def _reply(self, update: Key, message: Message | Exception) -> Reply:
        """Convert a message to a reply. Anything wrong with it becomes a fault of this reply and affects no other."""
        size = 0
        try:
            if isinstance(message, Exception):
                raise message
            if message.has_error():
                return _fault(update, message.error)
            size = content_bytes(message.content)
            metrics = read_metrics(message.content)
            told = metrics.pop(self.words.weight, None)
            weight = check_weight(self.words.weight, told) if self.clients_report_weight else None
            values, vector = scalars(metrics), self.layout.vector(_arrays(message.content))
        except InvalidUpdateError as unfit:
            return Reply(*update, fault=unfit.reason, detail=unfit.detail, num_bytes=size)
        except Exception as error:
            detail = printable(f"{type(error).__name__}: {error}")
            return Reply(*update, fault=UNREADABLE, detail=detail, num_bytes=size)
        self.received.held[update] = vector
        return Reply(*update, weight, values, num_bytes=size)

    def _warn_capped(self, updates: Updates, rates: Sequence[float]) -> None:
        """Log that lr_cap limits the step size of a client, once for each factor, which is the tier for LESSON."""
        wished = self.lane.uncapped_step_sizes(updates).tolist()
        for client, scale, lr, uncapped in zip(
            updates.client.tolist(), updates.lr_scale.tolist(), rates, wished, strict=True
        ):
            if lr < uncapped and (client, scale) not in self._told_capped:
                self._told_capped.add((client, scale))
                self.warn(
                    f"client {self._name(client)}: the step size is limited to {lr:g} by lr_cap; "
                    f"{scale:g} times that of tier 1 would be {uncapped:g}"
                )

    def _name(self, client: int) -> int | str:
        return self.names[client] if self.names else client

    def _look(self) -> list[Event]:
        """Return which clients have joined and left since the last check, and handle unknown nodes."""
        self._looked_s = self.clock()
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        there, self._given_names = nodes.keys(), given_names(nodes.values())
        events: list[Event] = [Left(client) for client, node in self.node_of.items() if node in self._there - there]
        known = {node: client for client, node in self.node_of.items()}
        events += [Joined(known[node]) for node in there - self._there if node in known]
        unknown = sorted(there - known.keys())
        if self.roster is not None and unknown:
            events += self._taken_in(self.roster, [nodes[node] for node in unknown], there)
        if self.profiler is not None:
            for node in unknown:
                if self._looked_s >= self._ask_at_s.get(node, -math.inf):
                    self._ask(self.profiler, node)
        self._there = set(there)
        return events

    def _ask(self, profiler: Profiler, node: int) -> None:
        """Ask a node for its profile, and schedule when to ask again if there is no usable answer."""
        now_s = self.clock()
        self._ask_at_s[node] = now_s + profiler.patience_s
        ids = list(self.grid.push_messages([profiler.question(node)]))
        self._asked |= {number: (node, now_s) for number in ids if number}

    def _taken_in(self, roster: Roster, nodes: Sequence[Node], there: Collection[int]) -> list[Event]:
        """Make unknown nodes the clients that they were before, or new ones if there is room."""
        clients = roster.admit(nodes, there)
        events = list[Event]()
        for node, client in clients.items():
            self.node_of[client] = node
            events.append(Joined(client, assumed_s=self.assumed_s(client)))
        for node in (one.node_id for one in nodes if one.node_id not in clients):
            if node not in self._ask_at_s:
                self._ask_at_s[node] = math.inf
                full = f"the run already has its maximum of {self.num_clients} clients"
                why = full if len(roster.nodes) == roster.num_clients else "another node with its key is connected"
                self.warn(f"ignoring node {node}: {why}")
        return events


def _fault(update: Key, error: Error) -> Reply:
    return Reply(*update, fault=FAULTS.get(error.code, "error reply"), detail=error_text(error))


def error_text(error: Error) -> str:
    """Return the code of an error and the last line of its text: in a traceback, that line says why."""
    lines = (error.reason or "").strip().splitlines() or ["no reason given"]
    return printable(f"code {error.code}: {lines[-1]}")


def content_bytes(content: RecordDict) -> int:
    """Return the size of all arrays in a message."""
    return sum(num_bytes(record) for record in content.array_records.values())


def _arrays(content: RecordDict) -> ArrayRecord:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidUpdateError(WRONG_ARRAYS, f"a reply must have one record of arrays, got {len(records)}")
    return records[0]


def weighted_means(told: Sequence[tuple[float, Mapping[str, float]]]) -> MetricRecord | None:
    """Return the weighted means of the metrics that all clients report; None without any, or if all weights are 0."""
    names = set.intersection(*(set(metrics) for _, metrics in told)) if told else set()
    weights = np.array([weight for weight, _ in told])
    if not names or not weights.any():
        return None
    counted = list(zip(shares(weights).tolist(), told, strict=True))
    return MetricRecord(
        {name: math.fsum(share * metrics[name] for share, (_, metrics) in counted) for name in sorted(names)}
    )
