"""Signals during a run: it stops at its next checkpoint."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from lesson.core.interrupts import STOP_SIGNALS

REPEATS_S = 2.0
"""Seconds after the first signal in which further ones are ignored, such as repeated presses of Ctrl-C."""


class Interrupt:
    """Records Ctrl-C, SIGTERM and SIGHUP instead of raising in the middle of a round.

    A second signal more than REPEATS_S later raises immediately, except while a checkpoint is written. SIGTERM and
    SIGHUP stay ignored if they were.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._since, self._holding = 0.0, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.asked and kind is None:
            self.stop()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the body of the context complete, even if further signals arrive."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def stop(self) -> NoReturn:
        """Raise for the recorded signal."""
        assert self.asked is not None, "no signal was recorded"
        raise StoppedBySignal(self.asked, self._before[self.asked])

    def _note(self, number: int, _: object) -> None:
        if self.asked is None:
            self.asked, self._since = signal.Signals(number), time.monotonic()
            _say_stopping()
        elif not self._holding and time.monotonic() - self._since > REPEATS_S:
            self.stop()


def _say_stopping() -> None:
    """Print that the run stops at the next checkpoint, unless a parent process that executes several runs says so."""
    if multiprocessing.parent_process() is None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # stderr is closed, or was just being written
            print("note: stopping at the next checkpoint; send the signal again to stop at once", file=sys.stderr)


class StoppedBySignal(KeyboardInterrupt):
    """A run was stopped by a signal, after its checkpoint was written."""

    def __init__(self, number: signal.Signals, handler: Any) -> None:
        super().__init__()
        self._number, self._handler = number, handler

    def pass_on(self) -> None:
        """Do what the signal does outside of runs: call its handler, or end this process."""
        if callable(self._handler):
            self._handler(self._number, None)
        elif self._handler == signal.SIG_DFL:
            os.kill(os.getpid(), self._number)
