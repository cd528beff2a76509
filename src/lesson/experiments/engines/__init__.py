"""Engines that execute many runs: this process, several processes on this machine, or Ray."""

import math
import time
from pathlib import Path

from lesson.core.cores import num_cores
from lesson.core.errors import ArgumentError, unknown
from lesson.experiments.engines.in_process import InProcessEngine
from lesson.experiments.engines.local import LocalEngine
from lesson.experiments.engines.ray import RayEngine
from lesson.experiments.engines.trial import Engine, Line
from lesson.learn.task import Task


def make_engine(
    name: str = "local",
    *,
    num_processes: int | None = None,
    data_dir: Path | str | None = None,
    task: Task | None = None,
    seconds: float = math.inf,
    address: str | None = None,
    cpus_per_trial: int = 1,
    gpus_per_trial: float = 0.0,
    num_lanes: int | None = None,
) -> Engine:
    """Return an engine that executes runs in processes on this machine ("local") or on Ray ("ray").

    Args:
        name: "local" or "ray".
        num_processes: Number of processes on this machine, by default one per core. With 1, runs are executed in this
            process.
        data_dir: Folder for data sets; by default, LESSON_DATA_DIR or a folder in the user's cache.
        task: Your own task, which replaces the one in the settings.
        seconds: Real time after which runs are interrupted, with a checkpoint; only on this machine.
        address: Address of a Ray cluster; by default, Ray is started on this machine.
        cpus_per_trial: CPUs per run.
        gpus_per_trial: GPUs per run on Ray, such as 0.25.
        num_lanes: Number of runs that each GPU of this machine trains at a time; by default, two per core, at most 32,
            and fewer if its memory does not suffice.

    Raises:
        InputError: An argument is invalid.

    """
    if name not in ("local", "ray"):
        raise unknown("engine", name, ["local", "ray"])
    if not 0 <= gpus_per_trial < math.inf:
        raise ArgumentError("gpus_per_trial", f"must be >= 0, got {gpus_per_trial}")
    if not seconds >= 0:
        raise ArgumentError("seconds", f"must be >= 0, got {seconds:g}")
    counts = {"cpus_per_trial": cpus_per_trial, "num_processes": num_processes, "num_lanes": num_lanes}
    for argument, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise ArgumentError(argument, f"must be a whole number >= 1, got {count!r}")
    if name == "ray":
        if seconds < math.inf or num_lanes is not None:
            what = "lanes" if num_lanes is not None else "a time limit"
            raise ArgumentError("engine", f"must be local for {what}, got ray")
        return RayEngine(address, cpus_per_trial, gpus_per_trial, data_dir, task=task)
    if address is not None or gpus_per_trial:
        raise ArgumentError("address" if address is not None else "gpus_per_trial", "requires the engine ray")
    num_processes = num_processes or max(1, num_cores() // cpus_per_trial)
    if num_processes == 1 and math.isinf(seconds) and num_lanes is None:
        return InProcessEngine(data_dir, task)
    return LocalEngine(num_processes, data_dir, time.monotonic() + seconds, task, num_lanes)


__all__ = ["Engine", "InProcessEngine", "Line", "LocalEngine", "RayEngine", "make_engine"]
