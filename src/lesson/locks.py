"""Folders that one process writes at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lesson.errors import InputError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else has the folder meanwhile; raises if somebody has it. The lock of a killed process is gone with it."""
    with _lock(folder) as lock:
        try:
            yield
        finally:
            if _is_at(lock, folder / LOCK):
                (folder / LOCK).unlink()


def _lock(folder: Path) -> TextIO:
    """The file that was locked, open."""
    while True:
        try:
            lock = (folder / LOCK).open("w")
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}; name another folder with --out") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            why = "is being written by another process; wait for it or end it"
            if not isinstance(error, BlockingIOError):  # a file system without locks
                why = f"cannot be locked: {error.strerror}; name another folder with --out"
            raise InputError(f"{folder} {why}") from None
        if _is_at(lock, folder / LOCK):
            return lock
        lock.close()  # whose it was removed it between the two; somebody else may have made and locked a new one


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is the one that has this path now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
