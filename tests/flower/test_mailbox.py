"""Replies: when they are requested, and what happens to slow uploads, undecodable replies and failing requests."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from local_processes import wait

from helpers.local_grid import LocalGrid, MakeGrid
from lesson.core.errors import RunStoppedError
from lesson.flower.mailbox import OUTAGE_S, Answer, Mailbox
from tests.stress.replies import UNDECODABLE, federate

Pull = Callable[[Iterable[str]], list[Message]]


class Letters:
    """Messages to the nodes of a grid, the answers so far by the partition of the node, and a clock that is set."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid, self.answers, self.now_s = grid, dict[int, Answer](), 0.0
        self.pull: Pull = grid.pull_messages
        self.mailbox = Mailbox(grid, clock=lambda: self.now_s)

    def send(self) -> list[bool]:
        nodes = sorted(self.grid.nodes)
        messages = [Message(RecordDict({"arrays": ArrayRecord()}), node, "train", ttl=60.0) for node in nodes]

        def handler(place: int) -> Callable[[Answer, float], None]:
            return lambda answer, _: self.answers.update({place: answer})

        return self.mailbox.send(messages, [handler(place) for place in range(len(nodes))])

    def poll(self) -> int:
        """Poll a second later; return the number of answers so far."""
        self.now_s += 1.0
        self.mailbox.dispatch()
        time.sleep(0.05)
        self.mailbox.dispatch()
        return len(self.answers)

    def texts(self) -> dict[int, str]:
        """Return the answers as text: that of an error, or the name of an exception."""
        shown = dict[int, str]()
        for place, answer in self.answers.items():
            if isinstance(answer, Exception):
                shown[place] = type(answer).__name__
            else:
                shown[place] = answer.error.reason if answer.has_error() else ""
        return shown


@pytest.fixture
def letters(make_grid: MakeGrid) -> Letters:
    """Three nodes that reply at once."""
    grid = make_grid(ClientApp(), 3)
    grid.handle = lambda message, _: Message(RecordDict(), reply_to=message)
    return Letters(grid)


def test_one_request_for_all_replies(letters: Letters) -> None:
    """None is sent before anything is awaited, and none afterwards. A node that is not connected gets no message."""
    requests = list[set[str]]()

    def pull(ids: Iterable[str]) -> list[Message]:
        requests.append(set(ids))
        return letters.pull(ids)

    letters.grid.pull_messages = pull
    letters.poll()
    letters.grid.offline = {letters.grid.node(2)}
    assert letters.send() == [True, True, False]
    wait("the replies", 60, lambda: letters.poll() == 2)
    letters.poll()
    assert len(requests[0]) == 2
    assert all(len(ids) <= 2 for ids in requests)
    assert len(requests) <= 2 + len({tuple(sorted(ids)) for ids in requests})
    assert letters.texts() == {0: "", 1: ""}


def test_incomplete_reply_is_awaited_while_others_arrive(letters: Letters) -> None:
    """The request that has been given the first reply waits until its upload is complete. To the next request, this
    reply is not available, which is no error; later requests do not ask for it. It counts when it is complete."""
    complete, blocked, requests = threading.Event(), threading.Event(), list[tuple[bool, int]]()

    def pull(ids: Iterable[str]) -> list[Message]:
        requests.append((blocked.is_set(), len(ids := list(ids))))
        replies = letters.pull(ids)
        if replies and not blocked.is_set():
            blocked.set()
            assert complete.wait(60)
        return replies

    letters.grid.pull_messages = pull
    gate = threading.Event()

    def handle(message: Message, context: Any) -> Message:
        if context.node_config["partition-id"]:
            assert gate.wait(60)
        return Message(RecordDict(), reply_to=message)

    letters.grid.handle = handle
    letters.send()
    wait("the first reply", 60, lambda: letters.poll() >= 0 and blocked.is_set())
    gate.set()
    wait("the others", 60, lambda: letters.poll() == 2)
    num_requests = len(requests)
    for _ in range(5):
        letters.poll()
    assert letters.texts() == {1: "", 2: ""}
    assert requests.count((True, 3)) == 1
    assert len(requests) == num_requests
    complete.set()
    wait("the slow upload", 60, lambda: letters.poll() == 3)
    assert letters.texts() == {0: "", 1: "", 2: ""}


def test_undecodable_reply_loses_others_only_once() -> None:
    """All three replies of a round are requested together, and Flower loses them all. In the next rounds, they are
    requested one by one, so that only the undecodable one is rejected."""
    parameters, lines = federate([lambda: UNDECODABLE] * 3)
    assert parameters == [2.0] * 6
    assert len([line for line in lines if "rejected update from client 0: unreadable (ValueError" in line]) == 2


def test_reply_is_kept_if_the_next_request_fails(letters: Letters) -> None:
    """Replies are requested one by one, as another one cannot be decoded. The third request fails, when the SuperLink
    has delivered two replies, which it does not do again."""
    requests = list[list[str]]()

    def pull(ids: Iterable[str]) -> list[Message]:
        requests.append(list(ids))
        if len(requests) == 1:
            raise ValueError("not a reply")
        if len(requests) == 4:
            raise httpx.ConnectError("locked")
        return letters.pull(ids)

    letters.send()
    time.sleep(0.2)  # all replies have arrived
    letters.grid.pull_messages = pull
    wait("two replies", 60, lambda: letters.poll() >= 2)
    wait("the third reply", 60, lambda: letters.poll() == 3)
    assert letters.texts() == {0: "", 1: "", 2: ""}


def test_process_does_not_wait_for_a_request(letters: Letters) -> None:
    """A slow upload can take minutes, and a run does not end later or exit later for it."""
    released = threading.Event()
    letters.grid.pull_messages = lambda _: released.wait(60) and []  # type: ignore[assignment,return-value]
    letters.send()
    letters.poll()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "pull"]
    assert thread.daemon
    released.set()


@pytest.mark.parametrize("error", [httpx.ConnectError("locked"), OSError("locked")])
def test_failing_requests_are_repeated(
    letters: Letters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """For a while, with a warning: a SuperLink that answers nothing for two minutes ends the run."""

    def fail(_: Any) -> list[Message]:
        raise error

    letters.send()
    letters.grid.pull_messages = fail
    for _ in range(3):
        letters.poll()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "has failed, and the run continues: " in caplog.text
    letters.grid.pull_messages = letters.pull
    wait("the replies", 60, lambda: letters.poll() == 3)
    monkeypatch.setattr("lesson.flower.mailbox.SEND_AGAIN_S", (0.0,))
    letters.grid.get_nodes = lambda: fail(None)
    letters.grid.push_messages = fail
    assert letters.mailbox.nodes() is None
    assert letters.send() == [False, False, False]
    letters.now_s += OUTAGE_S + 1
    with pytest.raises(RunStoppedError, match=r"for 120 s: .*locked .*; check the SuperLink"):
        letters.send()


def test_messages_are_sent_again_if_the_request_fails(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages, so that the SuperLink, which may know them already, can tell that they are no new ones."""
    push, sent = letters.grid.push_messages, list[list[Message]]()

    def push_messages(messages: Iterable[Message]) -> Any:
        sent.append(list(messages))
        if len(sent) == 1:
            raise httpx.ReadError("the model was not uploaded")
        return push(messages)

    monkeypatch.setattr("lesson.flower.mailbox.SEND_AGAIN_S", (0.0, 0.0))
    letters.grid.push_messages = push_messages
    assert letters.send() == [True, True, True]
    assert len(sent) == 2
    assert all(first is second for first, second in zip(*sent, strict=True))
    wait("the replies", 60, lambda: letters.poll() == 3)


def test_error_of_an_expired_message_is_an_answer(letters: Letters) -> None:
    letters.grid.handle = lambda message, _: Message(Error(2, "no data"), reply_to=message)
    letters.send()
    wait("the replies", 60, lambda: letters.poll() == 3)
    assert letters.texts() == {0: "no data", 1: "no data", 2: "no data"}
