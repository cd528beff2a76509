"""Builds a run that trains models, as its settings prescribe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from lesson.clock.records import RoundRecord
from lesson.clock.simulate import make_loop
from lesson.fleet.fleet import Fleet, find_clients, fleet_of
from lesson.learn.backend import Backend
from lesson.learn.compression import make_compressor
from lesson.learn.compression.transform import CompressUploads
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.metric import Metric
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.scores import Score
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.task import Task
from lesson.learn.workload import Workload, make_workload
from lesson.settings.settings import Settings
from lesson.strategies import fleet_for
from lesson.strategies.base import Strategy

NEEDED_ACCURACY = "client_accuracy"


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A run that trains models and evaluates them on its task."""

    pipeline: Pipeline
    evaluator: Evaluator
    fleet: Fleet
    """The clients with the server's first estimates of their times, before estimation errors."""
    on_wall_clock: ClassVar[bool] = False

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        return self.evaluator.metric

    def after_round(self, _: RoundRecord) -> Mapping[str, Any]:
        """Return no additional fields."""
        return {}

    def final_score(self) -> Score:
        """Return the score of the newest version on the test data."""
        return self.evaluator.score(self.pipeline.lane.model)

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the exchanged values of the newest version by name, in the model's own shapes."""
        lane = self.pipeline.lane
        (values,) = lane.memory.get([lane.model.vector])
        return dict(self.evaluator.workload.template.named_arrays(torch.from_numpy(values)))


def build(
    settings: Settings,
    task: Task,
    strategy: Strategy,
    num_threads: int | None = None,
    connect: Callable[[Workload, Settings], Backend] | None = None,
) -> TrainingRun:
    """Return a run of settings that `runs/resolve.py` has resolved.

    `connect` returns a backend in another process, which then has the device; here, the workload is on the CPU.
    """
    clients, device = find_clients(settings), None if connect is None else "cpu"
    workload = make_workload(settings, task, NEEDED_ACCURACY in strategy.needs, clients.num_samples, device)
    backend = _backend(workload, settings, num_threads) if connect is None else connect(workload, settings)
    evaluator = Evaluator(workload, backend)
    optimizer = ServerOptimizer.of(settings.server, strategy)
    initial = workload.initial_vector()
    if connect is not None:
        (initial,) = backend.memory.put([initial.numpy()])
    compression = _compression(workload, settings, num_threads)
    lane = Lane(initial, settings.training, optimizer, settings.guards, compression, backend.memory)
    executor = Executor(SimulatedClients(workload, backend, settings.run.trainer), evaluator, backend.rule)
    fleet = fleet_of(settings, clients, workload.holdings.num_samples)
    fleet = fleet_for(settings.strategy.name, fleet, settings.strategy.deadline_s)
    loop = make_loop(strategy, fleet, seed=settings.run.seed, settings=settings)
    return TrainingRun(Pipeline(loop, lane, executor), evaluator, fleet)


def _compression(workload: Workload, settings: Settings, num_threads: int | None) -> list[CompressUploads]:
    """Return the compression of uploads, if there is one."""
    compressor = make_compressor(settings.upload)
    if compressor is None:
        return []
    return [CompressUploads(compressor, workload.template.parameter_sizes, settings.run.seed, num_threads)]


def _backend(workload: Workload, settings: Settings, num_threads: int | None) -> Backend:
    """Return the backend of the device that holds the workload's data."""
    if workload.device == "cpu":
        return CpuBackend(workload, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(workload, settings.run.precision)  # type: ignore[arg-type]  # not "auto": it is resolved
