"""Where files that are asked for may be written."""

import os
from collections.abc import Sequence
from pathlib import Path

from lesson.core.errors import InputError


def check_file(path: Path | str, what: str, suffixes: Sequence[str]) -> None:
    """Raise if `what` cannot be written there."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{what} must end in {', '.join(suffixes)}, got '{path}'")
    try:
        taken = path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        raise InputError(f"{what} cannot be written: '{path}': {error.strerror}") from None
    if not path.parent.is_dir():
        raise InputError(f"{what} cannot be written: the folder '{path.parent}' does not exist; make it first")
    if taken:
        raise InputError(f"{what} cannot be written: '{path}' is not a file one may write")
