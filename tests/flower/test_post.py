"""Messages to clients and their updates: what is sent, what is rejected and why, who connects and disconnects."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from helpers.local_grid import LocalGrid, MakeGrid
from lesson.clock.worlds import Event, Joined, Left, Reply
from lesson.clock.worlds.clients import LOST, NO_REPLY, TOO_LATE
from lesson.flower.arrays import Layout
from lesson.flower.post import LOOK_EVERY_S, FieldNames, GridClients, weighted_means
from lesson.flower.profile import TYPE, Profiler
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.remote import Received, as_tensor
from lesson.learn.robust.guard import MergeGuard
from lesson.settings.settings import Settings
from lesson.strategies.base import Updates

MODEL = {"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.array([3.0], dtype=np.float32)}


def arrays_of(**changed: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in (MODEL | changed).items()})


def updates_of(*clients: int, index: int = 0, lr_scale: float = 1.0, base: int = 0) -> Updates:
    """Work that these clients begin."""
    number = len(clients)
    whole, real = np.full(number, 0), np.zeros(number)
    return Updates(
        id=np.arange(number),
        client=np.array(clients),
        base_version=whole + base,
        started_round=whole + 1,
        started_s=real,
        expected_s=real + 1,
        arrived_s=real + np.inf,
        index=whole + index,
        lr_scale=real + lr_scale,
        local_steps=whole + 2,
        batches=whole + 3,
        compute_scale=real + 6,
        in_turn=whole > 0,
    )


class Asking:
    """A post on a grid of two nodes that answer as told, and a clock of its own."""

    def __init__(self, make_grid: MakeGrid, answer: Callable[[Message], Message | None], **options: Any) -> None:
        self.grid: LocalGrid = make_grid(ClientApp(), 2)
        self.grid.handle = lambda message, _: answer(message)
        self.now_s = 0.0
        record = arrays_of()
        layout, self.received = Layout.of(record), Received()
        settings = Settings()
        parts = settings.training, ServerOptimizer(settings.server), MergeGuard(settings.guards)
        server = ModelServer(as_tensor(layout.vector(record)), self.received, *parts)
        node_of = dict(enumerate(sorted(self.grid.nodes)))
        self.post = GridClients(
            self.grid, 2, node_of, layout, server, self.received, clock=lambda: self.now_s, **options
        )

    def send(self, *clients: int, patience_s: float = 60.0, **options: Any) -> None:
        self.post.send(updates_of(*clients, **options), 5, np.full(len(clients), patience_s))

    def events(self, count: int = 1) -> list[Event]:
        """What happens, once there is so much of it."""
        events, until_s = list[Event](), time.monotonic() + 60
        while len(events) < count and time.monotonic() < until_s:
            events += self.post.poll()
            time.sleep(0.002)
        return events

    def reply(self) -> Reply:
        (event,) = self.events()
        assert isinstance(event, Reply)
        return event


def good(message: Message, **changed: Any) -> Message:
    """A reply as Flower's quickstart has it."""
    told = {"train_loss": 0.5, "num-examples": 20} | changed
    return Message(RecordDict({"arrays": arrays_of(), "metrics": MetricRecord(told)}), reply_to=message)


def test_each_reply_has_the_time_at_which_it_was_pulled(make_grid: MakeGrid) -> None:
    """Both replies are there when the server polls at 0 s; pulling a message takes a second."""
    asking = Asking(make_grid, good)
    asking.send(0, 1)
    pull = asking.grid.pull_messages

    def slow(ids: Iterable[str]) -> Iterable[Message]:
        asking.now_s += 1.0
        return pull(ids)

    asking.grid.pull_messages = slow  # type: ignore[method-assign]
    received = {event.client: event.received for event in asking.events(2) if isinstance(event, Reply)}
    assert len(received) == len(set(received.values())) == 2


def test_what_a_client_is_told(make_grid: MakeGrid) -> None:
    """The step size is 0.1 · 4; the round is the server's, the index the client's own."""
    seen: list[Message] = []

    def answer(message: Message) -> Message:
        seen.append(message)
        return good(message)

    asking = Asking(make_grid, answer, config={"lr": 9.0, "epochs": 3})
    asking.send(1, index=6, lr_scale=4.0)
    asking.now_s = 2.5
    reply = asking.reply()
    assert reply == Reply(1, 6, weight=20.0, metrics={"train_loss": 0.5})
    (config,) = seen[0].content.config_records.values()
    assert dict(config) == {
        "lr": 0.4,
        "epochs": 3,
        "server-round": 5,
        "local-steps": 2,
        "batches": 3,
        "update": 6,
    }
    assert list(seen[0].content) == ["arrays", "config"]
    assert seen[0].content["arrays"]["w"].numpy().tolist() == [1.0, 2.0]
    assert (seen[0].metadata.message_type, seen[0].metadata.ttl) == ("train", 60.0)
    assert asking.received.held[1, 6].tolist() == [1.0, 2.0, 3.0]


def test_sizes_of_messages(make_grid: MakeGrid) -> None:
    """Each array has a header of 128 bytes: 128 + 8 and 128 + 4 down; up, client 1 sends 'b' with 8 bytes, which is
    rejected for its shape and has been uploaded all the same."""

    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id == asking.post.node_of[0]:
            return good(message)
        return Message(content(arrays_of(b=np.ones(2, dtype=np.float32)), **{"num-examples": 1}), reply_to=message)

    asking = Asking(make_grid, answer)
    asking.grid.offline.add(4711)
    asking.post.node_of[2] = 4711
    assert asking.post.send(updates_of(0, 1, 2), 5, np.full(3, 60.0)) == 2 * (136 + 132), "nothing to node 4711"
    sizes = {event.client: (event.fault, event.num_bytes) for event in asking.events(3) if isinstance(event, Reply)}
    assert sizes == {0: ("", 136 + 132), 1: ("wrong shape", 136 + 136), 2: ("not sent", 0)}


def test_a_limited_step_size_is_a_warning_once_for_each_factor(make_grid: MakeGrid) -> None:
    """0.1 · 12 is more than 1.0, the cap of `released`; 0.1 · 10 is not."""
    warned = list[str]()
    asking = Asking(make_grid, good, warn=warned.append, names=["pi", "phone"])
    for index, lr_scale in enumerate([1.0, 10.0, 12.0, 12.0, 20.0]):
        asking.send(1, index=index, lr_scale=lr_scale)
    assert warned == [
        "client phone: the step size is limited to 1 by lr_cap; 12 times that of tier 1 would be 1.2",
        "client phone: the step size is limited to 1 by lr_cap; 20 times that of tier 1 would be 2",
    ]


def test_records_and_fields_can_have_other_names(make_grid: MakeGrid) -> None:
    def answer(message: Message) -> Message:
        assert list(message.content) == ["model", "orders"]
        assert message.content["orders"]["eta"] == 0.1
        return good(message, samples=7)

    asking = Asking(make_grid, answer, words=FieldNames("model", "orders", "samples", "eta"))
    asking.send(0)
    assert asking.reply().weight == 7.0


def test_several_records_of_metrics_count_as_one(make_grid: MakeGrid) -> None:
    def answer(message: Message) -> Message:
        parts = {"a": MetricRecord({"num-examples": 3}), "b": MetricRecord({"loss": 1.0, "all": [1.0, 2.0]})}
        return Message(RecordDict({"arrays": arrays_of(), **parts}), reply_to=message)

    asking = Asking(make_grid, answer)
    asking.send(0)
    assert asking.reply() == Reply(0, 0, 3.0, {"loss": 1.0})


def content(*records: ArrayRecord, **told: Any) -> RecordDict:
    named: Iterable[tuple[str, Any]] = [(f"arrays {place}", record) for place, record in enumerate(records)]
    return RecordDict(dict(named) | {"metrics": MetricRecord(told)})


@pytest.mark.parametrize(
    ("reply", "fault", "detail"),
    [
        (content(arrays_of(w=np.array([1, np.nan], dtype=np.float32)), **{"num-examples": 1}), "not finite", "'w'"),
        (content(arrays_of(w=np.ones(3, dtype=np.float32)), **{"num-examples": 1}), "wrong shape", "(3,), not (2,)"),
        (content(arrays_of(c=np.ones(1)), **{"num-examples": 1}), "wrong arrays", "unexpected array 'c'"),
        (content(ArrayRecord([np.ones(2), np.ones(1)]), **{"num-examples": 1}), "wrong arrays", "unexpected array '0'"),
        (content(arrays_of(), arrays_of(), **{"num-examples": 1}), "wrong arrays", "got 2"),
        (content(**{"num-examples": 1}), "wrong arrays", "got 0"),
        (content(arrays_of(), loss=0.5), "no weight", "'num-examples' must be > 0 and at most 1e+12, got none"),
        (content(arrays_of(), **{"num-examples": 0}), "no weight", "must be > 0 and at most 1e+12, got 0"),
        (content(arrays_of(), **{"num-examples": -3}), "no weight", "-3"),
        (content(arrays_of(), **{"num-examples": math.nan}), "no weight", "nan"),
        (content(arrays_of(), **{"num-examples": math.inf}), "no weight", "inf"),
        (content(arrays_of(), **{"num-examples": 1e308}), "no weight", "1e+308"),
        (content(arrays_of(), **{"num-examples": [1, 2]}), "no weight", "got 2 values"),
        (RecordDict({"arrays": arrays_of()}), "no weight", "got none"),
        (Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "out of memory"), "client error", "code 2: out of memory"),
        (Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION), "client error", "code 1: no reason given"),
        (Error(ErrorCode.CLIENT_APP_CRASHED, "gone"), "client crashed", "code 8: gone"),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, ""), NO_REPLY, "code 3"),
        (Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat"), LOST, "code 5: no heartbeat"),
        (Error(1000, "x" * 999), "error reply", f"code 1000: {'x' * 188}…"),
    ],
)
def test_what_is_rejected_and_why(make_grid: MakeGrid, reply: Any, fault: str, detail: str) -> None:
    asking = Asking(make_grid, lambda message: Message(reply, reply_to=message))
    asking.send(0)
    rejected = asking.reply()
    assert (rejected.client, rejected.index, rejected.fault) == (0, 0, fault)
    assert detail in rejected.detail
    assert len(rejected.detail) <= 200
    assert not asking.received.held


def test_where_the_server_knows_what_clients_count_for_they_need_not_say(make_grid: MakeGrid) -> None:
    asking = Asking(
        make_grid,
        lambda message: Message(content(arrays_of(), loss=0.5), reply_to=message),
        clients_report_weight=False,
    )
    asking.send(0)
    assert asking.reply() == Reply(0, 0, None, {"loss": 0.5})


@pytest.mark.parametrize("told", [[""], []])
def test_a_node_that_is_not_there_is_a_fault(make_grid: MakeGrid, told: list[str]) -> None:
    """A deployment answers with an empty id, a simulation with none. The other message goes out all the same."""
    asking = Asking(make_grid, good)
    push, missing = asking.grid.push_messages, asking.post.node_of[0]

    def push_messages(messages: list[Message]) -> list[str]:
        assert messages[0].metadata.dst_node_id == missing
        messages[0].metadata.__dict__["_message_id"] = "of nobody"  # both set it all the same
        return told + push(messages[1:])

    asking.grid.push_messages = push_messages  # type: ignore[assignment,method-assign]
    asking.send(0, 1)
    first, second = asking.events(2)
    assert first == Reply(0, 0, fault="not sent", detail="the node is not connected, or the model is too large")
    assert second == Reply(1, 0, 20.0, {"train_loss": 0.5})


def test_no_message_is_asked_for_twice(make_grid: MakeGrid) -> None:
    """The grid tells an error for an id that it has answered: none may come."""
    asking = Asking(make_grid, good)
    asking.send(0, 1)
    assert len(asking.events(2)) == 2
    assert not asking.events(0)
    for _ in range(5):
        assert list(asking.post.poll()) == []


def test_after_its_patience_there_is_no_reply(make_grid: MakeGrid) -> None:
    asking = Asking(make_grid, lambda _: None)
    asking.send(0, patience_s=1.0)
    assert list(asking.post.poll()) == []
    assert asking.reply().fault == NO_REPLY


def test_what_was_given_up_comes_too_late(make_grid: MakeGrid) -> None:
    """Client 0 is given up; both then answer. The model of the late one is not kept, the other one's is."""
    given_up = threading.Event()

    def answer(message: Message) -> Message:
        assert given_up.wait(60)
        return good(message)

    asking = Asking(make_grid, answer)
    asking.send(0, 1, index=4)
    asking.post.give_up(np.array([0]))
    given_up.set()
    events = sorted(asking.events(2), key=lambda event: event.client)
    assert [(event.client, event.index, event.fault) for event in events if isinstance(event, Reply)] == [
        (0, 4, TOO_LATE),
        (1, 4, ""),
    ]
    assert asking.received.held.keys() == {(1, 4)}
    assert list(asking.post.poll()) == []


def test_an_error_of_what_was_given_up_is_nobodys_business(make_grid: MakeGrid) -> None:
    asking = Asking(make_grid, lambda _: None)
    asking.send(0, patience_s=0.02)
    asking.post.give_up(np.array([0]))
    time.sleep(0.03)
    assert list(asking.post.poll()) == []
    assert list(asking.post.poll()) == []


def test_models_are_kept_until_they_are_forgotten(make_grid: MakeGrid) -> None:
    asking = Asking(make_grid, good)
    asking.send(0, 1)
    asking.events(2)
    (model,) = asking.post.models_of(updates_of(1))
    asking.post.forget(updates_of(0, 1))
    assert not asking.received.held
    asking.post.put_back(updates_of(1), [model])
    assert asking.received.held[1, 0] is model


def test_nodes_go_and_come_back(make_grid: MakeGrid) -> None:
    """Who is connected is looked at every two seconds."""
    asking = Asking(make_grid, good)
    node = asking.post.node_of[1]
    asking.grid.offline.add(node)
    assert list(asking.post.poll()) == []
    asking.now_s += LOOK_EVERY_S
    assert list(asking.post.poll()) == [Left(1)]
    asking.now_s += LOOK_EVERY_S
    assert list(asking.post.poll()) == []
    asking.grid.offline.clear()
    asking.now_s += LOOK_EVERY_S
    (event,) = asking.post.poll()
    assert isinstance(event, Joined)
    assert (event.client, math.isnan(event.latency_s)) == (1, True)


def introduces(client: int, num_clients: int = 2) -> Callable[[Message], Message | None]:
    """Answers who it is, and that of its time 1 s was computing."""

    def answer(message: Message) -> Message | None:
        if message.metadata.message_type != TYPE:
            return good(message)
        told = {"client": client, "num-clients": num_clients, "num-examples": 30, "compute-s": 1.0, "busy-s": 3.0}
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    return answer


def new_node(asking: Asking) -> int:
    """Another node, of nobody knows whom."""
    node = max(asking.grid.nodes) + 1
    asking.grid.nodes[node] = Context(1, node, {}, RecordDict(), {})
    asking.grid._node_locks[node] = asking.grid._node_locks[min(asking.grid.nodes)]
    asking.now_s += LOOK_EVERY_S
    return node


def test_a_new_node_is_asked_who_it_is(make_grid: MakeGrid) -> None:
    """Client 1 is unknown to begin with. The answer is there after 5 s, of which the client was busy for 3: the way is
    2 s, and with 1 s of computing it takes 3 s."""
    asking = Asking(make_grid, introduces(1), profiler=Profiler(arrays_of()))
    asking.grid.offline.add(asking.post.node_of.pop(1))
    node = new_node(asking)
    until_s = time.monotonic() + 60
    while asking.grid.num_pushed < 2 and time.monotonic() < until_s:  # the first answer does not count
        assert not any(isinstance(event, Joined) for event in asking.post.poll())
        time.sleep(0.002)
    asking.now_s += 5.0
    assert Joined(1, 3.0, 1.0) in asking.events()
    assert asking.post.node_of[1] == node
    asking.send(1)
    assert asking.reply().fault == ""


def test_a_client_that_comes_back_on_another_node_is_known_when_the_old_one_is_gone(make_grid: MakeGrid) -> None:
    """As where a killed client is started again: for a while its old node is still taken to be there."""
    asking = Asking(make_grid, introduces(1), profiler=Profiler(arrays_of(), patience_s=2 * LOOK_EVERY_S))
    old, node = asking.post.node_of[1], new_node(asking)
    for _ in range(3):
        asking.post.poll()
        time.sleep(0.05)
        assert list(asking.post.poll()) == [], "the old one is still there"
        asking.now_s += LOOK_EVERY_S
    asking.grid.offline.add(old)
    events, until_s = list[Event](), time.monotonic() + 60
    while len(events) < 2 and time.monotonic() < until_s:
        events += asking.post.poll()
        asking.now_s += LOOK_EVERY_S
        time.sleep(0.01)
    assert [type(event) for event in events] == [Left, Joined]
    assert asking.post.node_of[1] == node


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (introduces(1), "it claims partition 1, which node 1007 has"),
        (introduces(0, num_clients=5), "it reports 5 partitions, the run has 2"),
    ],
)
def test_node_that_joins_with_a_conflicting_claim_is_left_out(
    make_grid: MakeGrid, answer: Callable[[Message], Message | None], why: str
) -> None:
    """It is asked three times and named once; the client that has the partition works on."""
    told: list[str] = []
    profiler = Profiler(arrays_of(), patience_s=2 * LOOK_EVERY_S)
    asking = Asking(make_grid, answer, profiler=profiler, warn=told.append)
    node = new_node(asking)
    for _ in range(6):
        assert list(asking.post.poll()) == []
        time.sleep(0.02)
        assert list(asking.post.poll()) == []
        asking.now_s += LOOK_EVERY_S
    assert asking.grid.num_pushed >= 3
    assert told == [f"ignoring node {node}: {why}"]
    assert node not in asking.post.node_of.values()


def test_another_node_that_takes_over_a_client_is_logged(make_grid: MakeGrid) -> None:
    told: list[str] = []
    asking = Asking(make_grid, introduces(1), profiler=Profiler(arrays_of()), tell=told.append)
    old, node = asking.post.node_of[1], new_node(asking)
    asking.grid.offline.add(old)
    assert [type(event) for event in asking.events(2)] == [Left, Joined]
    assert asking.post.node_of[1] == node
    assert told == [f"client 1 moved from node {old}, which disconnected, to node {node}"]


def test_a_node_that_says_nothing_of_use_takes_no_part(make_grid: MakeGrid) -> None:
    for answer in (good, introduces(2), lambda message: Message(Error(2, "no such query"), reply_to=message)):
        asking = Asking(make_grid, answer, profiler=Profiler(arrays_of()))
        new_node(asking)
        asking.post.poll()
        time.sleep(0.05)
        assert list(asking.post.poll()) == []


def test_without_a_profiler_unknown_nodes_are_left_alone(make_grid: MakeGrid) -> None:
    asking = Asking(make_grid, good)
    new_node(asking)
    assert list(asking.post.poll()) == []
    assert asking.grid.num_pushed == 0


def test_means_by_hand() -> None:
    """(3·1 + 1·5) / 4; what only one of them tells is left out."""
    assert weighted_means([(3.0, {"loss": 1.0, "own": 9.0}), (1.0, {"loss": 5.0})]) == MetricRecord({"loss": 2.0})
    assert weighted_means([]) is None
    assert weighted_means([(3.0, {}), (1.0, {"loss": 5.0})]) is None


def test_what_the_train_config_says_is_not_overwritten(make_grid: MakeGrid) -> None:
    """But for the round and the step size, which are the server's."""
    seen: list[dict[str, Any]] = []

    def train(message: Message) -> Message:
        seen.append(dict(message.content["config"]))
        return good(message)

    asking = Asking(make_grid, train, config={"local-steps": 50, "update": "x", "lr": 9.0, "epochs": 2})
    asking.send(0)
    asking.reply()
    (config,) = seen
    assert (config["local-steps"], config["update"], config["epochs"], config["batches"]) == (50, "x", 2, 3)
    assert config["lr"] != 9.0
