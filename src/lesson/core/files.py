"""Reading and writing files in folders that others can write to.

Inputs must be regular files: a FIFO would block, a device would fill the memory. Outputs never follow a symbolic link,
and appear complete or not at all.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from lesson.core.errors import InputError, RunStoppedError

ASIDE = ".aside"
"""Suffix of temporary files that are still being written; their names start with a dot."""
MAX_JSON_BYTES = 1 << 28
_NAME_LETTERS = 40
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows lacks this flag and the next
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that the user's input did not cause: the disk is full or faulty."""


def open_input(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading; raise OSError for anything else, and for a file larger than `max_bytes`."""
    return _regular(path, os.O_RDONLY, "rb", max_bytes)


def read_input(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file; raise OSError like `open_input`."""
    with open_input(path, max_bytes) as file:
        return file.read(max_bytes)


def open_to_change(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a regular file for reading and writing, or for appending, without following a symbolic link.

    A missing file is created; an existing file keeps its content. Raises OSError if the path is anything else.
    """
    flags = os.O_RDWR | os.O_CREAT | _NO_FOLLOW | (os.O_APPEND if append else 0)
    try:
        return _regular(path, flags, "ab" if append else "r+b", None)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link; remove it") from None
        raise


def write_whole(path: Path, content: bytes, before: Path | None = None) -> None:
    """Write a file that appears complete or not at all; the previous version is kept as `before` if this is given.

    Raises RunStoppedError if the disk is full or faulty, InputError if the file cannot be written for another reason.
    """
    write_all({path: content}, before)


def check_output(path: Path | str, what: str, suffixes: Sequence[str]) -> None:
    """Raise InputError if a path cannot be written or has none of the suffixes; `what` names it in the message."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(f"{what} must end in {', '.join(suffixes)}, got '{path}'")
    try:
        taken = path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        raise InputError(f"{what} cannot be written: '{path}': {error.strerror}") from None
    if not path.parent.is_dir():
        raise InputError(f"{what} cannot be written: the folder '{path.parent}' does not exist; create it first")
    if taken:
        raise InputError(f"{what} cannot be written: '{path}' is not writable")


def write_all(contents: Mapping[Path, bytes], before: Path | None = None) -> None:
    """Write several files like `write_whole`; none is replaced before all are on disk."""
    asides: list[Path] = []
    with contextlib.ExitStack() as written:
        path = next(iter(contents), Path())
        try:
            for path, content in contents.items():
                remove_leftovers(path.parent, f".{path.name[:_NAME_LETTERS]}.")
                aside, file = _open_aside(path)
                asides.append(aside)
                written.enter_context(file)
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            if os.name == "nt":  # Windows does not rename open files
                written.close()
            for aside, path in zip(asides, contents, strict=True):
                if before is not None and path.exists():
                    path.replace(before)
                aside.replace(path)
            for folder in {path.parent for path in contents}:
                _sync_folder(folder)
        except OSError as error:
            raise _not_written(path, error) from None
        finally:
            for aside in asides:
                with contextlib.suppress(OSError):
                    aside.unlink(missing_ok=True)


def remove_leftovers(folder: Path, prefix: str = ".") -> None:
    """Remove temporary files whose writers were killed, recognized by a lock that is no longer held."""
    for path in folder.glob(f".*{ASIDE}"):
        if path.name.startswith(prefix):
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    path.unlink()
                    continue
                with open_to_change(path) as file:
                    if lock(file):
                        path.unlink()


def lock(file: BinaryIO | FileIO) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock.

    The operating system releases the lock of a killed process. Raises OSError if the file system has no locks.
    """
    # filelock.FileLock would also lock a FIFO, and would leave lock files behind in every folder.
    from filelock import lock_descriptor  # not at the top: it would slow down `import lesson` by a tenth

    return lock_descriptor(file.fileno(), blocking=False)


def is_at(file: BinaryIO | FileIO, path: Path) -> bool:
    """Return whether an open file is still the file at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _regular(path: Path, flags: int, mode: str, max_bytes: int | None) -> BinaryIO:
    # Without O_NONBLOCK, opening a FIFO blocks until its other end is opened.
    number = os.open(path, flags | _NO_WAIT, 0o666)
    try:
        found = os.fstat(number)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it must be a regular file, not a pipe or a device")
        if max_bytes is not None and found.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it must have at most {max_bytes} bytes, got {found.st_size}")
        return os.fdopen(number, mode)  # type: ignore[return-value]  # modes here are binary
    except BaseException:
        os.close(number)
        raise


def _open_aside(path: Path) -> tuple[Path, FileIO]:
    """Create an unbuffered temporary file next to `path`, locked so that `remove_leftovers` does not remove it."""
    while True:
        aside = path.with_name(f".{path.name[:_NAME_LETTERS]}.{secrets.token_hex(4)}{ASIDE}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(FileIO(os.open(aside, flags, 0o666), "wb"))
            acquired = True
            with contextlib.suppress(OSError):  # the file system has no locks
                acquired = lock(file)
            if acquired and is_at(file, aside):  # otherwise `remove_leftovers` came first
                opened.pop_all()
                return aside, file


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
