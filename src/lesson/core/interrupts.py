"""Ctrl-C, SIGTERM and SIGHUP end a command with one line and the exit status 128 + signal number.

This module is imported before all slow imports, so that Ctrl-C during those does not print a traceback either.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, Self

INTERRUPTED = "lesson: interrupted"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that end a command; Windows has no SIGHUP."""


@contextlib.contextmanager
def one_line_if_interrupted() -> Iterator[None]:
    """End the process with one line if Ctrl-C is pressed during imports."""
    try:
        yield
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


class StopSignals:
    """Raises KeyboardInterrupt for SIGTERM and SIGHUP as for Ctrl-C, unless they are ignored (as under nohup)."""

    def __init__(self) -> None:
        self._caught: list[int] = []

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()  # others must not change handlers
        others = STOP_SIGNALS[1:] if is_main else ()  # SIGINT raises KeyboardInterrupt already
        self._taken = [number for number in others if signal.getsignal(number) == signal.SIG_DFL]
        for number in self._taken:
            signal.signal(number, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._taken:
            if signal.getsignal(number) == self._raise:
                signal.signal(number, signal.SIG_DFL)

    @property
    def status(self) -> int:
        """Exit status of an interrupted command."""
        return 128 + (self._caught[0] if self._caught else signal.SIGINT)

    def _raise(self, number: int, _: FrameType | None) -> NoReturn:
        self._caught.append(number)
        raise KeyboardInterrupt


def ignore_signals() -> None:
    """Ignore all stop signals from now on, so that this process can exit after its last line of output."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
