"""Trackers: observers that follow a run while it is in progress, such as TensorBoard."""

from collections.abc import Callable, Sequence

from lesson.core.errors import InputError, raised_inside, unknown
from lesson.core.plugins import load_named
from lesson.runs.trackers.base import Line, Tracker, Tracking, flat_settings, numbers
from lesson.runs.trackers.tensorboard import TensorBoard

TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard}


def checked_trackers(trackers: Sequence[Tracker | str]) -> list[Tracker]:
    """Return trackers, those given by name as in `make_trackers`; raise InputError if one lacks a method."""
    if isinstance(trackers, str) or not isinstance(trackers, Sequence):
        raise InputError(f"trackers must be a list, got {trackers!r}")
    checked = [tracker for one in trackers for tracker in (make_trackers([one]) if isinstance(one, str) else [one])]
    for tracker in checked:
        if isinstance(tracker, type) or not _has_methods(tracker):
            raise InputError(f"a tracker must be an object with the methods begin, line and end, got {tracker!r}")
    return checked


def _has_methods(kind: object) -> bool:
    return all(callable(getattr(kind, method, None)) for method in ("begin", "line", "end"))


def make_trackers(names: Sequence[str]) -> list[Tracker]:
    """Return trackers by name, or custom ones as module:Class; raise InputError if one cannot be used."""
    return [_make(name) for name in dict.fromkeys(names)]


def _make(name: str) -> Tracker:
    if name in TRACKERS:
        return TRACKERS[name]()
    if ":" not in name:
        raise unknown("tracker", name, [*TRACKERS, "module:Class"])
    kind = load_named("tracker", name)
    if not _has_methods(kind):
        raise InputError(f"tracker '{name}' must have the methods begin, line and end")
    try:
        tracker: Tracker = kind()
    except (Exception, SystemExit) as error:  # a custom class may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"tracker '{name}' cannot be created: {reason}; its class is called without arguments"
        ) from raised_inside(error)
    return tracker


__all__ = [
    "TRACKERS",
    "Line",
    "TensorBoard",
    "Tracker",
    "Tracking",
    "checked_trackers",
    "flat_settings",
    "make_trackers",
    "numbers",
]
