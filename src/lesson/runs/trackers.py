"""Trackers: observers that follow a run while it is in progress, such as TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from lesson.core.errors import InputError, RunStoppedError, describe, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.settings.settings import SECTIONS, Settings

Line = Mapping[str, Any]


class Tracker(Protocol):
    """Protocol of objects that follow runs in progress, such as TensorBoard, one run at a time.

    A tracker is copied into every process that executes runs.
    """

    def begin(self, settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        """Called when a run starts in a folder, or resumes there after the lines in `earlier`.

        These lines are not passed to `line` again. Lines after the last checkpoint are not among them: they are passed
        again, with the same values.
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


def checked_trackers(trackers: Sequence[Tracker | str]) -> list[Tracker]:
    """Return trackers, those given as "tensorboard" or another name as objects; raise InputError if one cannot be used.

    A tracker that is given twice is used once.
    """
    if isinstance(trackers, str) or not isinstance(trackers, Sequence):
        raise InputError(f"trackers must be a list, got {trackers!r}")
    return [_checked(one) for place, one in enumerate(trackers) if one not in trackers[:place]]


def _checked(given: Tracker | str) -> Tracker:
    tracker = _by_name(given) if isinstance(given, str) else given
    methods = [getattr(tracker, method, None) for method in ("begin", "line", "end")]
    if isinstance(tracker, type) or not all(map(callable, methods)):
        raise InputError(f"a tracker must be an object with the methods begin, line and end, got {given!r}")
    return tracker


def _by_name(name: str) -> Tracker:
    if name == "tensorboard":
        from lesson.runs.tensorboard import TensorBoard

        return TensorBoard()
    if name == "prometheus":
        from lesson.runs.prometheus import Prometheus

        return Prometheus()
    if ":" not in name:
        raise unknown("tracker", name, ["tensorboard", "prometheus", "module:Class"])
    kind = load_named("tracker", name)
    try:
        tracker: Tracker = kind()
    except (Exception, SystemExit) as error:  # a custom class may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"tracker '{name}' cannot be created: {reason}; its class is called without arguments"
        ) from raised_inside(error)
    return tracker


class Tracking:
    """Calls the trackers of a run, from its first line on, so that a run whose input is rejected leaves no trace.

    An error in a tracker stops the run.
    """

    def __init__(self, trackers: Sequence[Tracker], settings: Settings, folder: Path, earlier: Sequence[Line]) -> None:
        self._waiting, self._run = list(trackers), (settings, folder, earlier)
        self._begun: list[Tracker] = []
        self._summary: Line | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        problem: RunStoppedError | None = None
        for tracker in self._begun:
            try:
                _call(tracker, "end", self._summary)
            except RunStoppedError as error:
                problem = problem or error
        if problem is not None and kind is None:
            raise RunStoppedError(
                f"{problem}; the run has finished nevertheless, and its folder is complete"
            ) from problem.__cause__

    def line(self, line: Line) -> None:
        """Pass a round to all trackers."""
        self._begin()
        for tracker in self._begun:
            _call(tracker, "line", line)

    def finish(self, summary: Line) -> None:
        """Set the summary that `end` receives when the context is left; otherwise, it receives None."""
        self._begin()
        self._summary = summary

    def _begin(self) -> None:
        while self._waiting:
            tracker = self._waiting.pop(0)
            _call(tracker, "begin", *self._run)
            self._begun.append(tracker)


def _call(tracker: Tracker, method: str, *arguments: object) -> None:
    """Call a method of a tracker; raise RunStoppedError if it fails."""
    try:
        getattr(tracker, method)(*arguments)
    except (Exception, SystemExit) as error:  # a custom tracker may raise anything
        name = f"{type(tracker).__module__}:{type(tracker).__qualname__}"
        raise RunStoppedError(f"tracker {name}: {describe(error)}") from error


def flat_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting by section.key."""
    tables = settings.to_sections()
    return {f"{section}.{name}": value for section in SECTIONS for name, value in tables[section].items()}


def numbers(line: Line) -> dict[str, float]:
    """Return the numeric values of a line, without notes, lists and unknown values."""
    return {name: value for name, value in line.items() if isinstance(value, int | float)}
