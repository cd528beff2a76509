"""Errors that a user can fix: one line that names the setting, its value and what is allowed."""

import difflib
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAX_LENGTH = 700
MAX_SHOWN = 200
"""Maximum number of characters shown of an untrusted text."""
LACK_OF_MEMORY = "probably for lack of memory; use fewer clients, a smaller batch_size or fewer concurrent runs"
"""Likely cause, and remedy, when the operating system kills a process."""
INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders with installed packages."""
_NOT_CUSTOM = {Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))}
"""Folders of this package and of Python itself."""


class InputError(ValueError):
    """An argument, a setting or an input file is invalid. The message is one line that says how to fix it."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…")


class ArgumentError(InputError):
    """An argument of a function is invalid. The message starts with its name; a command shows its option instead."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument} {problem}")
        self.argument, self.problem = argument, problem

    def __reduce__(self) -> tuple[type["ArgumentError"], tuple[str, str]]:
        """Return how to copy the error to another process; by default, only the message would be passed."""
        return type(self), (self.argument, self.problem)

    def as_option(self) -> InputError:
        """Return the error with the command-line option of the same name, without `num_` and the unit of seconds."""
        name = self.argument.removeprefix("num_").removesuffix("_s").replace("_", "-")
        return InputError(f"--{name} {self.problem}")


class RunStoppedError(Exception):
    """A run cannot continue although its input is valid. The message is one line that says why."""


class UnfitFleetError(RunStoppedError):
    """A strategy cannot run on the clients of this seed, although it may run on those of another."""


class RemoteError(Exception):
    """An exception in another process. The message is its traceback."""


class LackOfMemoryError(RunStoppedError):
    """A run has run out of memory, possibly because other runs are using it."""


class DivergedError(RunStoppedError):
    """Training has diverged: the model or the loss is no longer finite."""

    metric: Mapping[str, Any] = {}
    """Entries that describe the metric of the task, since there is no summary; see `Metric.outline`."""


def unknown(kind: str, given: str, allowed: Iterable[str], *, section: str = "", to: str = "") -> InputError:
    """Return the error for a name that is not in `allowed`, with the closest match.

    `section` is the section of the settings in which the name was given, `to` the strategy for which it was given.
    """
    names = sorted(allowed)
    hint = suggestion(given, names)
    whom = f" for {to}" if to else ""
    listed = f"{'Available' if hint else 'available'}: {', '.join(names) or 'none'}"
    where = f"[{section}] " if section else ""
    return InputError(f"{where}unknown {kind} '{given[:80]}'{whom}; {hint}{listed}")


def suggestion(given: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "did you mean 'x'? " for the closest of the names; empty if none is close."""
    bare = {name.strip("-"): name for name in names}
    near = difflib.get_close_matches(given.strip("-")[:80], bare, n=1, cutoff=cutoff)
    return f"did you mean '{bare[near[0]]}'? " if near else ""


def printable(text: str, most: int = MAX_SHOWN) -> str:
    """Return an untrusted text on one line of at most `most` characters, with control characters escaped."""
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: most + 1]
    )
    return escaped if len(escaped) <= most else f"{escaped[: most - 1]}…"


def raised_inside(error: BaseException) -> BaseException | None:
    """Return an error that the called code raised; None if the call itself failed, such as for a missing argument."""
    return error if len(traceback.extract_tb(error.__traceback__)) > 1 else None


def traceback_of(error: BaseException) -> str:
    """Return the traceback of the exception in the user's code that led to an error; empty if there is none."""
    cause = error.__cause__ if isinstance(error, InputError | RunStoppedError) else error
    if isinstance(cause, RemoteError):
        return str(cause)
    return "" if cause is None else "".join(traceback.format_exception(cause)).rstrip()


def describe(error: BaseException) -> str:
    """Return one line about an unexpected error: type, message, and the file and line, in custom code if possible."""
    frames = traceback.extract_tb(error.__traceback__)
    place = ([frame for frame in frames if _is_custom(frame.filename)] or frames)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    why = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if why else ''}{why}{where}"


def _is_custom(filename: str) -> bool:
    """Return whether a source file belongs neither to this package nor to Python or an installed package."""
    path = Path(filename)
    if path.suffix == ".pyx" or filename.startswith("<"):  # compiled modules do not say in which folder they are
        return False
    return not ({*path.parents} & _NOT_CUSTOM or INSTALLED & {*path.parts})
