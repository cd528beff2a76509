"""The protocol of trackers, and the object that calls them during a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from lesson.core.errors import RunStoppedError, describe
from lesson.settings.settings import SECTIONS, Settings

Line = Mapping[str, Any]


class Tracker(Protocol):
    """Protocol of objects that follow runs in progress, such as TensorBoard, one run at a time.

    A tracker is copied into every process that executes runs.
    """

    def begin(self, settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        """Called when a run starts in a folder, or resumes there after the lines in `kept`.

        Kept lines are not passed to `line` again. Lines after the last checkpoint are not kept: they are passed again,
        with the same values.
        """
        ...

    def line(self, line: Line) -> None:
        """Called for each round in order, with its line of metrics.jsonl.

        Rounds are executed together, so several lines may come at once, up to about half a second after their rounds.
        """
        ...

    def end(self, summary: Line | None) -> None:
        """Called at the end of a run with the content of summary.json; with None if it was interrupted."""
        ...


class Tracking:
    """Calls the trackers of a run, from its first line on, so that a run whose input is rejected leaves no trace.

    An error in one tracker does not affect the others. The first error is kept in `problem`.
    """

    def __init__(self, trackers: Sequence[Tracker], settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        self._waiting, self._run = list(trackers), (settings, folder, kept)
        self._begun: list[Tracker] = []
        self._failed = set[int]()
        """Trackers that raised an error and get no further lines: rounds that are already executed still follow."""
        self._summary: Line | None = None
        self.problem: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._begun:
            self._tell(self._begun.pop(), "end", self._summary)
        if self.problem is not None and kind is None:
            raise RunStoppedError(f"{self.problem}; the run has finished nevertheless, and its folder is complete")

    def line(self, line: Line) -> None:
        """Pass a round to all trackers."""
        self._begin()
        for tracker in self._begun:
            if id(tracker) not in self._failed and not self._tell(tracker, "line", line):
                self._failed.add(id(tracker))

    def finish(self, summary: Line) -> None:
        """Set the summary that `end` receives when the context is left; otherwise, it receives None."""
        self._begin()
        self._summary = summary

    def _begin(self) -> None:
        while self._waiting:
            tracker = self._waiting.pop(0)
            if self._tell(tracker, "begin", *self._run):
                self._begun.append(tracker)

    def _tell(self, tracker: Tracker, method: str, *told: object) -> bool:
        """Call a method of a tracker; return whether it succeeded."""
        try:
            getattr(tracker, method)(*told)
        except (Exception, SystemExit) as error:  # a custom tracker may raise anything
            name = f"{type(tracker).__module__}:{type(tracker).__qualname__}"
            self.problem = self.problem or f"tracker {name}: {describe(error)}"
            return False
        return True


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting by section.key."""
    tables = settings.to_sections()
    return {f"{section}.{name}": value for section in SECTIONS for name, value in tables[section].items()}


def numbers(line: Line) -> dict[str, float]:
    """Return the numeric values of a line, without notes, lists and unknown values."""
    return {name: value for name, value in line.items() if isinstance(value, int | float)}
