"""Malformed replies: none of them ends a run, is aggregated or floods the log."""

import math
from collections.abc import Iterable
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.local_grid import MakeGrid
from lesson.flower.arrays import Layout
from lesson.flower.post import weighted_means
from lesson.flower.profile import Profiler
from lesson.flower.replies import MAX_METRICS, pull_replies, read_metrics
from lesson.flower.server import find_clients
from lesson.learn.robust.checks import InvalidUpdateError
from tests.stress import replies
from tests.stress.replies import REPLIES, UNDECODABLE, HostileGrid, check_lines, federate, metrics, model

HONEST = 2.0
"""Every parameter after two rounds in which the honest clients added 1."""


@pytest.mark.parametrize("name", REPLIES)
def test_malformed_reply_is_rejected_and_the_run_continues(name: str) -> None:
    parameters, lines = federate([REPLIES[name]] * 2)
    assert parameters == [HONEST] * 6
    rejected = [line for line in lines if "update from client 0" in line]
    assert len(rejected) == 2, "one line each, with the client and the reason"
    check_lines(lines)
    assert not replies.unpickled


def test_undecodable_reply_loses_no_other_reply() -> None:
    """All three replies of a round arrive before the first pull, and a reply that was pulled is not delivered again."""
    parameters, lines = federate([lambda: UNDECODABLE] * 2)
    assert parameters == [HONEST] * 6
    assert [line.split(": ", 2)[2] for line in lines if "rejected update from client" in line] == [
        "unreadable (ValueError: cannot be decoded)"
    ] * 2


def test_undecodable_answer_of_one_node_does_not_prevent_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """All four nodes answer before the first pull; the three honest ones are enough."""
    monkeypatch.setattr("lesson.flower.server.WAIT_S", -1.0)
    grid = HostileGrid([], num_nodes=4)

    def answer(message: Message) -> RecordDict | Error:
        if (node := message.metadata.dst_node_id) == 1:
            return UNDECODABLE
        told = {"client": node - 1, "num-clients": 4, "num-examples": 20, "compute-s": 1.0, "busy-s": 1.0}
        return RecordDict({"metrics": MetricRecord(told)})

    grid._answer = answer  # type: ignore[method-assign]
    assert sorted(find_clients(grid, Profiler(model(), patience_s=5.0), 3, everybody=False)) == [1, 2, 3]


def test_simulation_pulls_all_replies_in_one_call() -> None:
    """Its grid does not decode replies, and a call per reply would be slow with thousands of clients."""
    calls = []

    class CountingGrid(HostileGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            calls.append(list(message_ids))
            return super().pull_messages(calls[-1])

    grid = CountingGrid([], num_nodes=3)
    ids = grid.push_messages(Message(RecordDict({"arrays": model()}), node, "train") for node in (2, 3))
    assert [number for number, _ in pull_replies(grid, ids, at_once=True)] == ids
    assert list(pull_replies(grid, [], at_once=True)) == []
    assert calls == [ids]


@pytest.mark.parametrize("error", [httpx.ConnectError("rejected"), OSError("rejected")])
def test_broken_connection_to_the_superlink_is_no_fault_of_a_client(error: Exception) -> None:
    grid = HostileGrid([])
    grid.pull_messages = lambda _: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    with pytest.raises(type(error), match="rejected"):
        list(pull_replies(grid, ["a"]))


@pytest.mark.parametrize("name", [name for name in REPLIES if not name.startswith(("array", "record"))])
def test_malformed_answer_to_the_profile_question_is_no_answer(make_grid: MakeGrid, name: str) -> None:
    grid = make_grid(ClientApp(), 1)
    grid.handle = lambda message, _: Message(REPLIES[name](), reply_to=message)
    assert list(Profiler(model()).ask(grid, grid.nodes).values()) == [None]


@pytest.mark.parametrize(
    "changed",
    [
        {"client": -1},
        {"client": 2},
        {"client": math.nan},
        {"client": 10**400},
        {"num-clients": 10**15},
        {"num-examples": 0},
        {"num-examples": 1e308},
        {"num-examples": [20]},
        {"compute-s": -1.0},
        {"compute-s": 4.0},
        {"busy-s": math.inf},
        {"another": math.nan},
    ],
)
def test_profile_out_of_bounds_is_no_answer(make_grid: MakeGrid, changed: dict[str, Any]) -> None:
    told = {"client": 0, "num-clients": 2, "num-examples": 20, "compute-s": 1.0, "busy-s": 3.0}
    grid, profiler = make_grid(ClientApp(), 1), Profiler(model())
    for values, usable in ((told, True), (told | changed, False)):
        content = RecordDict({"metrics": MetricRecord(values)})
        grid.handle = lambda message, _, content=content: Message(content, reply_to=message)
        (profile,) = profiler.ask(grid, grid.nodes).values()
        assert (profile is not None) == usable


def test_as_many_metrics_as_allowed_are_read() -> None:
    allowed = {f"metric {place}": float(place) for place in range(MAX_METRICS)}
    assert read_metrics(RecordDict({"metrics": MetricRecord(allowed)})) == allowed  # type: ignore[arg-type]
    with pytest.raises(InvalidUpdateError, match="wrong metrics: a reply may have at most 100 metrics, got 101"):
        read_metrics(RecordDict({"metrics": MetricRecord(allowed), "more": MetricRecord({"loss": 1.0})}))


@settings(max_examples=60, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: b"\x93NUMPY" + tail)))
def test_random_bytes_are_rejected(data: bytes) -> None:
    record = model()
    record["w"].data = data
    with pytest.raises(InvalidUpdateError):
        Layout.of(model()).vector(record)


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 151), byte=st.integers(0, 255))
def test_file_with_one_changed_byte_is_rejected_or_finite(place: int, byte: int) -> None:
    record = model(1.0)
    damaged = bytearray(record["w"].data)
    damaged[place % len(damaged)] = byte
    record["w"].data = bytes(damaged)
    try:
        vector = Layout.of(model()).vector(record)
    except InvalidUpdateError as unfit:
        check_lines([unfit.detail])
    else:
        assert vector.shape == (6,)
        assert np.isfinite(vector).all()


def test_error_text_of_a_client_is_escaped_and_cut() -> None:
    """The last line of the text, as it is in a traceback, with its control characters spelled out."""
    _, lines = federate([lambda: Error(2, "Traceback\nValueError: \x1b[31mred\x07 " + "x" * 10**6)])
    (line,) = (line for line in lines if "update from client 0" in line)
    assert "client error (code 2: ValueError: \\x1b[31mred\\x07 xxx" in line
    assert len(line) < 300


def test_good_reply_of_the_hostile_client_is_aggregated() -> None:
    """All three add 1; without it, a rejection of everything would pass the tests above."""
    good = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones((2, 3), dtype=np.float32))}), "metrics": metrics()})
    parameters, lines = federate([lambda: good])
    assert parameters == [1.0] * 6
    assert not [line for line in lines if "an update of" in line]


def test_metrics_are_averaged_without_overflow() -> None:
    """Both numbers are near the largest float: their mean is half way, though neither sum nor product is finite."""
    assert weighted_means([(1e12, {"loss": 1.5e308}), (1e12, {"loss": 0.5e308})]) == MetricRecord({"loss": 1e308})
