"""Locks on folders that only one process may write at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lesson.core.errors import InputError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder within the context; raise InputError if another process holds the lock.

    The operating system releases the lock of a killed process. If the folder is empty afterwards, it is removed.
    """
    from filelock import FileLock, Timeout  # not at the top: it would slow down `import lesson` by a tenth

    path = folder / LOCK
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder} is in use by another process; wait until it has finished, or stop it") from None
    except OSError as error:  # the folder is read-only, or the file system has no locks
        raise InputError(f"{folder} cannot be locked: {error.strerror}; choose another output folder") from None
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # Windows does not remove open files
            path.unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):  # it has other files
            folder.rmdir()
