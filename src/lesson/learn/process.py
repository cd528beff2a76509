"""Process-wide settings of torch and glibc for training on a CPU, how to undo them, and starting other processes."""

import contextlib
import ctypes
import platform
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_USUAL_MMAP_BYTES, _USUAL_TRIM_BYTES = 32 << 20, 64 << 20
"""Values that glibc's thresholds reach by themselves in a process that frees large arrays."""


def configure_process() -> None:
    """Prepare this process for training for the rest of its life: torch uses one thread, and freed memory is kept.

    Idle threads of torch spin and would take cores from the threads that train. With higher thresholds of glibc, steps
    on many samples do not wait for fresh pages; without glibc, memory settings are unchanged.
    """
    _users.settle()


@contextlib.contextmanager
def configured_process() -> Iterator[None]:
    """Prepare this process for training while the context lasts, and undo it afterwards.

    The number of torch's threads is restored in the calling thread. glibc's thresholds cannot be read, and glibc no
    longer adapts them once they have been set. They are therefore set to the values that they reach in a process with
    large arrays: with the initial 128 KiB, every larger array would take fresh pages each time, which is ten times
    slower. Memory that was kept is returned to the system.
    """
    num_threads = _users.settle()
    try:
        yield
    finally:
        _users.leave(num_threads)


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Keep a process that starts in this context from executing the user's script again, as `spawn` does by default.

    Scripts can then call `lesson.compare` and `lesson.run` without `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Users:
    """Counts the runs that need a prepared process; the last one to end restores malloc.

    torch's number of threads belongs to the calling thread, so each run restores its own.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def settle(self) -> int:
        """Prepare the process and return the number of torch's threads that the calling thread had."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                _set_malloc(_KEEP_BYTES, _KEEP_BYTES)
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        return num_threads

    def leave(self, num_threads: int) -> None:
        """Restore what `settle` returned, in the same thread."""
        torch.set_num_threads(num_threads)
        with self._lock:
            self._count -= 1
            if self._count == 0:
                _set_malloc(_USUAL_MMAP_BYTES, _USUAL_TRIM_BYTES)


def _set_malloc(mmap_bytes: int, trim_bytes: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, mmap_bytes)
        libc.mallopt(_TRIM_THRESHOLD, trim_bytes)
        if trim_bytes < _KEEP_BYTES:
            libc.malloc_trim(0)


_users = _Users()
