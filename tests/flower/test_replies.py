"""Malformed replies: none of them ends a run, is aggregated or floods the log."""

from collections.abc import Iterable

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from lesson.flower.arrays import Layout
from lesson.flower.replies import MAX_METRICS, pull_replies, read_metrics
from lesson.learn.guards import InvalidUpdateError
from tests.stress import replies
from tests.stress.replies import REPLIES, UNDECODABLE, HostileGrid, check_lines, federate, metrics, model


def test_malformed_replies_are_rejected_and_the_run_continues() -> None:
    """A reply in each round; the honest clients add 1 in each. Finally, the hostile client sends a good reply."""
    good = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones((2, 3), dtype=np.float32))}), "metrics": metrics()})
    parameters, lines = federate([*REPLIES.values(), lambda: good])
    rejected = [int(line.split()[1].rstrip(":")) for line in lines if "rejected update from client 0" in line]
    names = list(REPLIES)
    assert [names[round - 1] for round in rejected] == names, "one line each, with the client"
    assert parameters == pytest.approx([len(names) + (1 + 1 + 1 - len(names)) / 3] * 6)
    check_lines(lines)
    assert not replies.unpickled


def test_undecodable_reply_loses_no_other_reply() -> None:
    """All three replies of a round arrive before the first pull, and a reply that was pulled is not delivered again."""
    parameters, lines = federate([lambda: UNDECODABLE] * 2)
    assert parameters == [2.0] * 6
    assert len([line for line in lines if "rejected update from client 0: unreadable (ValueError" in line]) == 2


def test_simulation_pulls_all_replies_in_one_call() -> None:
    """Its grid does not decode replies, and a call per reply would be slow with thousands of clients."""
    calls = []

    class CountingGrid(HostileGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            calls.append(list(message_ids))
            return super().pull_messages(calls[-1])

    grid = CountingGrid([])
    ids = grid.push_messages(Message(RecordDict({"arrays": model()}), node, "train") for node in (1007, 1014))
    assert [number for number, _ in pull_replies(grid, ids, at_once=True)] == ids
    assert list(pull_replies(grid, [], at_once=True)) == []
    assert calls == [ids]


@pytest.mark.parametrize("error", [httpx.ConnectError("broken"), OSError("broken")])
def test_broken_connection_to_the_superlink_is_not_a_client_failure(error: Exception) -> None:
    grid = HostileGrid([])
    grid.pull_messages = lambda _: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    with pytest.raises(type(error), match="broken"):
        list(pull_replies(grid, ["a"]))


def test_as_many_metrics_as_allowed_are_read() -> None:
    allowed = {f"metric {place}": float(place) for place in range(MAX_METRICS)}
    assert read_metrics(RecordDict({"metrics": MetricRecord(allowed)})) == allowed  # type: ignore[arg-type]
    with pytest.raises(InvalidUpdateError, match="got 101"):
        read_metrics(RecordDict({"metrics": MetricRecord(allowed), "more": MetricRecord({"loss": 1.0})}))


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
