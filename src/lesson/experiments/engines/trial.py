"""How one worker executes one run of many, and what an engine tells about it."""

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lesson.core.errors import LACK_OF_MEMORY, DivergedError, InputError, RunStoppedError, describe
from lesson.runs.execute import Progress, execute
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

MAX_RESTARTS = 3
FORESEEN = tuple(kind.__name__ for kind in (InputError, RunStoppedError, DivergedError))

Line = dict[str, Any]
Event = tuple[Path, Line]


class Engine(Protocol):
    """Executes runs, several at a time."""

    def check(self) -> None:
        """Raise if it cannot work here at all."""
        ...

    def run(self, plan: Mapping[Path, Settings], trackers: Sequence[Tracker] = ()) -> Generator[Event, None, None]:
        """What happens to each run, by its folder, until all have ended; closing it interrupts what is going on.

        Trackers are told of it where it happens: each process has a copy.
        A line is one of the run's metrics, {"done": True} with its final accuracy and time_s, {"killed": how often, so
        far} for a run that goes on after its process was killed, or {"error": why, "kind": class of the error} for one
        that does not. Raises InputError if a tracker cannot be copied into another process.
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
    """How a run ended: its last line. It goes on where its folder stands. `parts` are as for `execute`."""
    try:
        summary = execute(settings, path, resume=True, progress=progress, trackers=trackers, **parts)
    except (InputError, RunStoppedError) as error:
        return {"error": str(error), "kind": type(error).__name__}
    except (Exception, SystemExit) as error:  # whatever a custom strategy does
        return {"error": describe(error), "kind": type(error).__name__}
    return {"done": True} | {name: summary[name] for name in ("accuracy", "time_s")}


def tracker_names(trackers: Sequence[Tracker]) -> str:
    """The classes of trackers, for messages."""
    return ", ".join(f"{type(one).__module__}:{type(one).__qualname__}" for one in trackers)


def not_copied(names: str, error: Exception) -> InputError:
    """The error for trackers that do not survive the way into another process."""
    remedy = "define the class in a module, open files and connections in begin(), or take a single process"
    return InputError(f"tracker {names} cannot be copied into another process: {describe(error)}; {remedy}")


def ended(how: str) -> Line:
    """The last line of a run whose process has gone by itself."""
    return {"error": f"its process has ended with {how}", "kind": RunStoppedError.__name__}


def killed(times: int, how: str) -> Line:
    """The last line of a run whose process was killed more often than it is replaced."""
    often = "" if times == 1 else f" {times} times"
    why = f", {LACK_OF_MEMORY}" if how in ("signal 9", "Ray tells OutOfMemoryError") else ""
    return {"error": f"its process was killed{often}: {how}{why}", "kind": RunStoppedError.__name__}
