"""Sends messages and receives replies; each poll is one request to the SuperLink for all awaited replies.

The SuperLink hands out a reply as soon as the client has begun to upload it, and Flower's `pull_messages` then waits
until the upload is complete. Requests therefore run in threads: while one of them waits for a slow upload, rounds
continue, and the next request gets the replies that arrive meanwhile.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lesson.core.errors import RunStoppedError, describe
from lesson.flower.exchanges import Moment
from lesson.flower.identity import Node
from lesson.flower.recorder import Recorder, RecordingGrid
from lesson.flower.replies import UNREACHABLE, warn

FIRST_POLL_S, POLL_S, GROWTH = 0.02, 0.5, 1.5
"""Seconds until the first request after messages were sent, and the longest interval between requests; each interval is
GROWTH times the previous one."""
SLOW_S, MAX_PULLS = 2.0, 8
"""If a request takes longer than SLOW_S, the next one is sent nevertheless, up to MAX_PULLS at a time."""
SEND_AGAIN_S = 0.5, 1.0, 2.0
"""Seconds after which messages are sent again while the request fails."""
OUTAGE_S = 120.0
"""Requests for replies and nodes that fail are repeated; the run stops if all requests fail for this many seconds."""
ONE_BY_ONE_S = 600.0
"""After an unreadable reply, replies are pulled one by one for this many seconds."""

Answer = Message | Exception
"""A reply, or the exception with which Flower failed to decode it."""
Handler = Callable[[Answer, float], None]
"""Called with a reply and the time at which it was received, on the monotonic clock."""


Replies = list[tuple[str, Answer]]
"""Replies, each with the id of the message that it answers."""


class _Pull(Thread):
    """A pending request. It delays neither the end of a run nor the exit of the process."""

    def __init__(
        self, ids: frozenset[str], request: Callable[[Collection[str]], Replies], clock: Callable[[], float]
    ) -> None:
        super().__init__(name="pull", daemon=True)
        self.ids, self.begun_s, self._request, self._clock = ids, clock(), request, clock
        self.replies = Future[tuple[Replies, float]]()
        """The replies that have arrived, and when."""

    def run(self) -> None:
        try:
            self.replies.set_result((self._request(self.ids), self._clock()))
        except BaseException as error:  # including the one with which Flower reports that the run was stopped
            self.replies.set_exception(error)


class Mailbox:
    """Exchanges messages over a grid and records them. Every reply is passed, once, to the handler of its message."""

    def __init__(
        self, grid: Grid, recorder: Recorder | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.grid, self.recorder, self._clock = grid, recorder or Recorder(None), clock
        if isinstance(grid, RecordingGrid):  # the user's recording, which the mailbox writes itself
            self.grid, self.recorder = grid.wrapped, grid.recorder
        self._handlers: dict[str, Handler] = {}
        self._pulls: list[_Pull] = []
        self._handed_out = set[str]()
        """Messages whose replies another pending request is already receiving, according to the SuperLink."""
        self._interval_s, self._pull_at_s, self._one_by_one_until_s = POLL_S, 0.0, 0.0
        self._failing_since_s: float | None = None

    def send(self, messages: Sequence[Message], handlers: Sequence[Handler]) -> list[bool]:
        """Send messages; return for each of them whether the SuperLink has accepted it.

        If the request fails, the SuperLink may already have a message without its model, and its client would wait
        minutes for the model. Sending the same messages again completes them.
        """
        began, ids = Moment.now(), list[str]()
        for wait_s in (0.0, *SEND_AGAIN_S):
            time.sleep(wait_s)
            with self._tolerating_outages():
                ids = list(self.grid.push_messages(messages) if messages else ())
            if self._failing_since_s is None:
                break
        self.recorder.note_asked(messages, ids, began)
        accepted = {number for number in ids if number}  # for an unknown node, some grids return '' and others nothing
        sent = [message.metadata.message_id in accepted for message in messages]
        for message, handler, is_sent in zip(messages, handlers, sent, strict=True):
            if is_sent:
                self._handlers[message.metadata.message_id] = handler
        self._interval_s = FIRST_POLL_S
        self._pull_at_s = self._clock() + FIRST_POLL_S
        return sent

    def dispatch(self) -> None:
        """Call the handlers of the replies that have arrived since the last call, without waiting."""
        for pull in [pull for pull in self._pulls if pull.replies.done()]:
            self._pulls.remove(pull)
            replies, received_s = Replies(), 0.0
            with self._tolerating_outages():
                replies, received_s = pull.replies.result()
            for number, answer in replies:
                # The SuperLink reports a reply as unavailable while another request is receiving it.
                if _is_unavailable(answer) and self._is_requested(number):
                    self._handed_out.add(number)
                elif (handler := self._handlers.pop(number, None)) is not None:
                    self.recorder.note_answer(number, answer, self._clock() - received_s)
                    handler(answer, received_s)
        self._begin_pull()

    def nodes(self) -> Sequence[Node] | None:
        """Return the connected nodes; None if they cannot be requested now."""
        nodes: list[Node] | None = None
        with self._tolerating_outages():
            nodes = list(self.grid.get_nodes())
        if nodes is not None:
            self.recorder.note_nodes(nodes)
        return nodes

    @contextlib.contextmanager
    def _tolerating_outages(self) -> Iterator[None]:
        """Log that the SuperLink is unreachable; raise RunStoppedError if this persists."""
        try:
            yield
            self._failing_since_s = None
        except UNREACHABLE as error:
            if self._failing_since_s is None:
                self._failing_since_s = self._clock()
                warn(f"a request to the SuperLink has failed, and the run continues: {describe(error)}")
            elif self._clock() - self._failing_since_s > OUTAGE_S:
                problem = f"all requests to the SuperLink have failed for {OUTAGE_S:g} s: {describe(error)}"
                raise RunStoppedError(f"{problem}; check the SuperLink and the network, and resume the run") from error

    def _begin_pull(self) -> None:
        """Request the awaited replies if it is time, except those that a pending request is already receiving.

        Requesting these again would make the SuperLink store an error message each time.
        """
        now_s = self._clock()
        all_are_slow = all(now_s - pull.begun_s > SLOW_S for pull in self._pulls)
        if now_s < self._pull_at_s or len(self._pulls) >= MAX_PULLS or not all_are_slow:
            return
        self._handed_out = {number for number in self._handed_out if self._is_requested(number)}
        if ids := frozenset(self._handlers.keys() - self._handed_out):
            self._pulls.append(_Pull(ids, self._pull, self._clock))
            self._pulls[-1].start()
            self._interval_s = min(POLL_S, GROWTH * self._interval_s)
            self._pull_at_s = now_s + self._interval_s

    def _is_requested(self, number: str) -> bool:
        """Return whether a pending request asks for the reply to a message."""
        return any(number in pull.ids for pull in self._pulls)

    def _pull(self, ids: Collection[str]) -> Replies:
        """Return the replies that have arrived.

        Flower decodes either all replies of a request or none, and delivers each only once. If one is unreadable, the
        others of the request are therefore lost: the SuperLink reports them as unavailable. To prevent a repeat,
        replies are then pulled one by one.
        """
        if len(ids) > 1 and self._clock() >= self._one_by_one_until_s:
            try:
                return _by_id(self.grid.pull_messages(list(ids)), ids)
            except UNREACHABLE:
                raise
            except Exception as error:
                self._one_by_one_until_s = self._clock() + ONE_BY_ONE_S
                warn(f"a reply cannot be decoded ({type(error).__name__}); other replies may be lost with it")
        replies = Replies()
        for number in ids:
            try:
                replies += _by_id(self.grid.pull_messages([number]), [number])
            except UNREACHABLE:
                if not replies:
                    raise
                break  # the SuperLink has delivered those replies, and does not deliver them again
            except Exception as error:
                self._one_by_one_until_s = self._clock() + ONE_BY_ONE_S
                replies.append((number, error))
        return replies


def _by_id(messages: Iterable[Message], ids: Collection[str]) -> Replies:
    """Return replies with the ids they reply to; ignore second replies and replies to other messages."""
    wanted, replies = set(ids), Replies()
    for message in messages:
        if (number := message.metadata.reply_to_message_id) in wanted:
            wanted.remove(number)
            replies.append((number, message))
    return replies


def _is_unavailable(answer: Answer) -> bool:
    return (
        not isinstance(answer, Exception) and answer.has_error() and answer.error.code == ErrorCode.MESSAGE_UNAVAILABLE
    )
