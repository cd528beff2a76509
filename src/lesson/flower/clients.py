"""The clients of a run on Flower: sends them models, collects their updates, and notices who joins and leaves."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from lesson.clock.worlds import Event, Joined, Left, Reply, Returned
from lesson.clock.worlds.clients import TOO_LATE, Key
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.flower.arrays import Layout, Vector
from lesson.flower.codec import Uploads
from lesson.flower.identity import Node, Roster, names_of
from lesson.flower.mailbox import Answer, Mailbox
from lesson.flower.recorder import LOOK_EVERY_S
from lesson.flower.replies import FieldNames, content_bytes, fault_of, read_arrays, read_report, warn
from lesson.flower.times import read_times
from lesson.flower.uploads import ASKED
from lesson.learn.guards import InvalidUpdateError
from lesson.learn.lane import Lane
from lesson.learn.remote import Received
from lesson.strategies.base import Updates

LOCAL_STEPS = "local-steps"
NOT_SENT = InvalidUpdateError("not sent", "the node is not connected, or the SuperLink rejects the model")
GIVEN_UP = "the server had stopped waiting for it"


@dataclass(eq=False)
class GridClients:
    """Implements `lesson.clock.worlds.Clients` on Flower's grid."""

    mailbox: Mailbox
    node_of: dict[int, int]
    """Node of each known client."""
    names: Sequence[int | str]
    layout: Layout
    lane: Lane
    received: Received
    config: Mapping[str, object] = field(default_factory=dict)
    """Config that every client gets, in addition to the round and its step size."""
    fields: FieldNames = field(default_factory=FieldNames)
    roster: Roster | None = None
    """Maps unknown nodes to clients; without it, no client can join later."""
    assumed_s: Callable[[int], float] = lambda _: math.nan
    """Returns the latency to assume for a client of the roster until it is measured, in seconds."""
    sends_index: bool = False
    """Whether clients get `update`, the index of a local training among those of the client, from 0."""
    uploads: Uploads | None = None
    """Compression of the updates; None if clients send their models."""
    last_received: Callable[[int], int] = lambda _: -1
    """Returns the index of the last update of a client that has been received."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._started = dict[Key, tuple[Vector, float]]()
        """Model from which each compressed update starts, and its level; until its reply arrives."""
        self._given_up = set[Key]()
        """Updates that the server no longer waits for."""
        self.events = list[Event]()
        """Events that `poll` has not returned yet."""
        self._connected = set(self.node_of.values())
        self._ignored = set[int]()
        """Nodes that cannot be clients."""
        self._looked_s = self.clock()
        self._warned_capped: set[tuple[int, float]] = set()
        """Clients and step-size factors whose step size was logged as limited."""

    def send(self, updates: Updates, round: int, patience_s: FloatArray) -> int:
        """Ask clients to train these updates, each from its base version; messages expire after `patience_s`.

        Returns the size of the arrays that were sent, in bytes.
        """
        bases = {version: self._record(version) for version in set(updates.base_version.tolist())}
        rates = self.lane.step_sizes(updates).tolist()
        self._warn_capped(updates, rates)
        messages = []
        for row, (client, index) in enumerate(updates.keys):
            config = ConfigRecord(
                {
                    **self.config,  # type: ignore[dict-item]  # checked by Flower
                    **self._work(int(updates.local_steps[row])),
                    **({"update": index} if self.sends_index else {}),
                    "server-round": round,
                    self.fields.lr: rates[row],
                }
            )
            arrays = bases[int(updates.base_version[row])]
            content, ttl = RecordDict({self.fields.arrays: arrays, self.fields.config: config}), float(patience_s[row])
            if self.uploads is not None:
                level, base = float(updates.level[row]), self.lane.versions[int(updates.base_version[row])]
                self._started[client, index] = base.cpu().numpy(), level
                content[ASKED] = self.uploads.ask(level, client, index, self.last_received(client))
            messages.append(Message(content, self.node_of[client], MessageType.TRAIN, ttl=ttl, group_id=str(round)))
        sent = self.mailbox.send(messages, [partial(self._reply, update) for update in updates.keys])
        for update, is_sent in zip(updates.keys, sent, strict=True):
            if not is_sent:
                self.events.append(Reply(*update, fault=NOT_SENT.reason, detail=NOT_SENT.detail))
        return sum(content_bytes(message.content) for message, is_sent in zip(messages, sent, strict=True) if is_sent)

    def poll(self) -> Sequence[Event]:
        """Return the events since the last call, without waiting."""
        self.mailbox.dispatch()
        if self.clock() - self._looked_s >= LOOK_EVERY_S:
            self.events += self._look()
        events, self.events = self.events, []
        return events

    def take_returned(self) -> IntArray:
        """Return the clients that can train again, and remove their events."""
        returned = [event.client for event in self.events if isinstance(event, Returned)]
        self.events = [event for event in self.events if not isinstance(event, Returned)]
        return np.array(returned, dtype=np.int64)

    def is_connected(self, client: int) -> bool:
        """Return whether a client's node was connected when the server last looked."""
        return self.node_of.get(client) in self._connected

    def give_up(self, updates: Updates) -> None:
        """Stop waiting for these updates; those that still arrive are reported as too late, without their models."""
        keys = set(updates.keys)
        self._given_up |= keys - self.received.held.keys()
        for key in keys:
            self._started.pop(key, None)
        for place, event in enumerate(self.events):
            if isinstance(event, Reply) and event.key in keys and not event.fault:  # not returned by `poll` yet
                self.events[place] = replace(event, fault=TOO_LATE, detail=GIVEN_UP)

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

    def _work(self, local_steps: int) -> dict[str, int]:
        """Return the field of the config that says how much to train, if the strategy has changed this."""
        work = {LOCAL_STEPS: local_steps} if local_steps != self.config.get(LOCAL_STEPS, 1) else {}
        if work and LOCAL_STEPS not in self.config:
            raise InputError(
                f"train_config must have '{LOCAL_STEPS}', the usual number of minibatches of a local training, because "
                "this strategy sets other numbers"
            )
        return work

    def _record(self, version: int) -> ArrayRecord:
        return self.layout.record(self.lane.versions[version].cpu().numpy())

    def _reply(self, update: Key, answer: Answer, received_s: float) -> None:
        """Convert the answer to a request to train. Anything wrong with it becomes a fault of this reply."""
        content = None if isinstance(answer, Exception) or not answer.has_content() else answer.content
        size = 0
        started = self._started.pop(update, None)
        try:
            size = 0 if content is None else content_bytes(content)
            if update in self._given_up:
                self._given_up.remove(update)
                if content is not None:
                    self.events.append(Reply(*update, fault=TOO_LATE, detail=GIVEN_UP, num_bytes=size))
                return
            weight, metrics = read_report(answer, self.fields)
            assert content is not None, "otherwise, there is no report"
            vector, times = self._vector(read_arrays(content), started), read_times(content)
        except Exception as error:
            fault = fault_of(error)
            reply = Reply(*update, fault=fault.reason, detail=fault.detail, num_bytes=size, received=received_s)
        else:
            self.received.held[update] = vector
            compute_s = times.compute_s if times is not None and times.compute_s >= 0 else None
            reply = Reply(*update, weight, metrics, num_bytes=size, received=received_s, compute_s=compute_s)
        self.events.append(reply)

    def _vector(self, arrays: ArrayRecord, started: tuple[Vector, float] | None) -> Vector:
        """Return the model of a reply; `started` is what `_started` has if it is compressed."""
        if self.uploads is None or started is None:
            return self.layout.vector(arrays)
        return self.uploads.codec.decode(arrays, *started)

    def _warn_capped(self, updates: Updates, rates: Sequence[float]) -> None:
        """Log that lr_cap limits the step size of a client, once for each factor, which is the tier for LESSON."""
        uncapped_rates = self.lane.uncapped_step_sizes(updates).tolist()
        for client, scale, lr, uncapped in zip(
            updates.client.tolist(), updates.lr_scale.tolist(), rates, uncapped_rates, strict=True
        ):
            if lr < uncapped and (client, scale) not in self._warned_capped:
                self._warned_capped.add((client, scale))
                warn(
                    f"client {self.names[client]}: the step size is limited to {lr:g} by lr_cap; "
                    f"{scale:g} times that of tier 1 would be {uncapped:g}"
                )

    def _look(self) -> list[Event]:
        """Return which clients have joined and left since the last check; admit unknown nodes."""
        self._looked_s = self.clock()
        if (found := self.mailbox.nodes()) is None:
            return []
        nodes = {node.node_id: node for node in found}
        connected, client_of = set(nodes), {node: client for client, node in self.node_of.items()}
        left = sorted(self._connected - connected)
        events: list[Event] = [Left(client_of[node]) for node in left if node in client_of]
        events += [Joined(client_of[node]) for node in sorted(connected - self._connected) if node in client_of]
        unknown = sorted(connected - client_of.keys())
        if self.roster is not None and unknown:
            events += self._admit(self.roster, [nodes[node] for node in unknown], connected)
        self._connected = connected
        return events

    def _admit(self, roster: Roster, nodes: Sequence[Node], connected: Collection[int]) -> list[Event]:
        """Make unknown nodes the clients that they were before, or new ones if there is room."""
        clients = roster.admit(nodes, connected)
        self.node_of |= {client: node for node, client in clients.items()}
        names = names_of(nodes)
        for node in sorted(names.keys() - clients.keys() - self._ignored):
            self._ignored.add(node)
            full = f"the run already has its maximum of {roster.num_clients} clients"
            why = full if len(roster.nodes) == roster.num_clients else "another node with its key is connected"
            warn(f"ignoring node {names[node]}: {why}")
        return [Joined(client, assumed_s=self.assumed_s(client)) for client in clients.values()]
