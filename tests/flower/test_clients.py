"""Messages to clients and their updates: what is sent, what is rejected and why, who connects and disconnects."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from helpers.local_grid import LocalGrid, MakeGrid
from lesson import InputError
from lesson.clock.worlds import Event, Joined, Left, Reply
from lesson.clock.worlds.clients import LOST, NO_REPLY, TOO_LATE
from lesson.flower.arrays import Layout
from lesson.flower.clients import LOOK_EVERY_S, GridClients
from lesson.flower.mailbox import Mailbox
from lesson.flower.replies import FieldNames, weighted_means
from lesson.flower.times import report_times
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.remote import Received
from lesson.settings.settings import Settings
from lesson.strategies.base import Updates

MODEL = {"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.array([3.0], dtype=np.float32)}


def arrays_of(**changed: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in (MODEL | changed).items()})


def updates_of(*clients: int, index: int = 0, lr_scale: float = 1.0, local_steps: int = 1) -> Updates:
    number = len(clients)
    whole, real = np.full(number, 0), np.zeros(number)
    return Updates(
        id=np.arange(number),
        client=np.array(clients),
        base_version=whole,
        started_round=whole + 1,
        started_s=real,
        expected_s=real + 1,
        arrived_s=real + np.inf,
        index=whole + index,
        lr_scale=real + lr_scale,
        local_steps=whole + local_steps,
        samples=whole,
        tier=whole,
        level=real + np.nan,
        compute_scale=real + 6,
        upload_scale=real + 1,
        in_turn=whole > 0,
    )


class Asking:
    """Two clients on a grid of nodes that answer with `answer`, and a clock of its own."""

    def __init__(self, make_grid: MakeGrid, answer: Callable[[Message], Message | None], **options: Any) -> None:
        self.grid: LocalGrid = make_grid(ClientApp(), 2)
        self.grid.handle = lambda message, _: answer(message)
        self.now_s = 0.0
        record = arrays_of()
        layout, self.received = Layout.of(record), Received()
        settings = Settings()
        parts = settings.training, ServerOptimizer(settings.server), settings.guards
        lane = Lane(torch.from_numpy(layout.vector(record)), *parts)
        node_of = dict(enumerate(sorted(self.grid.nodes)))
        mailbox = Mailbox(self.grid)
        options |= {"clock": lambda: self.now_s}
        self.clients = GridClients(mailbox, node_of, [0, 1, 2], layout, lane, self.received, **options)

    def send(self, *clients: int, patience_s: float = 60.0, **options: Any) -> int:
        return self.clients.send(updates_of(*clients, **options), 5, np.full(len(clients), patience_s))

    def events(self, count: int = 1) -> list[Event]:
        """Wait for this many events."""
        events, until_s = list[Event](), time.monotonic() + 60
        while len(events) < count and time.monotonic() < until_s:
            events += self.clients.poll()
            time.sleep(0.002)
        return events

    def reply(self) -> Reply:
        (event,) = self.events()
        assert isinstance(event, Reply)
        return event

    def look(self) -> list[Event]:
        """Poll when the connected nodes are checked again."""
        self.now_s += LOOK_EVERY_S
        return list(self.clients.poll())


def good(message: Message, **changed: Any) -> Message:
    metrics = {"train_loss": 0.5, "num-examples": 20} | changed
    return Message(RecordDict({"arrays": arrays_of(), "metrics": MetricRecord(metrics)}), reply_to=message)


def test_what_a_client_receives(make_grid: MakeGrid) -> None:
    """The step size is 0.1 · 4. Round and step size are the server's; otherwise, the train config of the app counts."""
    seen: list[Message] = []

    def answer(message: Message) -> Message:
        seen.append(message)
        return good(message)

    asking = Asking(make_grid, answer, config={"lr": 9.0, "epochs": 3, "local-steps": 2})
    asking.send(1, index=6, lr_scale=4.0, local_steps=2)
    assert asking.reply() == Reply(1, 6, weight=20.0, metrics={"train_loss": 0.5})
    expected = {"lr": 0.4, "epochs": 3, "local-steps": 2, "server-round": 5}
    assert dict(seen[0].content["config"]) == expected
    assert list(seen[0].content) == ["arrays", "config"]
    assert seen[0].content["arrays"]["w"].numpy().tolist() == [1.0, 2.0]
    assert (seen[0].metadata.message_type, seen[0].metadata.ttl) == ("train", 60.0)
    assert asking.received.held[1, 6].tolist() == [1.0, 2.0, 3.0]


def test_records_and_fields_can_have_other_names(make_grid: MakeGrid) -> None:
    def answer(message: Message) -> Message:
        assert list(message.content) == ["model", "orders"]
        assert message.content["orders"]["eta"] == 0.1
        return good(message, samples=7)

    asking = Asking(make_grid, answer, fields=FieldNames("model", "orders", "samples", "eta"))
    asking.send(0)
    assert asking.reply().weight == 7.0


def test_sizes_of_messages(make_grid: MakeGrid) -> None:
    """Each array has a header of 128 bytes: 128 + 8 and 128 + 4 down; up, client 1 sends 'b' with 8 bytes, which is
    rejected for its shape and has been uploaded all the same. Node 4711 is not connected."""

    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id == asking.clients.node_of[0]:
            return good(message)
        return Message(content(arrays_of(b=np.ones(2, dtype=np.float32)), **{"num-examples": 1}), reply_to=message)

    asking = Asking(make_grid, answer)
    asking.clients.node_of[2] = 4711
    assert asking.send(0, 1, 2) == 2 * (136 + 132)
    sizes = {event.client: (event.fault, event.num_bytes) for event in asking.events(3) if isinstance(event, Reply)}
    assert sizes == {0: ("", 136 + 132), 1: ("wrong shape", 136 + 136), 2: ("not sent", 0)}


def test_simulation_that_returns_no_id_for_a_missing_node(make_grid: MakeGrid) -> None:
    """A deployment returns an empty id in its place, as in the test above. The other message is sent all the same."""
    asking = Asking(make_grid, good)
    push = asking.grid.push_messages

    def push_messages(messages: list[Message]) -> list[str]:
        messages[0].metadata.__dict__["_message_id"] = "of nobody"  # Flower sets it all the same
        return push(messages[1:])

    asking.grid.push_messages = push_messages  # type: ignore[assignment,method-assign]
    asking.send(0, 1)
    assert [event.fault for event in asking.events(2) if isinstance(event, Reply)] == ["not sent", ""]


def content(*records: ArrayRecord, **metrics: Any) -> RecordDict:
    named = {f"arrays {place}": record for place, record in enumerate(records)}
    return RecordDict({**named, "metrics": MetricRecord(metrics)})


@pytest.mark.parametrize(
    ("reply", "fault", "detail"),
    [
        (content(arrays_of(), arrays_of(), **{"num-examples": 1}), "wrong arrays", "got 2"),
        (content(**{"num-examples": 1}), "wrong arrays", "got 0"),
        (content(arrays_of(), loss=0.5), "no weight", "got none"),
        (content(arrays_of(), **{"num-examples": [1, 2]}), "no weight", "got 2 values"),
        (Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "out of memory"), "client error", "code 2: out of memory"),
        (Error(ErrorCode.CLIENT_APP_CRASHED, "gone"), "client crashed", "code 8: gone"),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, ""), NO_REPLY, "code 3"),
        (Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat"), LOST, "code 5: no heartbeat"),
        (Error(1000, "x" * 999), "error reply", f"code 1000: {'x' * 188}…"),
    ],
)
def test_rejected_replies(make_grid: MakeGrid, reply: Any, fault: str, detail: str) -> None:
    asking = Asking(make_grid, lambda message: Message(reply, reply_to=message))
    asking.send(0)
    rejected = asking.reply()
    assert (rejected.client, rejected.index, rejected.fault) == (0, 0, fault)
    assert detail in rejected.detail
    assert len(rejected.detail) <= 200
    assert not asking.received.held


def test_local_training_whose_size_the_strategy_sets(make_grid: MakeGrid) -> None:
    """Numbers that differ from the usual ones, and the index if the server asks for it."""
    seen: list[Message] = []

    def answer(message: Message) -> Message:
        seen.append(message)
        return good(message)

    asking = Asking(make_grid, answer, config={"local-steps": 4}, sends_index=True)
    asking.send(0, local_steps=2, index=6)
    asking.reply()
    assert dict(seen[0].content["config"]) == {
        "local-steps": 2,
        "update": 6,
        "server-round": 5,
        "lr": 0.1,
    }
    with pytest.raises(InputError, match="train_config must have 'local-steps'"):
        Asking(make_grid, answer).send(0, local_steps=2)


def test_reported_compute_time(make_grid: MakeGrid) -> None:
    """The mod of the client measures it; metrics of several records count as one, without lists."""

    def answer(message: Message) -> Message:
        parts = {"a": MetricRecord({"num-examples": 3}), "b": MetricRecord({"loss": 1.0, "all": [1.0, 2.0]})}
        return Message(RecordDict({"arrays": arrays_of(), **parts}), reply_to=message)

    context = Context(1, 1, {}, RecordDict(), {})
    asking = Asking(make_grid, lambda message: report_times(message, context, lambda message, _: answer(message)))
    asking.send(0)
    reply = asking.reply()
    assert reply == Reply(0, 0, 3.0, {"loss": 1.0})
    assert reply.compute_s is not None
    assert 0 <= reply.compute_s < 60


def test_late_reply_of_a_given_up_update_is_discarded(make_grid: MakeGrid) -> None:
    """Client 0 is given up; both then answer. The model of the late one is not kept, the other one's is."""
    given_up = threading.Event()

    def answer(message: Message) -> Message:
        assert given_up.wait(60)
        return good(message)

    asking = Asking(make_grid, answer)
    asking.send(0, 1, index=4)
    asking.clients.give_up(updates_of(0, index=4))
    given_up.set()
    events = sorted(asking.events(2), key=lambda event: event.client)
    assert [event.fault for event in events if isinstance(event, Reply)] == [TOO_LATE, ""]
    assert asking.received.held.keys() == {(1, 4)}
    assert list(asking.clients.poll()) == []


def test_update_that_is_given_up_after_its_arrival_is_late(make_grid: MakeGrid) -> None:
    """Its reply arrived during an evaluation, so that the round loop has not seen it: its model must not be kept."""
    asking = Asking(make_grid, good)
    asking.send(0)
    while not asking.received.held:
        asking.clients.mailbox.dispatch()
    asking.clients.give_up(updates_of(0))
    asking.clients.forget(updates_of(0))
    assert asking.reply().fault == TOO_LATE
    assert not asking.received.held


def test_late_error_of_a_given_up_update_is_ignored(make_grid: MakeGrid) -> None:
    asking = Asking(make_grid, lambda _: None)
    asking.send(0, patience_s=0.02)
    asking.clients.give_up(updates_of(0))
    time.sleep(0.2)
    assert list(asking.clients.poll()) == []


def test_nodes_disconnect_and_reconnect(make_grid: MakeGrid) -> None:
    """The server looks every five seconds, and leaves nodes of no client alone."""
    asking = Asking(make_grid, good)
    asking.grid.nodes[4711] = Context(1, 4711, {}, RecordDict(), {})
    asking.grid.offline.add(asking.clients.node_of[1])
    assert list(asking.clients.poll()) == []
    assert asking.look() == [Left(1)]
    assert not asking.clients.is_connected(1)
    asking.grid.offline.clear()
    (event,) = asking.look()
    assert isinstance(event, Joined)
    assert (event.client, math.isnan(event.assumed_s)) == (1, True)
    assert asking.clients.is_connected(1)


def test_means_by_hand() -> None:
    """(3·1 + 1·5) / 4; what only one of them reports is left out. The last case has no finite sum."""
    assert weighted_means([(3.0, {"loss": 1.0, "own": 9.0}), (1.0, {"loss": 5.0})]) == MetricRecord({"loss": 2.0})
    assert weighted_means([]) is None
    assert weighted_means([(3.0, {}), (1.0, {"loss": 5.0})]) is None
    assert weighted_means([(1e12, {"loss": 1.5e308}), (1e12, {"loss": 0.5e308})]) == MetricRecord({"loss": 1e308})
