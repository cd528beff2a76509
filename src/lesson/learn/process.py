"""What a process that trains on a CPU needs, and no other should have."""

import ctypes
import platform

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def settle_process() -> None:
    """Prepare this process for training: threads of our own instead of torch's, memory kept instead of given back.

    torch's idle threads spin and take cores from ours. With glibc's thresholds raised, steps on many samples spend no
    time on fresh pages; elsewhere that part does nothing.
    """
    torch.set_num_threads(1)
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _KEEP_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)
