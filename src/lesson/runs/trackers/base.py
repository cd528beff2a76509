"""Who is told about a run while it goes on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from lesson.core.errors import RunStoppedError, describe
from lesson.settings.settings import SECTIONS, Settings

Line = Mapping[str, Any]


class Tracker(Protocol):
    """Told about one run after the other. It is copied into every process that runs are executed in."""

    def begin(self, settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        """A run begins in a folder, or goes on there after the lines it has kept.

        Those are not told again. Lines told after the last checkpoint were not kept: they come again, with the same
        values.
        """
        ...

    def line(self, line: Line) -> None:
        """A round has ended: its line of metrics.jsonl."""
        ...

    def end(self, summary: Line | None) -> None:
        """The run has ended, with what is in summary.json; None: it was broken off and may go on later."""
        ...


class Tracking:
    """Tells trackers about a run from its first line on, so that one which is rejected before leaves no trace.

    What a tracker raises keeps nobody else from being told. The first such error is kept in `problem`.
    """

    def __init__(self, trackers: Sequence[Tracker], settings: Settings, folder: Path, kept: Sequence[Line]) -> None:
        self._waiting, self._run = list(trackers), (settings, folder, kept)
        self._begun: list[Tracker] = []
        self._summary: Line | None = None
        self.problem: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._begun:
            self._tell(self._begun.pop(), "end", self._summary)
        if self.problem is not None and kind is None:
            raise RunStoppedError(f"{self.problem}; the run has ended all the same, its folder is complete")

    def line(self, line: Line) -> None:
        """Tell of a round."""
        self._begin()
        for tracker in self._begun:
            self._tell(tracker, "line", line)

    def finish(self, summary: Line) -> None:
        """Tell of the end when this is left, not of a break."""
        self._begin()
        self._summary = summary

    def _begin(self) -> None:
        while self._waiting:
            tracker = self._waiting.pop(0)
            if self._tell(tracker, "begin", *self._run):
                self._begun.append(tracker)

    def _tell(self, tracker: Tracker, method: str, *told: object) -> bool:
        """Call a method of a tracker; whether that went well."""
        try:
            getattr(tracker, method)(*told)
        except (Exception, SystemExit) as error:  # whatever a tracker of somebody else's does
            name = f"{type(tracker).__module__}:{type(tracker).__qualname__}"
            self.problem = self.problem or f"tracker {name}: {describe(error)}"
            return False
        return True


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting by section.key."""
    tables = settings.to_sections()
    return {f"{section}.{name}": value for section in SECTIONS for name, value in tables[section].items()}


def numbers(line: Line) -> dict[str, float]:
    """The values of a line that are numbers: what is not known, notes and lists are left out."""
    return {name: value for name, value in line.items() if isinstance(value, int | float)}
