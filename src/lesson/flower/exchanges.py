"""Writes exchanges with clients as events of a recording; used by `Recorder`."""

import importlib.metadata
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, RecordDict

from lesson.core.errors import printable
from lesson.core.validation import MAX_SAMPLES
from lesson.core.version import __version__
from lesson.flight.recording import MAX_NAME
from lesson.flight.writer import FlightWriter
from lesson.flower.identity import Node, names_of
from lesson.flower.replies import content_bytes, error_text, tell
from lesson.flower.times import Times, read_times

TRAIN = "train"
KINDS = (TRAIN, "evaluate", "query")
SAMPLES = ("num-examples", "num_examples")
"""Names of the number of samples among the metrics of a reply; the second is that of apps for older Flower versions."""
ENERGY, MAX_J = "energy-j", 1e15
ROUNDING_S = 1e-3
"""Times in a recording are rounded to milliseconds."""


@dataclass(frozen=True)
class Moment:
    """A point in time on a monotonic clock, and in seconds since 1970."""

    clock_s: float
    unix_s: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.monotonic(), time.time())


@dataclass(frozen=True)
class _Asked:
    """A job whose reply is awaited."""

    job: str
    client: str
    t_s: float
    """When it was asked, as written in the recording."""
    zero_unix_s: float
    """When the recording began, in seconds since 1970 by the server's clock."""


class ExchangeLog:
    """Writes the recording, and keeps the state that this requires: jobs, names and connected nodes."""

    def __init__(self, path: Path, strategy: str, deadline_s: float | None) -> None:
        self.path, self._strategy, self._deadline_s = path, strategy, deadline_s
        self._opened: FlightWriter | None = None
        self._asked: dict[str, _Asked] = {}
        """Jobs by the ids of their messages."""
        self._names: dict[int, str] = {}
        self._connected: set[int] = set()

    @property
    def _writer(self) -> FlightWriter:
        """The writer. The file is created with the first event: until then, the folder of a run must be empty."""
        if self._opened is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            source = f"lesson {__version__}, flwr {importlib.metadata.version('flwr')}"
            self._opened = FlightWriter(
                self.path, strategy=self._strategy, deadline_s=self._deadline_s, source=source, clock=time.monotonic
            )
            tell(f"recording: {self.path}")
        return self._opened

    def names_of(self, nodes: Iterable[int]) -> list[str]:
        """Return the names of nodes; the name of an unknown node is its id."""
        return [self._names.setdefault(node, str(node)) for node in nodes]

    def note_connected(self, nodes: Sequence[Node]) -> None:
        """Record which nodes have connected or left since the last call.

        If another connected node has the name of a new node, the node id is added to the name.
        """
        before, self._connected = self._connected, {node.node_id for node in nodes}
        taken = {self._names[node] for node in self._connected if node in self._names}
        for node, name in names_of(nodes).items():
            if node not in self._names:
                shown = printable(name, MAX_NAME - 30)
                self._names[node] = shown if shown not in taken else f"{shown} ({node})"
                taken.add(self._names[node])
        for name in self.names_of(sorted(before - self._connected)):
            self._writer.write("left", client=name)
        for name in self.names_of(sorted(self._connected - before)):
            self._writer.write("connected", client=name)

    def note_asked(self, sent: Iterable[tuple[Message, str]], began: Moment) -> None:
        """Record requests, each with the id of its message; '' if it was not sent."""
        writer = self._writer
        asked_s = writer.now_s - (time.monotonic() - began.clock_s)
        for message, number in sent:
            (client,), kind = self.names_of([message.metadata.dst_node_id]), kind_of(message)
            if kind not in KINDS:
                continue
            job, size = writer.next_job(), _array_bytes(message)
            fields = {"client": client, "job": job, "kind": kind, "round": round_of(message), "bytes": size}
            written_s = writer.write("asked", max(0.0, asked_s), **fields)
            if number:
                self._asked[number] = _Asked(job, client, written_s, began.unix_s - asked_s)
            else:
                why = "not sent: the node is not connected, or the message is too large"
                writer.write("failed", client=client, job=job, reason=why)

    def note_reply(self, reply: Message, ago_s: float = 0.0) -> None:
        """Record a reply received `ago_s` seconds ago, or an error in its place."""
        number = reply.metadata.reply_to_message_id
        if reply.has_error():
            self.note_failed(number, error_text(reply.error))
        elif (asked := self._asked.pop(number, None)) is not None:
            now_s, times = max(0.0, self._writer.now_s - ago_s), read_times(reply.content)
            reported = _reported(reply.content) | ({} if times is None else _plausible(times, asked, now_s))
            size = _array_bytes(reply)
            self._writer.write("arrived", now_s, client=asked.client, job=asked.job, bytes=size, **reported)

    def note_failed(self, number: str, reason: str) -> None:
        """Record that there will be no reply to a message."""
        if (asked := self._asked.pop(number, None)) is not None:
            self._writer.write("failed", client=asked.client, job=asked.job, reason=reason)

    def note_round(
        self, round: int, ago_s: float, merged: Sequence[int] | None, staleness: Sequence[int] | None
    ) -> None:
        """Record the end of a round `ago_s` seconds ago, and the nodes whose updates were aggregated, if known."""
        names = None if merged is None else self.names_of(merged)
        end_s = max(0.0, self._writer.now_s - max(0.0, ago_s))
        self._writer.write("round", end_s, round=round, merged=names, staleness=None if merged is None else staleness)


def _plausible(times: Times, asked: _Asked, now_s: float) -> dict[str, float]:
    """Return the reported times that agree with the server's clock; a client's clock may be wrong."""
    fields, took_s = {}, now_s - asked.t_s
    if 0 <= times.compute_s <= took_s + ROUNDING_S:
        fields["compute_s"] = round(times.compute_s, 3)
    began_s, ended_s = times.began - asked.zero_unix_s, times.ended - asked.zero_unix_s
    if asked.t_s - ROUNDING_S <= began_s <= ended_s <= now_s + ROUNDING_S:
        fields["downloaded_s"] = round(min(max(began_s, asked.t_s), now_s), 3)
        fields["trained_s"] = round(min(max(ended_s, asked.t_s), now_s), 3)
    return fields


def _reported(content: RecordDict) -> dict[str, int | float]:
    """Return the number of samples and the energy that a client reports in its metrics, as far as they are valid."""
    records = content.metric_records.values()
    metrics = {name: value for record in records for name, value in record.items() if isinstance(value, int | float)}
    reported = dict[str, int | float]()
    num_samples = next((metrics[name] for name in SAMPLES if name in metrics), 0)
    if 1 <= num_samples <= MAX_SAMPLES and num_samples == int(num_samples):
        reported["num_samples"] = int(num_samples)
    if 0 <= metrics.get(ENERGY, -1) <= MAX_J:
        reported["energy_j"] = float(metrics[ENERGY])
    return reported


def _array_bytes(message: Message) -> int:
    return content_bytes(message.content) if message.has_content() else 0


def kind_of(message: Message) -> str:
    """Return the kind of a message, such as 'train' for the type 'train.local'."""
    return message.metadata.message_type.partition(".")[0]


def round_of(message: Message) -> int:
    """Return the round of a message, from its group or its config; 0 if unknown."""
    configs = message.content.config_records.values() if message.has_content() else ()
    for value in (message.metadata.group_id, *(config.get("server-round") for config in configs)):
        if isinstance(value, int | str) and str(value).isdecimal() and str(value).isascii() and len(str(value)) < 16:
            return int(value)
    return 0
