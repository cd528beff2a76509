"""Number of CPU cores that this process may use."""

import contextlib
import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Folder in which Linux shows the limits of the current container, with either version of cgroups."""


def num_cores() -> int:
    """Return the number of cores, at least 1, that the affinity and the container of this process let it use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # there are no such files, or there is no limit: "max", -1
            quota, period = (int(word) for file in files for word in (CGROUPS / file).read_text().split())
            usable = min(usable, math.ceil(quota / period)) if quota > 0 else usable
    return max(1, usable)
