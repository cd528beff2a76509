"""Files: reading text with one-line errors, and writing files that appear complete or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from lesson.core.errors import InputError, RunStoppedError

ASIDE = ".aside"
"""Suffix of temporary files that are still being written; their names start with a dot."""
_NAME_LETTERS = 40
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that the user's input did not cause: the disk is full or faulty."""


def write_whole(path: Path, content: bytes, before: Path | None = None) -> None:
    """Write a file that appears complete or not at all; the previous version is kept as `before` if this is given.

    Raises RunStoppedError if the disk is full or faulty, InputError if the file cannot be written for another reason.
    """
    write_all({path: content}, before)


def write_all(contents: Mapping[Path, bytes], before: Path | None = None) -> None:
    """Write several files like `write_whole`; none is replaced before all are on disk."""
    asides: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            start = f".{path.name[:_NAME_LETTERS]}."
            remove_leftovers(path.parent, start)
            asides[path] = path.with_name(f"{start}{secrets.token_hex(4)}{ASIDE}")
            with asides[path].open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, aside in asides.items():
            if before is not None and path.exists():
                path.replace(before)
            aside.replace(path)
        for folder in {path.parent for path in contents}:
            _sync_folder(folder)
    except OSError as error:
        raise _not_written(path, error) from None
    finally:
        for aside in asides.values():
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)


def read_text(path: Path, form: str, missing: str) -> str:
    """Return the text of a file; errors say that it should be `form` in UTF-8, or, if it does not exist, `missing`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; {missing}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: not {form} in UTF-8") from None


def remove_leftovers(folder: Path, start: str = ".") -> None:
    """Remove temporary files whose names begin with `start`: their writers were killed."""
    for path in folder.glob(f".*{ASIDE}"):
        if path.name.startswith(start):
            with contextlib.suppress(OSError):
                path.unlink()


def check_output(path: Path | str, what: str, suffixes: Sequence[str]) -> None:
    """Raise InputError if a path cannot be written or has none of the suffixes; `what` names it in the message."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{what} must end in {', '.join(suffixes)}, got '{path}'")
    if not path.parent.is_dir():
        raise InputError(f"{what} cannot be written: the folder '{path.parent}' does not exist; create it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{what} cannot be written: '{path}' is not writable")


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the file system supports it."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _not_written(path: Path, error: OSError) -> InputError | RunStoppedError:
    """Return the error for a file that cannot be written, with the remedy."""
    said = f"{path} cannot be written: {error.strerror}"
    if error.errno in _DISK_ERRORS:
        return RunStoppedError(f"{said}; free some disk space and try again")
    return InputError(said)
