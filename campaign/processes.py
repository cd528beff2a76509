"""Processes that others have started, found under /proc."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process; numbers are given again, starts are not."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return _start_of(self.pid) == self.started

    @property
    def is_worker(self) -> bool:
        """Whether multiprocessing has started it to work."""
        try:
            return b"spawn_main" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False


def descendants(pid: int) -> list[Process]:
    """The processes that a process has started, and those that they have."""
    found = []
    try:
        children = [
            int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()
        ]
    except OSError:
        return []
    for child in children:
        if started := _start_of(child):
            found += [Process(child, started), *descendants(child)]
    return found


def wait_until_gone(processes: list[Process], seconds: float) -> list[Process]:
    """Those that have not ended within so many seconds."""
    until = time.monotonic() + seconds
    while (left := [one for one in processes if one.alive]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _start_of(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty if there is none, or it waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
