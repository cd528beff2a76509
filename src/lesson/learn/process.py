"""Process-wide settings of torch and glibc for training on a CPU, and starting other processes."""

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator
from types import ModuleType

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def configure_process() -> None:
    """Prepare this process for training: torch uses one thread, and glibc keeps freed memory for the next step.

    Idle threads of torch spin and would take cores from the threads that train. Fresh pages for every large array would
    take more than a tenth of the CPU time of FedAvg on MNIST with minibatches of 100 samples.
    """
    torch.set_num_threads(1)
    if libc := _glibc():
        libc.mallopt(_MMAP_THRESHOLD, _KEEP_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)


@contextlib.contextmanager
def configured_process() -> Iterator[None]:
    """Prepare this process for training while the context lasts.

    Afterwards, the number of torch's threads is restored in the calling thread, and memory that was kept is returned to
    the system. The thresholds of glibc, which cannot be read, stay changed.
    """
    num_threads = torch.get_num_threads()
    configure_process()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        if libc := _glibc():
            libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


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
