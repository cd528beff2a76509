"""Descendants of a process, found under /proc."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, identified by its PID and start time because PIDs are reused."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return _start_of(self.pid) == self.started

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker process of multiprocessing."""
        try:
            return b"spawn_main" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False


def descendants(pid: int) -> list[Process]:
    """Return all descendants of a process."""
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
    """Wait up to `seconds` for processes to end, and return those that have not."""
    until = time.monotonic() + seconds
    while (left := [one for one in processes if one.alive]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _start_of(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
