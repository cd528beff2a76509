"""Locks on folders that only one process may write at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lesson.core.errors import InputError
from lesson.core.files import is_at, lock, open_to_change

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder within the context; raise InputError if another process holds the lock.

    The operating system releases the lock of a killed process.
    """
    with _lock(folder) as file:
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # Windows does not remove open files
                if is_at(file, folder / LOCK):
                    (folder / LOCK).unlink()


def _lock(folder: Path) -> BinaryIO:
    """Return the lock file, open and locked."""
    while True:
        try:
            file = open_to_change(folder / LOCK)
        except OSError as error:
            what = folder / LOCK if os.path.lexists(folder / LOCK) else folder
            raise InputError(f"{what} cannot be written: {error.strerror}; choose another output folder") from None
        try:
            acquired = lock(file)
        except OSError as error:  # the file system has no locks
            file.close()
            raise InputError(f"{folder} cannot be locked: {error.strerror}; choose another output folder") from None
        if not acquired:
            file.close()
            raise InputError(f"{folder} is in use by another process; wait until it has finished, or stop it")
        if is_at(file, folder / LOCK):
            return file
        file.close()  # its holder removed it before we locked it; another process may hold a new one
