"""Flower clients that send malformed replies: each reply is rejected, and the run continues without it."""

import io
import logging
import math
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lesson.flower import LessonStrategy
from lesson.settings.sections import GuardSettings
from lesson.strategies.fedavg import FedAvg
from tests.helpers.local_grid import LocalGrid
from tests.stress.runs import Undisturbed
from tests.stress.trial import Facts, Trial

SHAPE = (2, 3)
MAX_LINE = 400
"""Most characters in a log line: up to 200 come from the client, the others say what happened."""
DIRTY = "\x1b[2J\r\n\u202e" * 1_000_000
"""Text that clears a terminal, breaks lines and reverses the writing direction."""
unpickled: list[str] = []
"""Not empty once a client's pickle has been loaded."""


class Payload:
    """An object that adds to `unpickled` when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return unpickled.append, ("code of a client was run",)


def model(value: float = 0.0) -> ArrayRecord:
    """Return a model whose parameters all have this value."""
    return ArrayRecord({"w": Array(np.full(SHAPE, value, dtype=np.float32))})


def metrics(**changed: Any) -> MetricRecord:
    """Return the metrics of an honest client, with some of them changed."""
    return MetricRecord({"num-examples": 20, "loss": 0.5} | changed)


def _bytes(save: Callable[[io.BytesIO], object]) -> bytes:
    save(buffer := io.BytesIO())
    return buffer.getvalue()


def _npy(descr: str, shape: str, data: bytes = b"", version: int = 2) -> bytes:
    """Return an .npy file with an arbitrary header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(4, "little") + header + data


def _of(values: np.ndarray[Any, Any]) -> bytes:
    return _bytes(lambda file: np.save(file, values, allow_pickle=True))


_GOOD = _of(np.ones(SHAPE, dtype=np.float32))
FILES: dict[str, bytes] = {
    "nothing": b"",
    "text": b"nonsense",
    "a file cut short": _GOOD[:-3],
    "a header alone": _GOOD[:10],
    "an npz archive": _bytes(lambda file: np.savez(file, w=np.ones(SHAPE, dtype=np.float32))),
    "a compressed npz archive": _bytes(lambda file: np.savez_compressed(file, w=np.zeros(10**6))),
    "an empty zip file": b"PK\x05\x06" + bytes(18),
    "a pickle": pickle.dumps(Payload()),
    "objects": _of(np.array([Payload()] * 6, dtype=object).reshape(SHAPE)),
    "structured": _of(np.zeros(SHAPE, dtype=[("a", "<f4"), ("b", "<f4")])),
    "a structure of objects": _npy("[('a', '|O')]", "(2, 3)", pickle.dumps(Payload())),
    "complex": _of(np.ones(SHAPE, dtype=np.complex64)),
    "texts": _of(np.full(SHAPE, "1.0")),
    "dates": _of(np.zeros(SHAPE, dtype="datetime64[s]")),
    "bytes of no size": _npy("'|S0'", "(2, 3)"),
    "an array of 4 PB": _npy("'<f4'", "(1000000000000000,)"),
    "more elements than 64 bits count": _npy("'<f4'", "(4611686018427387904, 16)"),
    "a text of 4 GB": _npy("'<U1000000000'", "(2, 3)"),
    "negative sizes": _npy("'<f4'", "(-2, -3)"),
    "a subarray": _npy("('<f4', (2, 3))", "(1,)", bytes(24)),
    "a hundred axes": _npy("'<f4'", f"({'1, ' * 100})", bytes(4)),
    "a header of 10 MB": _npy("'<f4'", "(2, 3)" + " " * 10_000_000, bytes(24)),
    "a nested header": _npy("'<f4'", "(" * 3000 + ")" * 3000, bytes(24)),
    "code in the header": _npy("__import__('os')", "(2, 3)", bytes(24)),
    "a version to come": _npy("'<f4'", "(2, 3)", bytes(24), version=9),
    "another shape": _of(np.ones((3, 2), dtype=np.float32)),
    "no axes": _of(np.float32(1.0)),  # type: ignore[arg-type]
    "not a number": _of(np.full(SHAPE, np.nan, dtype=np.float32)),
    "infinite": _of(np.full(SHAPE, -np.inf, dtype=np.float32)),
    "infinite in 32 bits": _of(np.full(SHAPE, 1e300)),
}


def _array(data: Any, stype: Any = "numpy.ndarray") -> ArrayRecord:
    """Return a record whose array has these bytes, with valid metadata except for `stype`."""
    record = model()
    record["w"].data, record["w"].stype = data, stype
    return record


def _reply(
    arrays: Callable[[], ArrayRecord] = lambda: model(9.0),
    reported: Callable[[], MetricRecord] = metrics,
    more: Callable[[], dict[str, ArrayRecord]] = dict,
) -> Callable[[], RecordDict]:
    """Return a function that creates a reply with these records."""
    return lambda: RecordDict({"arrays": arrays(), "metrics": reported(), **more()})


# Functions, because some replies are large.
REPLIES: dict[str, Callable[[], RecordDict | Error]] = {
    **{f"array: {name}": _reply(partial(_array, data)) for name, data in FILES.items()},
    "record: an unknown format": _reply(lambda: _array(_GOOD, "of.another.kind")),
    "record: text for bytes": _reply(lambda: _array("text")),
    "record: None for bytes": _reply(lambda: _array(None)),
    "record: no arrays": _reply(ArrayRecord),
    "record: no record of arrays": lambda: RecordDict({"metrics": metrics()}),
    "record: two records of arrays": _reply(more=lambda: {"again": model(9.0)}),
    "record: another name": _reply(lambda: ArrayRecord({"v": model(9.0)["w"]})),
    "record: a name of 6 MB": _reply(lambda: ArrayRecord({DIRTY: model(9.0)["w"]})),
    "record: 1,000 arrays": _reply(lambda: ArrayRecord({str(place): model()["w"] for place in range(1000)})),
    "metrics: no metrics": lambda: RecordDict({"arrays": model(9.0)}),
    "metrics: no weight": _reply(reported=lambda: MetricRecord({"loss": 0.5})),
    "metrics: 10,000 metrics": _reply(reported=lambda: metrics(**{f"metric {place}": 0.0 for place in range(10_000)})),
    "metrics: a name of 6 MB": _reply(reported=lambda: metrics(**{DIRTY: 1.0})),
    "metrics: a name with an escape": _reply(reported=lambda: metrics(**{"\x1b[2J": 1.0})),
    **{
        f"metrics: loss {loss!r:.20}": _reply(reported=partial(metrics, loss=loss))
        for loss in (math.nan, math.inf, 10**400)
    },
    **{
        f"metrics: weight {weight!r:.20}": _reply(reported=partial(metrics, **{"num-examples": weight}))
        for weight in (0, -3, 1e13, 1e308, 10**400, math.nan, math.inf, [1, 2], [1] * 10**6)
    },
    "error: 6 MB": lambda: Error(2, DIRTY),
    "error: without a reason": lambda: Error(2),
    "error: of no known kind": lambda: Error(10**9, "\x1b[2J"),
}
UNDECODABLE = Error(-1)
"""A reply for which the grid raises, as Flower's does for objects that it cannot decode."""


class HostileGrid(LocalGrid):
    """A grid that replies immediately. Client 0 sends the given replies in turn; the others add 1 to every parameter.

    Asked to evaluate, client 0 sends the last of its replies again.
    """

    def __init__(self, replies: Iterable[Callable[[], RecordDict | Error]]) -> None:
        super().__init__(ClientApp(), num_nodes=3)
        self.handle, self._pool = self._answer, ThreadPoolExecutor(1)
        self._hostile, self._last = iter(replies), next(iter(REPLIES.values()))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = super().push_messages(messages)
        while not self._done.keys() >= set(ids):
            time.sleep(0.001)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        pulled = super().pull_messages(message_ids)
        if any(message.has_error() and message.error is UNDECODABLE for message in pulled):
            raise ValueError("cannot be decoded")
        return pulled

    def _answer(self, message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            if message.metadata.message_type == MessageType.TRAIN:
                self._last = next(self._hostile)
            return Message(self._last(), reply_to=message)
        values = message.content.array_records["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": Array(values + 1)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics()}), reply_to=message)


def federate(replies: Sequence[Callable[[], RecordDict | Error]]) -> tuple[list[float], list[str]]:
    """Run one FedAvg round per reply of the hostile client; return the final parameters and the lines of the log."""
    strategy = LessonStrategy(
        strategy=FedAvg(), clock="virtual", latency_s=[1.0, 2.0, 3.0], guards=GuardSettings(exclude_after_rejections=0)
    )
    with _logged() as lines, closing(HostileGrid(replies)) as grid:
        result = strategy.start(grid, model(), num_rounds=len(replies), train_config=ConfigRecord({"lr": 0.1}))
    return result.arrays["w"].numpy().ravel().tolist(), lines


def check_lines(lines: Iterable[str]) -> None:
    """Raise unless all lines of a log are short and printable."""
    for line in lines:
        assert len(line) <= MAX_LINE, f"{len(line)} characters in a line: {line[:200]!r}"
        assert line.isprintable(), f"a line with control characters: {line!r}"


def trials(_: Undisturbed, short: bool) -> list[Trial]:
    """Return trials in which one client sends every malformed reply, one per round, in random order."""
    return [Trial("hostile replies", f"order {number}", _send_all) for number in range(1 if short else 5)]


def _send_all(_: Path, rng: random.Random) -> Facts:
    names = rng.sample(list(REPLIES), len(REPLIES))
    parameters, lines = federate([REPLIES[name] for name in names])
    assert parameters == [float(len(names))] * 6, f"{parameters} must be the model of the honest clients"
    assert not unpickled, "a pickle was loaded"
    rejections = sum("update from client 0" in line for line in lines)
    assert rejections == len(names), f"{len(names)} rejections must be logged, got {rejections}"
    check_lines(lines)
    return {"replies": len(names)}


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect the messages of Flower's logger, to which a run writes its log."""
    lines, logger = list[str](), logging.getLogger("flwr")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield lines
    finally:
        logger.handlers = before
