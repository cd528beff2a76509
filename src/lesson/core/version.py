"""The version of this package, and the check that a file has the format that it reads."""

from pathlib import Path

from lesson.core.errors import InputError

__version__ = "0.2.0"


def check_format(path: Path, found: object, expected: int) -> None:
    """Raise InputError unless a file has the format that this version reads."""
    if found != expected:
        raise InputError(f"{path}: format must be {expected}, got {found}: another version of lesson wrote it")
