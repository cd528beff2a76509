"""Commands that are killed, interrupted or started twice: repeating them gives bit-identical results."""

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.stress.command import call, started, text
from tests.stress.runs import COMPARE, RUN, SWEEP, Command, Undisturbed, write_grid
from tests.stress.trial import Facts, Trial

IN_A_ROW = 3
"""Number of kills with the same output folder."""
MOMENTS = ("config.toml", "metrics.jsonl", "checkpoint.safetensors")
"""Files that a run writes in this order; signals are sent when one appears."""
BUSY = ("is in use by another process", "has just been finished by another process")


def trials(undisturbed: Undisturbed, short: bool) -> list[Trial]:
    """Return trials with kills spread over the duration of each command, signals, and processes that compete."""
    made = []
    for command in (RUN,) if short else (RUN, COMPARE, SWEEP):
        kills = 2 if short else 24
        order = random.Random(command.name).sample(range(kills), kills)
        for first in range(0, kills, IN_A_ROW):
            spans = [(place / kills, (place + 1) / kills) for place in order[first : first + IN_A_ROW]]
            do = partial(_kill, command, undisturbed, spans)
            made.append(Trial(f"kill {command.name}", f"{first}-{first + len(spans) - 1}", do))
    signals = [(signal.SIGTERM, MOMENTS[-1])]
    if not short:
        signals = [(number, name) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for name in MOMENTS]
    return [
        *made,
        *(
            Trial("interrupt run", f"{one.name} {name}", partial(_interrupt, undisturbed, one, name))
            for one, name in signals
        ),
        *(
            Trial("competing processes", str(number), partial(_compete, undisturbed))
            for number in range(1 if short else 3)
        ),
    ]


def _kill(
    command: Command, undisturbed: Undisturbed, spans: list[tuple[float, float]], folder: Path, rng: random.Random
) -> Facts:
    write_grid(folder)
    victim = _Victim(command, undisturbed, folder, rng)
    for span in spans:
        victim.kill(rng.uniform(*span))
    victim.finish()
    return {"kills": victim.kills, "kills of workers": victim.worker_kills}


def _interrupt(undisturbed: Undisturbed, number: signal.Signals, name: str, folder: Path, _: random.Random) -> Facts:
    """Send a signal five times once a file exists: the command must print one line and be resumable."""
    argv = RUN.argv(folder / "runs")
    with started(argv, folder) as process:
        while process.poll() is None and not (folder / "runs" / name).exists():
            time.sleep(0.005)
        for _repeat in range(5):
            process.send_signal(number)
            time.sleep(0.01)
        status = process.wait()
    said = text(folder / "err")
    assert status in (0, 128 + number), f"status {status}: {said}"
    lines = [line for line in said.splitlines() if not line.startswith("note: ")]
    assert len(lines) == (status != 0), said
    call(argv, folder).check(0)
    undisturbed.check_same(RUN, folder / "runs")
    return {"stopped": status != 0}


def _compete(undisturbed: Undisturbed, folder: Path, _: random.Random) -> Facts:
    """Start two processes on one folder: one of them runs, the other is rejected and changes nothing."""
    places = [folder / "1", folder / "2"]
    with contextlib.ExitStack() as stack:
        processes = []
        for place in places:
            place.mkdir()
            processes.append(stack.enter_context(started(RUN.argv(folder / "runs"), place)))
        statuses = [process.wait() for process in processes]
    assert 0 in statuses, f"one must have finished, got {statuses}"
    for place, status in zip(places, statuses, strict=True):
        rejected = status == 2 and any(reason in text(place / "err") for reason in BUSY)
        assert status == 0 or rejected, f"status {status}: {text(place / 'err')}"
    undisturbed.check_same(RUN, folder / "runs")
    return {"rejected": statuses.count(2)}


class _Victim:
    """A command that is killed repeatedly."""

    def __init__(self, command: Command, undisturbed: Undisturbed, folder: Path, rng: random.Random) -> None:
        self.kills = self.worker_kills = 0
        self._command, self._undisturbed, self._folder, self._rng = command, undisturbed, folder, rng
        self._lifetime_s, self._out, self._orphans = undisturbed.seconds(command), folder / "runs", list[_Process]()

    def kill(self, share: float) -> None:
        """Start the command and kill it after a share of its duration.

        If it ends before that, check its results and try again in a new folder with a smaller share.
        """
        while True:
            with started(self._command.argv(self._out), self._folder) as process:
                try:
                    process.wait(share * self._lifetime_s)
                except subprocess.TimeoutExpired:
                    self._strike(process)
                    return
            if process.returncode and self._is_busy():
                self._await_orphans()
                continue
            assert process.returncode == 0, text(self._folder / "err")
            self._undisturbed.check_same(self._command, self._out)
            self._out = self._out.with_name(f"{self._out.name}-again")
            share *= 0.7

    def _is_busy(self) -> bool:
        return any(BUSY[0] in text(self._folder / name) for name in ("out", "err"))

    def finish(self) -> None:
        """Run the command to its end, and compare the results with the undisturbed ones."""
        self._await_orphans()
        call(self._command.argv(self._out), self._folder).check(0)
        self._undisturbed.check_same(self._command, self._out)

    def _strike(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the process alone, with all its descendants, or some time after one of its workers."""
        descendants = _descendants(process.pid)
        workers = [one for one in descendants if one.is_worker]
        target = self._rng.choice(["main", "all", "worker"] if workers else ["main"])
        if target == "worker":
            os.kill(self._rng.choice(workers).pid, signal.SIGKILL)
            self.worker_kills += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._rng.random() * self._lifetime_s)  # a sweep continues without it
        for one in descendants if target == "all" else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        self.kills += 1
        self._orphans += descendants
        if self._rng.random() < 0.5:
            self._await_orphans()

    def _await_orphans(self, limit_s: float = 30.0) -> None:
        """Check that the descendants of killed processes end by themselves."""
        until = time.monotonic() + limit_s
        while left := [one.pid for one in self._orphans if one.alive]:
            assert time.monotonic() < until, f"{left} must end when the process that started them is gone"
            time.sleep(0.05)


@dataclass(frozen=True)
class _Process:
    """A process, identified by its PID and start time because PIDs are reused."""

    pid: int
    start: str

    @property
    def alive(self) -> bool:
        return _start_of(self.pid) == self.start

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker process of multiprocessing."""
        try:
            return b"spawn_main" in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False


def _descendants(pid: int) -> list[_Process]:
    try:
        tasks = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for words in tasks for child in words]
    return [
        process
        for child in children
        if (start := _start_of(child))
        for process in (_Process(child, start), *_descendants(child))
    ]


def _start_of(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
