"""Engines that execute many runs: this process, several processes on this machine, or Ray."""

import math
import os
import time
from pathlib import Path

from lesson.core.errors import InputError, unknown
from lesson.experiments.engines.in_process import InProcessEngine
from lesson.experiments.engines.local import LocalEngine
from lesson.experiments.engines.ray import RayEngine
from lesson.experiments.engines.trial import Engine, Line
from lesson.learn.data import Dataset
from lesson.learn.models import ModelFactory


def make_engine(  # noqa: C901
    name: str = "local",
    *,
    num_processes: int | None = None,
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
    seconds: float = math.inf,
    address: str | None = None,
    cpus_per_trial: int = 1,
    gpus_per_trial: float = 0.0,
) -> Engine:
    """Return the engine "local" (by default with all cores of this machine) or "ray"; raise InputError if invalid.

    With `num_processes=1`, runs are executed in this process, as your own data set or model requires. After `seconds`
    of real time, runs are interrupted with a checkpoint. `address` and `gpus_per_trial` are for Ray.
    """
    if name not in ("local", "ray"):
        raise unknown("engine", name, ["local", "ray"])
    if cpus_per_trial < 1:
        raise InputError(f"cpus_per_trial must be >= 1, got {cpus_per_trial}")
    if not 0 <= gpus_per_trial < math.inf:
        raise InputError(f"gpus_per_trial must be >= 0, got {gpus_per_trial}")
    if not seconds >= 0:
        raise InputError(f"seconds must be >= 0, got {seconds:g}")
    if num_processes is not None and (not isinstance(num_processes, int) or num_processes < 1):
        raise InputError(f"num_processes must be a whole number >= 1, got {num_processes!r}")
    own = dataset is not None or model is not None
    if own and seconds < math.inf:
        raise InputError("seconds must be left out with a dataset or model of your own")
    if name == "ray":
        if own or seconds < math.inf:
            raise InputError("engine must be local with seconds, or with your own dataset or model, got ray")
        return RayEngine(address, cpus_per_trial, gpus_per_trial, data_dir)
    if address is not None or gpus_per_trial:
        raise InputError("address and gpus_per_trial must only be used with engine ray")
    if own and (num_processes or 1) > 1:
        raise InputError(f"num_processes must be 1 with your own dataset or model, got {num_processes}")
    num_processes = num_processes or max(1, (os.cpu_count() or 1) // cpus_per_trial)
    if own or (num_processes == 1 and math.isinf(seconds)):
        return InProcessEngine(data_dir, dataset, model)
    return LocalEngine(num_processes, data_dir, stop_at_s=time.monotonic() + seconds)


__all__ = ["Engine", "InProcessEngine", "Line", "LocalEngine", "RayEngine", "make_engine"]
