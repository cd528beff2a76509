"""Locks on folders that only one process may write at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lesson.core.errors import InputError
from lesson.core.files import is_at, open_to_change

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder within the context; raise InputError if another process holds the lock.

    The operating system releases the lock of a killed process.
    """
    with _lock(folder) as lock:
        try:
            yield
        finally:
            if is_at(lock, folder / LOCK):
                (folder / LOCK).unlink()


def _lock(folder: Path) -> BinaryIO:
    """Return the lock file, open and locked."""
    while True:
        try:
            lock = open_to_change(folder / LOCK)
        except OSError as error:
            what = folder / LOCK if os.path.lexists(folder / LOCK) else folder
            raise InputError(f"{what} cannot be written: {error.strerror}; name another folder with --out") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            why = "is being written by another process; wait for it or end it"
            if not isinstance(error, BlockingIOError):  # the file system has no locks
                why = f"cannot be locked: {error.strerror}; name another folder with --out"
            raise InputError(f"{folder} {why}") from None
        if is_at(lock, folder / LOCK):
            return lock
        lock.close()  # its holder removed it before we locked it; another process may hold a new one
