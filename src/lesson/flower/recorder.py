"""Records what happens in a federation while any strategy runs; docs/reference/recordings.md describes the recording.

`RecordingGrid` forwards every call to Flower's grid and records which clients were asked, replied and are connected. It
records times and sample counts, but neither data nor weights. Problems with the recording never affect the federation.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from lesson.core.errors import InputError, describe
from lesson.flight.recording import FLIGHT
from lesson.flower.exchanges import TRAIN, ExchangeLog, Moment, kind_of, round_of
from lesson.flower.identity import Node, names_of
from lesson.flower.replies import logger
from lesson.flower.times import take_times

LOOK_EVERY_S = 3.0
"""Seconds between two checks of which nodes are connected."""
Args = ParamSpec("Args")
Result = TypeVar("Result")


class RecordingGrid(Grid):
    """A drop-in replacement for the grid that it wraps, which records all exchanges with clients.

    `send_and_receive` polls more often than Flower's own, so that each reply gets its own arrival time. If the
    recording cannot be written, a warning is logged, and the run continues without it.

    Args:
        grid: Grid that Flower passes to the server app.
        path: File to write, such as "flight.jsonl". An existing recording is continued. A relative path starts in the
            working folder of the server app, which is that of the SuperLink; the log shows the full path.
        strategy: Name of the strategy, for the header of the recording.
        deadline_s: Deadline of the strategy in seconds, for the header; None if it has none.
        poll_s: Seconds between two checks for replies in `send_and_receive`; Flower's own checks every 3 s.
    """

    def __init__(
        self,
        grid: Grid,
        path: Path | str,
        *,
        strategy: str = "",
        deadline_s: float | None = None,
        poll_s: float = 0.5,
    ) -> None:
        if not isinstance(grid, Grid):
            raise InputError(f"grid must be the grid that Flower passes to main, got {type(grid).__name__}")
        if not 0 < poll_s < math.inf:
            raise InputError(f"poll_s must be > 0 and finite, got {poll_s}")
        self.wrapped, self._poll_s = grid, poll_s
        self._log: ExchangeLog | None = ExchangeLog(Path(path).absolute(), strategy, deadline_s)
        self._looked_s = -math.inf
        self._lock = threading.RLock()
        self._node_of: Mapping[int, int] = {}
        self._elapsed_s: Callable[[], float] = lambda: 0.0

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
        ids = list(self.wrapped.get_node_ids())
        self._note_connected(ids)
        return ids

    def get_nodes(self) -> list[Any]:
        """Return the connected nodes, and record which have connected or left."""
        nodes = list(self.wrapped.get_nodes())
        self._note_connected([node.node_id for node in nodes], nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and record which clients were asked."""
        self._look()  # before the request: it may write events, and those of a recording are in order
        sent, began = list(messages), Moment.now()
        ids = list(self.wrapped.push_messages(sent))
        # Some grids return nothing in place of a message that was not sent, and others return '' or None.
        given = ids if len(ids) == len(sent) else [message.metadata.message_id for message in sent]
        accepted = set(ids)
        pairs = [(message, number if number in accepted else "") for message, number in zip(sent, given, strict=True)]
        self._record(ExchangeLog.note_asked, pairs, began)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, and record them; times that clients report are removed."""
        ids = list(message_ids)
        try:
            replies = list(self.wrapped.pull_messages(ids))
        except (httpx.HTTPError, OSError):  # the connection to the SuperLink, not a reply
            raise
        except Exception as error:
            if len(ids) == 1:  # Flower cannot decode the reply
                self._record(ExchangeLog.note_failed, ids[0], f"unreadable reply: {type(error).__name__}")
            raise
        for reply in replies:
            self._record(ExchangeLog.note_reply, reply, take_times(reply))
        self._look()
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return their replies, once all have arrived or `timeout` seconds have passed.

        When training messages have been answered, the end of a round is recorded.
        """
        sent = list(messages)
        waiting, replies = {number for number in self.push_messages(sent) if number}, list[Message]()
        asked = self._record(ExchangeLog.clients_of, waiting) or {}
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            pulled = self.pull_messages(waiting)
            replies += pulled
            waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
            if waiting:
                time.sleep(min(self._poll_s, left_s))
        for number in waiting:
            self._record(ExchangeLog.note_failed, number, f"no reply within {timeout:g} s")
        training = [message for message in sent if kind_of(message) == TRAIN]
        if training:
            answered = [reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()]
            merged = [asked[number] for number in answered if number in asked]
            self._record(ExchangeLog.note_round, round_of(training[0]), 0.0, merged)
        return replies

    def follow(self, node_of: Mapping[int, int], elapsed_s: Callable[[], float]) -> None:
        """Prepare for `note_round`, for a round loop on this grid.

        `node_of` holds the current node of each client, and `elapsed_s` returns the loop's current time.
        """
        self._node_of, self._elapsed_s = node_of, elapsed_s

    def note_round(
        self, round: int, end_s: float, merged: Sequence[int] | None, staleness: Sequence[int] | None
    ) -> None:
        """Record the end of a round of the loop at its time `end_s`, and whose updates were aggregated, if known."""
        nodes = [self._node_of[client] for client in merged or () if client in self._node_of]
        is_known = merged is not None and len(nodes) == len(merged)  # after a resume, a client may not be back yet
        names = self._record(ExchangeLog.names_of, nodes) if is_known else None
        ago_s = max(0.0, self._elapsed_s() - end_s)
        self._record(ExchangeLog.note_round, round, ago_s, names, staleness if is_known else None)

    def _note_connected(self, ids: Sequence[int], nodes: Iterable[Node] | None = None) -> None:
        """Record which nodes have connected or left, given the ids of those that are connected."""
        self._looked_s = time.monotonic()
        if self._record(ExchangeLog.has_unknown, ids):
            try:
                self._record(
                    ExchangeLog.learn_names, ids, names_of(self.wrapped.get_nodes() if nodes is None else nodes)
                )
            except Exception as error:  # the ids are names, too
                logger.debug(f"cannot read the names of nodes: {error}")
        self._record(ExchangeLog.note_connected, ids)

    def _look(self) -> None:
        """Check which nodes are connected, if the last check was some time ago."""
        if self._log is None or time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        try:
            self._note_connected(list(self.wrapped.get_node_ids()))
        except Exception as error:  # the strategy did not ask for this, so it must not fail here
            logger.debug(f"cannot check which nodes are connected: {error}")
            self._looked_s = time.monotonic()

    def _record(
        self, note: Callable[Concatenate[ExchangeLog, Args], Result], *args: Args.args, **options: Args.kwargs
    ) -> Result | None:
        """Call a method of the recording. After any problem, log one warning and record nothing more."""
        with self._lock:
            if self._log is None:
                return None
            try:
                return note(self._log, *args, **options)
            except Exception as error:
                path, self._log = self._log.path, None
                why = error if isinstance(error, InputError) else describe(error)
                logger.warning(f"recording to {path} has stopped, but the run continues: {why}")
                return None


def record_run(grid: Grid, folder: Path, strategy: str, deadline_s: float | None) -> RecordingGrid:
    """Return a grid that records to `flight.jsonl` in the folder of a run; a grid that records already is returned."""
    if isinstance(grid, RecordingGrid):
        return grid
    finite_s = deadline_s if deadline_s is not None and math.isfinite(deadline_s) else None
    return RecordingGrid(grid, folder / FLIGHT, strategy=strategy, deadline_s=finite_s)
