"""Compressed updates on Flower: what the mod sends, and which replies the server rejects."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from lesson.flower.arrays import Layout
from lesson.flower.codec import MESSAGE, Uploads
from lesson.flower.uploads import ASKED, compress_uploads
from lesson.learn.guards import InvalidUpdateError
from lesson.settings.sections import UploadSettings


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.array(values)) for name, values in arrays.items()})


def model(values: list[float], variance: float = 1.0, count: int = 0) -> ArrayRecord:
    """Return four values in two arrays, a variance of a normalization and a counter, which are not compressed."""
    floats = {"a": values[:1], "norm.running_var": [variance], "b": values[1:]}
    return record(**{name: np.array(one, dtype=np.float32) for name, one in floats.items()}, count=np.int64(count))


BASE = model([1, 1, 1, 1])
UPLOADS = Uploads.of(UploadSettings(compression="topk", level=0.25), 0, Layout.of(BASE))
assert UPLOADS is not None
CODEC = UPLOADS.codec


class Client:
    """A node whose local trainings add updates to the model, and a server that decodes its replies."""

    def __init__(self) -> None:
        self.context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        self.index = 0

    def train(self, update: list[float], received: int) -> ArrayRecord:
        """Return the reply to a message that says which update the server has received last."""
        assert UPLOADS is not None
        content = RecordDict({"arrays": BASE, ASKED: UPLOADS.ask(0.25, 0, self.index, received)})
        self.index += 1

        def app(message: Message, context: Context) -> Message:
            arrays = model([1 + value for value in update], variance=2.0, count=5)
            return Message(
                RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message
            )

        reply = compress_uploads(Message(content, 1, "train"), self.context, app)
        return reply.content.array_records["arrays"]

    def sent(self, update: list[float], received: int) -> list[float]:
        """Return the update that the server decodes, and the variance and the counter."""
        decoded: list[float] = CODEC.decode(self.train(update, received), CODEC.layout.vector(BASE), 0.25).tolist()
        first, variance, *others, count = decoded
        return [first - 1, *(value - 1 for value in others), variance, count]


def test_residual_of_a_lost_upload_is_that_before_it() -> None:
    """topk sends one of four values. The residual after the first message is (0, 2, 1, 0); the second sends 2 + 1. The
    server has not received the second nor the third, so each time the same residual is added to the new update."""
    client = Client()
    assert client.sent([4, 2, 1, 0], received=-1) == [4, 0, 0, 0, 2, 5]
    assert client.sent([0, 1, 0, 0], received=0) == [0, 3, 0, 0, 2, 5]
    assert client.sent([0, 0, 2, 0], received=0) == [0, 0, 3, 0, 2, 5]
    assert client.sent([0, 0, 0, 0], received=0) == [0, 2, 0, 0, 2, 5]
    assert client.sent([0, 0, 0, 0], received=3) == [0, 0, 1, 0, 2, 5]


def test_message_has_one_array_and_those_that_are_not_compressed() -> None:
    """One value of 32 bits and its place among four, in 2 bits: 5 bytes."""
    arrays = Client().train([4, 2, 1, 0], received=-1)
    assert list(arrays) == [MESSAGE, "norm.running_var", "count"]
    assert arrays[MESSAGE].numpy().nbytes == 5


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"extra": [1.0]}, "unexpected"),
        ({"count": [[1, 2]]}, "count"),
        ({MESSAGE: np.zeros(6, dtype=np.uint8)}, "5 bytes, got 6"),
        ({MESSAGE: np.full(5, 255, dtype=np.uint8)}, "NaN"),
    ],
)
def test_damaged_messages_are_rejected(changes: dict[str, Any], word: str) -> None:
    reply = ArrayRecord(dict(Client().train([4, 2, 1, 0], received=-1)) | dict(record(**changes)))
    with pytest.raises(InvalidUpdateError, match=word):
        CODEC.decode(reply, CODEC.layout.vector(BASE), 0.25)


def test_models_in_place_of_messages_are_rejected() -> None:
    for reply, word in (
        (model([1, 2, 3, 4]), "compress_uploads"),
        (model([1, 2, 3, np.inf]), "infinite"),
        (record(a=[1.0]), "missing"),
    ):
        with pytest.raises(InvalidUpdateError, match=word):
            CODEC.decode(reply, CODEC.layout.vector(BASE), 0.25)


def test_mod_changes_nothing_unless_it_is_asked() -> None:
    message = Message(RecordDict({"arrays": BASE}), 1, "train")
    reply = Message(RecordDict({"arrays": model([4, 2, 1, 0])}), reply_to=message)
    assert compress_uploads(message, Client().context, lambda *_: reply) is reply
    assert list(reply.content.array_records["arrays"]) == list(BASE)
