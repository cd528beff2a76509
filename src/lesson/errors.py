"""Errors a user can mend: one line that names the setting, its value and what is allowed."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something given by the user cannot be used; the message is one line and tells the remedy."""


def unknown(kind: str, given: str, allowed: Iterable[str]) -> InputError:
    """The error for a name that is not one of `allowed`, with the nearest one suggested."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"{kind} '{given}' is unknown; {hint}one of: {', '.join(names)}")
