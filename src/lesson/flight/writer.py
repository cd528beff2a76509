"""Writes a recording line by line while a federation runs, so that it survives the end of the process."""

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError
from lesson.flight.recording import Event, Header, line_of, read_progress


class FlightWriter:
    """Appends events to a recording; several threads may use it.

    If the file holds a recording, it is continued: times follow its last event, and jobs in flight count as failed.

    Args:
        path: File to write.
        strategy: Name of the strategy; empty if unknown.
        deadline_s: Deadline of the strategy in seconds; None if it has none.
        source: Software that writes the recording.
        clock: Returns the current time in seconds.

    Raises:
        InputError: The file holds something else or cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        strategy: str = "",
        deadline_s: float | None = None,
        source: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self._clock, self._lock = Path(path), clock, threading.Lock()
        self._last_s, self._zero_s = 0.0, clock()
        self.num_jobs = 0
        """Number of jobs so far; the next job may use it as its name."""
        if self._drop_incomplete_line():
            self._continue()
            return
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self._append(line_of(Header(began=began, source=source, strategy=strategy, deadline_s=deadline_s)))

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._zero_s

    def write(self, event: str, t_s: float | None = None, **fields: Any) -> float:
        """Append an event at `t_s`, by default now, and return its time as written.

        A time before the last event is moved to that event.
        """
        with self._lock:
            self._last_s = max(self._last_s, self.now_s if t_s is None else t_s)
            written = Event(event=event, t_s=round(self._last_s, 3), **fields)
            self._append(line_of(written))
            return written.t_s

    def next_job(self) -> str:
        """Return a new name for a job."""
        with self._lock:
            self.num_jobs += 1
            return str(self.num_jobs)

    def _continue(self) -> None:
        """Continue the recording in the file."""
        self._last_s, self.num_jobs = read_progress(self.path)
        self._zero_s = self._clock() - self._last_s
        self.write("resumed")

    def _drop_incomplete_line(self) -> bool:
        """Remove what a killed process left of its last line; return whether the file holds anything else."""
        if not self.path.exists():
            return False
        try:
            with self.path.open("r+b") as file:
                content = file.read()
                if content.startswith(b'{"flight"'):  # otherwise it is somebody else's file
                    content = content[: content.rfind(b"\n") + 1]
                    file.truncate(len(content))
                return bool(content)
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from None

    def _append(self, line: str) -> None:
        content = line.encode()
        try:
            with self.path.open("ab") as file:
                if os.write(file.fileno(), content) != len(content):
                    raise OSError(28, "no space left on device")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from None
