"""Settings of a process that trains on a CPU, which no other code of that process should have."""

import contextlib
import ctypes
import platform
import threading
from collections.abc import Iterator

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_USUAL_MMAP_BYTES, _USUAL_TRIM_BYTES = 32 << 20, 64 << 20
"""What glibc's thresholds grow to by themselves in a process that frees large arrays."""


def settle_process() -> None:
    """Prepare this process for training, for the rest of its life: one thread for torch, and memory is kept.

    torch's idle threads spin and take cores from ours. With glibc's thresholds raised, steps on many samples spend no
    time on fresh pages; elsewhere that part does nothing.
    """
    _users.settle()


@contextlib.contextmanager
def settled_process() -> Iterator[None]:
    """Do the same for as long as the context lasts, in a process that has other things to do afterwards.

    The number of torch's threads becomes what it was. glibc does not tell its thresholds, and does not adapt them
    any more once they were set. So they become what they grow to in a process with large arrays: with their initial
    128 KiB every array above would take fresh pages each time, ten times as slow. Memory that was kept is given back.
    """
    _users.settle()
    try:
        yield
    finally:
        _users.leave()


class _Users:
    """Counts the runs that need a settled process: the last one to end restores it."""

    def __init__(self) -> None:
        self._count, self._num_threads = 0, 1
        self._lock = threading.Lock()

    def settle(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._num_threads = torch.get_num_threads()
                _set_malloc(_KEEP_BYTES, _KEEP_BYTES)
            torch.set_num_threads(1)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                torch.set_num_threads(self._num_threads)
                _set_malloc(_USUAL_MMAP_BYTES, _USUAL_TRIM_BYTES)


def _set_malloc(mmap_bytes: int, trim_bytes: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, mmap_bytes)
        libc.mallopt(_TRIM_THRESHOLD, trim_bytes)
        if trim_bytes < _KEEP_BYTES:
            libc.malloc_trim(0)


_users = _Users()
