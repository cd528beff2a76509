"""Trackers that record their calls, or fail."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lesson.runs.trackers import Line
from lesson.settings.settings import Settings


class RecordingTracker:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        self.calls.append((settings.strategy.name, folder, [line["round"] for line in earlier]))

    def line(self, line: Line) -> None:
        self.calls.append(line["round"])

    def end(self, summary: Line | None) -> None:
        self.calls.append(None if summary is None else summary["rounds"])


class Failing(RecordingTracker):
    """Raises in one of its methods; in `line`, in round 4."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        super().begin(settings, folder, earlier)
        self.fail("begin")

    def line(self, line: Line) -> None:
        super().line(line)
        if line["round"] == 4:
            self.fail("line")

    def end(self, summary: Line | None) -> None:
        super().end(summary)
        self.fail("end")

    def fail(self, method: str) -> None:
        if self.method == method:
            raise OSError(28, "No space\nleft")


class Unpicklable(RecordingTracker):
    """Holds a lock, which cannot be sent to another process."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
