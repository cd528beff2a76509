"""Executes runs as tasks on Ray: an existing cluster, or one on this machine for the duration of the runs.

The folders of runs must be on storage that every node sees: a run that was killed is resumed from its folder on any
node, and progress is read from the folder too, so that only a run's outcome is sent through Ray.
"""

import contextlib
import importlib.util
import json
import logging
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lesson.core.errors import ArgumentError, InputError, describe
from lesson.experiments.engines.trial import (
    MAX_RESTARTS,
    Hear,
    Line,
    copied,
    execute_trial,
    failed,
    killed,
    restored,
)
from lesson.learn.task import Task
from lesson.runs.folder import RunFolder
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings

CONNECT_S, POLL_S, END_S = 5.0, 0.5, 60.0
MAX_SUBMITTED = 1000


@dataclass(frozen=True)
class RayEngine:
    """Executes each run as a task with its share of CPUs and GPUs; a lost task is submitted again."""

    address: str | None = None
    cpus_per_trial: int = 1
    gpus_per_trial: float = 0.0
    data_dir: Path | str | None = None
    task: Task | None = None
    """Your own task, which replaces the one in the settings."""

    def run(self, plan: Mapping[Path, Settings], hear: Hear, trackers: Sequence[Tracker] = ()) -> None:
        """Execute the runs, see `Engine`.

        Raise InputError right away if Ray is not installed or does not answer, and for device cuda without
        `gpus_per_trial`.
        """
        _check_installed()
        _check_address(self.address)
        plan = {path: self._placed(settings) for path, settings in plan.items()}
        with _connected(self.address) as ray:
            if self.address is None:  # other clusters may add nodes on demand
                self._check_share(ray.cluster_resources())
            content = ray.put(copied(trackers, self.task, ray.cloudpickle.dumps))
            share: dict[str, Any] = {"num_cpus": self.cpus_per_trial, "num_gpus": self.gpus_per_trial}
            # Ray's own retries have no limit where memory runs out.
            task = ray.remote(max_retries=0, **share)(_execute)
            waiting, restarts, going = deque(plan), Counter[Path](), dict[Any, _Tail]()
            try:
                while waiting or going:
                    while waiting and len(going) < MAX_SUBMITTED:
                        path = waiting.popleft()
                        data_dir = self.data_dir and Path(self.data_dir).resolve()
                        how = (data_dir, self.cpus_per_trial, content)
                        going[task.remote(path.resolve(), plan[path], *how)] = _Tail(path)
                    ended, _ = ray.wait(list(going), num_returns=len(going), timeout=POLL_S)
                    for reference in ended:
                        path = going.pop(reference).path
                        line = _outcome(ray, reference)
                        if "lost" in line:
                            restarts[path] += 1
                            again = restarts[path] <= MAX_RESTARTS
                            line = {"killed": restarts[path]} if again else killed(restarts[path], line["lost"])
                            waiting.extendleft([path] if again else [])
                        hear(path, line)
                    for path, line in [(tail.path, line) for tail in going.values() for line in tail.news()]:
                        hear(path, line)
            except BaseException:
                for reference in going:
                    ray.cancel(reference)  # like Ctrl-C: each run writes a checkpoint
                if going:
                    ray.wait(list(going), num_returns=len(going), timeout=END_S)
                raise

    def _placed(self, settings: Settings) -> Settings:
        """Return the settings, with device cpu if runs get no GPU: not all versions of Ray hide GPUs from them."""
        if self.gpus_per_trial or settings.run.device == "cpu":
            return settings
        if settings.run.device == "cuda":
            raise ArgumentError("gpus_per_trial", "must be > 0 for device cuda, got 0")
        return settings.model_copy(update={"run": settings.run.model_copy(update={"device": "cpu"})})

    def _check_share(self, there: Mapping[str, float]) -> None:
        """Raise InputError if no run could ever start."""
        for name, kind, share in (
            ("cpus_per_trial", "CPU", self.cpus_per_trial),
            ("gpus_per_trial", "GPU", self.gpus_per_trial),
        ):
            if share and not there.get(kind, 0):
                raise ArgumentError(name, f"cannot be used here, got {share:g}: Ray finds no {kind}")
            if share > there.get(kind, 0):
                most = f"{there.get(kind, 0):g}"
                raise ArgumentError(name, f"must be <= {most}, the number that Ray finds here, got {share:g}")


def _execute(path: Path, settings: Settings, data_dir: Path | str | None, num_threads: int, content: bytes) -> Line:
    """Execute a run as a Ray task; return its last line. `content` is what `copied` returned."""
    try:
        trackers, task = restored(content)
    except InputError as error:
        return failed(error)
    parts = {"data_dir": data_dir, "num_threads": num_threads, "task": task}
    return execute_trial(path, settings, progress=None, trackers=trackers, **parts)


def _outcome(ray: ModuleType, reference: Any) -> Line:
    """Return the last line of a run, or {"lost": reason} if its process or node was lost."""
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    try:
        line: Line = ray.get(reference)
    except lost as error:
        return {"lost": f"Ray reports {type(error).__name__}"}
    except ray.exceptions.RayError as error:
        return {"error": describe(error), "kind": type(error).__name__}
    return line


class _Tail:
    """Follows the metrics file of a run on another node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = RunFolder(path).metrics
        self._read = 0

    def news(self) -> list[Line]:
        """Return the newest line since the last call, and before it the newest earlier line with a score."""
        try:
            with self._metrics.open("rb") as file:
                self._read = min(self._read, os.fstat(file.fileno()).st_size)  # a resumed run truncates the file
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            lines = [json.loads(line) for line in whole.splitlines()]
        except (OSError, ValueError):  # not there yet, or the storage shows an incomplete write
            return []
        self._read += len(whole) + bool(whole)
        return [line for line in lines[:-1] if "loss" in line][-1:] + lines[-1:]


def _check_installed() -> None:
    """Raise InputError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise InputError("Ray is not installed; run pip install 'lesson-fl[ray]', or '.[ray]' in a clone")


def _check_address(address: str | None) -> None:
    """Raise InputError unless the address accepts connections: Ray itself would retry for minutes."""
    if address in (None, "auto"):
        return
    assert address is not None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # Ray Client, ray://…, is not supported
        raise ArgumentError("address", f"must be HOST:PORT of a cluster's head node, or auto, got '{address}'")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        problem = f"'{address}' does not answer: {error}; 'ray status' shows the right one"
        raise ArgumentError("address", problem) from None


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[ModuleType]:
    """Connect to Ray, silence its messages, and yield the library; without an address, start a local cluster.

    The local cluster ends with the context. A process that is already connected keeps its connection.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning about the future default
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # Ray prints at length when a worker is killed
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _signals_kept():
        if address is None:
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ArgumentError("address", f"'{address}' cannot be used: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler on exit: Ray replaces it with one that exits without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
