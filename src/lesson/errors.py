"""Errors a user can mend: one line that names the setting, its value and what is allowed."""

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path

MAX_LENGTH = 700


class InputError(ValueError):
    """Something given by the user cannot be used. The message tells the remedy, in one line whatever was given."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…")


class RunStoppedError(Exception):
    """A run cannot go on, though nothing was wrong with its input; the message says why in one line."""


class DivergedError(RunStoppedError):
    """The model or the loss is no longer finite."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that is not one of `allowed`, with the nearest one suggested."""
    names = sorted(allowed)
    bare = {name.strip("-"): name for name in names}
    near = difflib.get_close_matches(given.strip("-")[:80], bare, n=1)
    hint = f"did you mean '{bare[near[0]]}'? " if near else ""
    return InputError(f"{kind} '{given[:80]}' is unknown; {hint}one of: {', '.join(names)}")


def describe(error: BaseException) -> str:
    """An unexpected error in one line, with the place it comes from."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    why = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if why else ''}{why}{where}"
