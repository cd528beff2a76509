"""The protocol of engines, and how a worker executes one of many runs."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lesson.core.errors import (
    LACK_OF_MEMORY,
    DivergedError,
    InputError,
    RunStoppedError,
    UnfitFleetError,
    describe,
    traceback_of,
)
from lesson.learn.metric import Metric
from lesson.learn.task import Task
from lesson.runs.execute import Progress, execute
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

MAX_RESTARTS = 3
FORESEEN = tuple(kind.__name__ for kind in (InputError, RunStoppedError, UnfitFleetError, DivergedError))

Line = dict[str, Any]
Hear = Callable[[Path, Line], None]
"""Called with the folder of a run and each of its events."""


class Engine(Protocol):
    """Executes many runs, several at a time."""

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        """Execute runs in their folders until all have ended; an exception of `hear` when a run ends interrupts them.

        `hear` is called with events: a line of the run's metrics, {"done": True} with its final score and time_s,
        {"killed": count} for a run that is resumed after its process was killed, {"postponed": True} for one that ran
        out of memory and is resumed after another has ended, {"alone": reason} for one that a GPU cannot train together
        with others and that is executed after these have ended, or {"error": message, "kind": name of the class,
        "traceback": that of an exception in the user's code} for a run that failed. Trackers are called in the process
        that executes the run; each process has its own copy. Raises InputError if a tracker or task cannot be copied
        into another process.
        """
        ...


def execute_trial(
    path: Path,
    settings: Settings,
    *,
    progress: Progress | None,
    trackers: Sequence[Tracker] = (),
    **parts: Any,
) -> Line:
    """Execute or resume a run and return its last event. `parts` are passed on to `execute`."""
    try:
        summary = execute(settings, path, resume=True, progress=progress, trackers=trackers, **parts)
    except (InputError, RunStoppedError) as error:
        return failed(error) | dict(error.metric if isinstance(error, DivergedError) else {})
    except (Exception, SystemExit) as error:  # a custom strategy may raise anything
        return {"error": describe(error), "kind": type(error).__name__, "traceback": traceback_of(error)}
    metric = Metric.of(summary)
    return {"done": True} | {name: summary[name] for name in (metric.name, "time_s")} | metric.fields


def copied(trackers: Sequence[Tracker], task: Task | None, dumps: Callable[[Any], bytes]) -> bytes:
    """Return trackers and task for another process; raise InputError if they cannot be pickled."""
    try:
        return dumps((list(trackers), task))
    except Exception as error:  # custom objects may hold anything
        raise not_copied(error) from error


def restored(content: bytes) -> tuple[list[Tracker], Task | None]:
    """Return the trackers and the task from `copied`; raise InputError if this process cannot import what they need."""
    try:
        own: tuple[list[Tracker], Task | None] = pickle.loads(content)
    except Exception as error:
        raise not_copied(error) from error
    return own


def not_copied(error: Exception) -> InputError:
    """Return the error for a tracker or task that cannot be pickled."""
    remedy = "define classes and functions in a module, open files and connections later, or use a single process"
    return InputError(f"task or trackers cannot be copied into another process: {describe(error)}; {remedy}")


def failed(error: InputError | RunStoppedError) -> Line:
    """Return the last event of a run that failed with a foreseen error; an ArgumentError is an InputError, too."""
    kind = InputError if isinstance(error, InputError) else type(error)
    return {"error": str(error), "kind": kind.__name__, "traceback": traceback_of(error)}


def killed(times: int, how: str) -> Line:
    """Return the last event of a run whose process was killed too often."""
    often = "" if times == 1 else f" {times} times"
    why = f", {LACK_OF_MEMORY}" if how in ("signal 9", "Ray reports OutOfMemoryError") else ""
    return {"error": f"its process was killed{often}: {how}{why}", "kind": RunStoppedError.__name__}
