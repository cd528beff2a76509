"""Records the exchanges of a federation with any strategy; docs/reference/recordings.md describes the recording.

`RecordingGrid` forwards every call to Flower's grid and records which clients were asked, replied and are connected. It
records times and sample counts, but neither data nor weights. Problems with the recording never affect the federation.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from lesson.core.errors import InputError, describe
from lesson.flower.exchanges import TRAIN, ExchangeLog, Moment, kind_of, round_of
from lesson.flower.identity import Node
from lesson.flower.replies import UNREACHABLE, logger

LOOK_EVERY_S = 5.0
"""Seconds between two checks of which nodes are connected."""
Args = ParamSpec("Args")


class Recorder:
    """Writes the recording of a federation. After any problem, a warning is logged, and nothing more is recorded.

    Args:
        path: File to write, such as "flight.jsonl"; None to record nothing. An existing recording is continued.
        strategy: Name of the strategy, for the header.
        deadline_s: Deadline of the strategy in seconds, for the header; None if it has none.
    """

    def __init__(self, path: Path | str | None, strategy: str = "", deadline_s: float | None = None) -> None:
        finite_s = deadline_s if deadline_s is not None and math.isfinite(deadline_s) else None
        self._log = None if path is None else ExchangeLog(Path(path).absolute(), strategy, finite_s)
        self._lock = threading.RLock()

    @property
    def is_open(self) -> bool:
        """Whether events are recorded."""
        return self._log is not None

    def note_asked(self, messages: Sequence[Message], ids: Sequence[str | None], began: Moment) -> None:
        """Record requests that were sent at a moment; `ids` is what the grid returned for them."""
        # Some grids return nothing in place of a message that was not sent, and others return '' or None.
        given = ids if len(ids) == len(messages) else [message.metadata.message_id for message in messages]
        numbers = [number if number and number in ids else "" for number in given]
        self._write(ExchangeLog.note_asked, list(zip(messages, numbers, strict=True)), began)

    def note_answer(self, number: str, answer: Message | Exception, ago_s: float = 0.0) -> None:
        """Record an answer received `ago_s` seconds ago, or the exception with which Flower failed to decode it."""
        if isinstance(answer, Exception):
            self.note_failed(number, f"unreadable reply: {type(answer).__name__}")
        else:
            self._write(ExchangeLog.note_reply, answer, ago_s)

    def note_failed(self, number: str, reason: str) -> None:
        """Record that there will be no reply to a request."""
        self._write(ExchangeLog.note_failed, number, reason)

    def note_nodes(self, nodes: Sequence[Node]) -> None:
        """Record which nodes have connected or left, given those that are connected."""
        self._write(ExchangeLog.note_connected, nodes)

    def note_round(
        self, round: int, ago_s: float, merged: Sequence[int] | None, staleness: Sequence[int] | None = None
    ) -> None:
        """Record the end of a round `ago_s` seconds ago, and the nodes whose updates were aggregated, if known."""
        self._write(ExchangeLog.note_round, round, ago_s, merged, staleness)

    def _write(
        self, note: Callable[Concatenate[ExchangeLog, Args], None], *args: Args.args, **options: Args.kwargs
    ) -> None:
        """Call a method of the log, unless there is none, or there was a problem before."""
        with self._lock:
            if self._log is None:
                return
            try:
                note(self._log, *args, **options)
            except Exception as error:
                path, self._log = self._log.path, None
                why = error if isinstance(error, InputError) else describe(error)
                logger.warning(f"recording to {path} has stopped, but the run continues: {why}")


class RecordingGrid(Grid):
    """A drop-in replacement for the grid that it wraps, which records all exchanges with clients.

    `send_and_receive` polls more often than Flower's own, so that each reply gets its own arrival time. If the
    recording cannot be written, a warning is logged, and the run continues without it.

    Args:
        grid: Grid that Flower passes to the server app.
        recorder: The `Recorder`, or the file to write, such as "flight.jsonl". A relative path starts in the working
            folder of the server app, which is that of the SuperLink; the log shows the full path.
        poll_s: Seconds between two checks for replies in `send_and_receive`; Flower's own checks every 3 s.
    """

    def __init__(
        self,
        grid: Grid,
        recorder: Recorder | Path | str,
        *,
        poll_s: float = 0.5,
    ) -> None:
        if not isinstance(grid, Grid):
            raise InputError(f"grid must be the grid that Flower passes to main, got {type(grid).__name__}")
        if not 0 < poll_s < math.inf:
            raise InputError(f"poll_s must be > 0 and finite, got {poll_s}")
        self.wrapped, self._poll_s = grid, poll_s
        self.recorder = recorder if isinstance(recorder, Recorder) else Recorder(recorder)
        self._looked_s = -math.inf

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped grid."""
        if name == "wrapped":  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def set_run(self, run: Any) -> None:
        """Set the run of the wrapped grid."""
        self.wrapped.set_run(run)

    @property
    def run(self) -> Any:
        """Run of the wrapped grid."""
        return self.wrapped.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message of the wrapped grid."""
        return self.wrapped.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes, and record which have connected or left."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[Any]:
        """Return the connected nodes, and record which have connected or left."""
        nodes, self._looked_s = list(self.wrapped.get_nodes()), time.monotonic()
        self.recorder.note_nodes(nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and record which clients were asked."""
        sent, began = list(messages), Moment.now()
        ids = list(self.wrapped.push_messages(sent))
        self.recorder.note_asked(sent, ids, began)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, and record them."""
        ids = list(message_ids)
        try:
            replies = list(self.wrapped.pull_messages(ids))
        except UNREACHABLE:
            raise
        except Exception as error:
            if len(ids) == 1:  # Flower cannot decode the reply
                self.recorder.note_answer(ids[0], error)
            raise
        for reply in replies:
            self.recorder.note_answer(reply.metadata.reply_to_message_id, reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return their replies, once all have arrived or `timeout` seconds have passed.

        When training messages have been answered, the end of a round is recorded.
        """
        sent = list(messages)
        self._look()  # before the request, because events are written in chronological order
        waiting, replies = {number for number in self.push_messages(sent) if number}, list[Message]()
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            pulled = self.pull_messages(waiting)
            replies += pulled
            waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
            self._look()
            if waiting:
                time.sleep(min(self._poll_s, left_s))
        for number in waiting:
            self.recorder.note_failed(number, f"no reply within {timeout:g} s")
        if training := [message for message in sent if kind_of(message) == TRAIN]:
            nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in training}
            answered = [reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()]
            merged = [nodes[number] for number in answered if number in nodes]
            self.recorder.note_round(round_of(training[0]), 0.0, merged)
        return replies

    def _look(self) -> None:
        """Check which nodes are connected, if the last check was some time ago."""
        if not self.recorder.is_open or time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        try:
            self.get_nodes()
        except Exception as error:  # the strategy did not ask for this, so it must not fail here
            logger.debug(f"cannot check which nodes are connected: {error}")
            self._looked_s = time.monotonic()
