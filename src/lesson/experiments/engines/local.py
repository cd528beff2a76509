"""Executes runs in several processes on this machine.

Each process has its own pipe, so that killing one, at any moment, does not block the others. Runs on a GPU are lanes: a
process like those on a CPU executes their clock and writes their files, and one process per GPU trains all of them.
"""

import contextlib
import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from lesson.core.cores import num_cores
from lesson.core.errors import InputError, LackOfMemoryError, RunStoppedError
from lesson.core.interrupts import STOP_SIGNALS
from lesson.experiments.engines.gpu import GpuProcesses, build_in_lane
from lesson.experiments.engines.trial import (
    FORESEEN,
    MAX_RESTARTS,
    Hear,
    Line,
    copied,
    execute_trial,
    failed,
    killed,
    restored,
)
from lesson.learn.device import device_of
from lesson.learn.lanes.backend import NoLaneError
from lesson.learn.process import configure_process, main_hidden
from lesson.learn.task import Task
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

TELL_EVERY_S = 0.2
MAX_LANES = 32
END_S = 60.0
MAX_WAIT_S = 3600.0  # poll() accepts at most 2³¹ ms; the loop waits again
NO_LANE = (NoLaneError.__name__, LackOfMemoryError.__name__)
"""Errors after which a run is executed on its own: it cannot be a lane, or the vectors of a lane do not fit."""
ENDED: Line = {"ended": True}


@dataclass(frozen=True)
class LocalEngine:
    """Shares the cores of this machine among processes; a killed process is replaced and its run resumed."""

    num_processes: int = field(default_factory=num_cores)
    data_dir: Path | str | None = None
    stop_at_s: float = math.inf
    """Time by time.monotonic() after which no run starts and current runs are interrupted, with a checkpoint."""
    task: Task | None = None
    """Your own task, which replaces the one in the settings."""
    num_lanes: int | None = None
    """Number of runs that each GPU trains at a time; by default, two per core, but at most MAX_LANES."""
    lanes_on_cpu: bool = False
    """Whether runs on the CPU are lanes, too. This is slow, but needs no GPU."""

    @property
    def left_s(self) -> float:
        """Seconds until `stop_at_s`."""
        return self.stop_at_s - time.monotonic()

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        """Execute the runs, see `Engine`; raise InputError right away if a device is missing."""
        workers = _Workers(self, plan, trackers)
        try:
            workers.follow(hear)
        finally:
            workers.close()


class _Workers:
    """The worker processes, and the runs that have not started."""

    def __init__(self, engine: LocalEngine, plan: Mapping[Path, Settings], trackers: Sequence[Tracker]) -> None:
        for settings in plan.values():
            if settings.strategy.name.startswith("__main__:"):
                remedy = "define it in a module, or use a single process"
                raise InputError(f"strategy {settings.strategy.name} cannot be imported by other processes; {remedy}")
        self._waiting = deque(plan.items())
        self._alone = deque[tuple[Path, Settings]]()
        """Runs on a GPU that cannot be lanes; they are executed one at a time when all others have ended."""
        content = copied(trackers, engine.task, cloudpickle.dumps)
        on_gpu = any(device_of(settings.run)[0] == "cuda" for settings in plan.values())
        self._gpus: GpuProcesses | None = None
        num_processes = engine.num_processes
        if on_gpu or engine.lanes_on_cpu:
            num_lanes = engine.num_lanes or min(MAX_LANES, 2 * num_cores())
            self._gpus = GpuProcesses("cuda" if on_gpu else "cpu", num_lanes, content, engine.data_dir)
            num_processes = num_lanes * len(self._gpus.addresses)
        self._size = min(num_processes, len(plan))
        num_threads = max(1, num_cores() // self._size)
        self._engine, self._how = engine, (engine.data_dir, num_threads, content)
        self._restarts = Counter[Path]()
        self._busy: dict[Connection, _Worker] = {}
        self._dismissed: list[_Worker] = []

    def follow(self, hear: Hear) -> None:
        """Pass on events of the runs until all have ended or the time limit is reached."""
        self._begin()
        while self._busy and (left_s := self._engine.left_s) > 0:
            for pipe in wait(list(self._busy), min(left_s, MAX_WAIT_S)):
                worker = self._busy[pipe]  # type: ignore[index]  # wait() returns keys of `_busy`
                path, line = worker.path, worker.receive()
                if line is ENDED:
                    line = self._lost(worker)
                elif line.get("kind") == LackOfMemoryError.__name__ and worker.had_company:
                    line = self._postpone(worker)
                elif worker.address is not None and line.get("kind") in NO_LANE:
                    self._alone.append((path, worker.settings))
                    del self._busy[worker.pipe]
                    self._begin(worker)
                    line = {"alone": line["error"]}
                elif "done" in line or "error" in line:
                    del self._busy[worker.pipe]
                    if line.get("kind") in (None, *FORESEEN):
                        self._begin(worker)
                    else:  # its process may be in any state
                        self._dismiss(worker)
                        self._begin()
                hear(path, line)
            if not self._busy and self._alone:
                self._close_gpus()
                self._waiting, self._alone, self._size = self._alone, deque(), 1
                self._begin()

    def close(self) -> None:
        """Interrupt all runs, which write a checkpoint, and end the processes."""
        # A second Ctrl-C must not leave processes running.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for worker in self._busy.values():
                worker.interrupt()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            for worker in [*self._busy.values(), *self._dismissed]:
                worker.process.join(END_S)
                worker.process.kill()
                worker.process.join()
        finally:
            self._close_gpus()

    def _close_gpus(self) -> None:
        if self._gpus is not None:
            self._gpus.close()
            self._gpus = None

    def _begin(self, free: "_Worker | None" = None) -> None:
        """Start as many of the waiting runs as there is room and time for, the first one in a process that is free."""
        while self._waiting and len(self._busy) < self._size and self._engine.left_s > 0:
            if free is None:
                free = _Worker(*self._how, self._address())
            worker, free = free, None
            self._busy[worker.pipe] = worker
            worker.had_company = any(one.process.is_alive() for one in self._dismissed)
            for one in self._busy.values() if len(self._busy) > 1 else ():
                one.had_company = True
            worker.give(*self._waiting.popleft())
        if free is not None:
            self._dismiss(free)

    def _address(self) -> str | None:
        """Return the address of the GPU process with the fewest runs; None if there is none."""
        if self._gpus is None:
            return None
        num_runs = Counter(worker.address for worker in self._busy.values())
        return min(self._gpus.addresses, key=num_runs.__getitem__)

    def _dismiss(self, worker: "_Worker") -> None:
        """Let a process that executes no run exit."""
        worker.pipe.close()
        self._dismissed.append(worker)

    def _postpone(self, worker: "_Worker") -> Line:
        """End a worker that has run out of memory; its run waits until another one has ended, and fewer run at once.

        If no other run is left, it starts again at once, when the memory of ended processes has been freed.
        """
        del self._busy[worker.pipe]
        self._dismiss(worker)
        self._waiting.append((worker.path, worker.settings))
        self._size = max(1, self._size - 1)
        for one in self._dismissed if not self._busy else ():
            one.process.join(END_S)
        self._begin()
        return {"postponed": True}

    def _lost(self, worker: "_Worker") -> Line:
        """Return the event for a run whose process has ended; a run whose process was killed starts again."""
        del self._busy[worker.pipe]
        worker.process.join()
        status, path = worker.process.exitcode or 0, worker.path
        self._restarts[path] += 1
        is_killed, times = status < 0, self._restarts[path]
        if again := is_killed and times <= MAX_RESTARTS:
            self._waiting.appendleft((path, worker.settings))
        self._begin()
        if not is_killed:
            return {"error": f"its process ended with status {status}", "kind": RunStoppedError.__name__}
        return {"killed": times} if again else killed(times, f"signal {-status}")


class _Worker:
    """A process that executes one run at a time, and its current run."""

    path: Path
    settings: Settings
    had_company: bool
    """Whether other processes may have used memory during the current run."""

    def __init__(self, data_dir: Path | str | None, num_threads: int, content: bytes, address: str | None) -> None:
        context: Any = get_context("spawn" if address is None else "forkserver")
        if address is not None:
            context.set_forkserver_preload([__name__])  # imported once, as lanes are many
        self.address = address
        self.pipe, theirs = context.Pipe()
        how = data_dir, num_threads, content, address, dict(os.environ)
        self.process = context.Process(target=_work, args=(theirs, *how))
        resource_tracker.ensure_running()  # otherwise the first process starts it, which undoes the next line
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: the child delays Ctrl-C
        try:
            with main_hidden():
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def give(self, path: Path, settings: Settings) -> None:
        """Send a run to the process; if the process was just killed, `receive` returns ENDED."""
        self.path, self.settings = path, settings
        with contextlib.suppress(OSError):
            self.pipe.send((path, settings))

    def receive(self) -> Line:
        """Return the next line of the run; ENDED if the process has ended."""
        try:
            line: Line = self.pipe.recv()
        except (EOFError, OSError):
            return ENDED
        return line

    def interrupt(self) -> None:
        """Interrupt the run, which writes a checkpoint."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)
        self.pipe.close()


def _work(
    pipe: Connection,
    data_dir: Path | str | None,
    num_threads: int,
    content: bytes,
    address: str | None,
    environment: dict[str, str],
) -> None:
    """Execute runs from the pipe and send their lines, until the pipe is closed or the parent process has ended.

    `content` is what `copied` returned; an error in unpickling it is reported as a run's error. If there is an
    `address`, the process there trains the runs. `environment` has the variables of the parent process, because those
    of a fork server are older.
    """
    os.environ.update(environment)
    os.setsid()  # Ctrl-C reaches the parent process, which passes it on
    configure_process()
    told, own, parent = 0.0, None, os.getppid()

    def tell(line: Line) -> None:
        nonlocal told
        if os.getppid() != parent:
            os._exit(1)
        if "loss" in line or time.perf_counter() - told > TELL_EVERY_S:
            told = time.perf_counter()
            with contextlib.suppress(OSError):
                pipe.send(line)

    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while True:
            path, settings = pipe.recv()
            if own is None:
                try:
                    own = restored(content)
                except InputError as error:
                    pipe.send(failed(error))
                    continue
            parts: dict[str, Any] = {"data_dir": data_dir, "num_threads": num_threads, "task": own[1]}
            parts |= {} if address is None else {"make": partial(build_in_lane, address)}
            pipe.send(execute_trial(path, settings, progress=tell, trackers=own[0], **parts))
