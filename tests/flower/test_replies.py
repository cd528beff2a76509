"""Malformed replies: none of them ends a run, is aggregated or floods the log."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from lesson.flower.arrays import Layout
from lesson.flower.replies import MAX_METRICS, FieldNames, read_report
from lesson.learn.guards import InvalidUpdateError
from tests.stress import replies
from tests.stress.replies import REPLIES, check_lines, federate, metrics, model


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


def test_as_many_metrics_as_allowed_are_read() -> None:
    allowed = {f"metric {place}": float(place) for place in range(MAX_METRICS - 1)}
    request = Message(RecordDict({"arrays": model()}), 1007, "train")
    request.metadata.__dict__["_message_id"] = "1"
    records = {"metrics": MetricRecord({"num-examples": 20} | allowed)}
    assert read_report(Message(RecordDict(records), reply_to=request), FieldNames()) == (20.0, allowed)
    records |= {"more": MetricRecord({"loss": 1.0})}
    with pytest.raises(InvalidUpdateError, match="got 101"):
        read_report(Message(RecordDict(records), reply_to=request), FieldNames())


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
