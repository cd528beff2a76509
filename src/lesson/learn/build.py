"""Builds a run that trains models, as its settings prescribe."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lesson.clock.faults import CorruptedUploads
from lesson.clock.loop import RoundLoop
from lesson.clock.simulate import Simulation
from lesson.core.errors import InputError
from lesson.fleet.fleet import fleet_of
from lesson.fleet.population import Population, draw_population
from lesson.learn.backend import Backend
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.evaluation import Evaluator
from lesson.learn.model_server import GlobalModel, ModelServer
from lesson.learn.models import FACTORIES, ModelFactory, named_arrays
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.robust.guard import MergeGuard
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.task import Task, make_task
from lesson.settings.settings import Settings
from lesson.strategies import Strategy, fleet_for, make_strategy


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A run that trains models: its round loop, model server and evaluator."""

    loop: RoundLoop
    server: ModelServer
    evaluator: Evaluator
    on_wall_clock: bool = False
    """Whether its times are measured on real clients, rather than simulated."""

    @property
    def model(self) -> GlobalModel:
        """The newest version of the global model."""
        return self.server.model(self.loop.version)

    def parameters(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the parameters of the newest version by name, in the model's own shapes."""
        return named_arrays(self.evaluator.task.factory, self.model.vector)

    def close(self) -> None:
        """Release all threads, processes and GPU memory."""
        self.server.close()
        self.evaluator.close()


def build(
    settings: Settings,
    *,
    data_dir: Path | str | None = None,
    num_threads: int | None = None,
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
) -> TrainingRun:
    """Return a run on the device of the settings, which `on_device` has resolved.

    `dataset` and `model` replace those that the settings name.
    """
    data = dataset or dataset_of(settings.data.dataset, data_dir)
    if model is None and data.name not in FACTORIES:
        raise InputError(f"model must be given for the data set '{data.name}'")
    seed = settings.run.seed
    strategy = strategy_of(settings)
    people = draw_population(settings)
    task = task_of(settings, data, model, people)
    backend = _backend(task, settings, num_threads)
    evaluator = Evaluator(task, backend)
    faults = CorruptedUploads.of(settings.faults, settings.fleet.num_clients, seed)
    server = ModelServer(
        task.initial_vector(),
        SimulatedClients(task, backend, settings.run.trainer, faults),
        settings.training,
        ServerOptimizer(settings.server),
        MergeGuard(settings.guards),
        needs=strategy.needs,
        signals=evaluator.signals(),
    )
    fleet = fleet_of(settings, people, task.holdings.num_samples)
    fleet = fleet_for(settings.strategy.name, fleet, settings.strategy.deadline_s)
    loop = Simulation(strategy, fleet, model_server=server, seed=seed, settings=settings)
    return TrainingRun(loop, server, evaluator)


def strategy_of(settings: Settings) -> Strategy:
    """Return the strategy of a run."""
    return make_strategy(settings.strategy.name, settings.strategy.deadline_s, settings.strategy.options)


def task_of(
    settings: Settings, data: Dataset, model: ModelFactory | None = None, people: Population | None = None
) -> Task:
    """Return the task of a run; clients hold out samples if the strategy needs their accuracy.

    `people` is the population of the run, if it has been drawn already.
    """
    limits, num_clients = settings.run, settings.fleet.num_clients
    holding_out = "client_accuracy" in strategy_of(settings).needs
    num_samples = None if people is None else people.num_samples
    return make_task(settings, data, num_clients, limits.seed, model, limits.device, holding_out, num_samples)


def _backend(task: Task, settings: Settings, num_threads: int | None) -> Backend:
    """Return the backend of the device that holds the task's data."""
    if task.device == "cpu":
        return CpuBackend(task, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(task, settings.run.precision)  # type: ignore[arg-type]  # resolved by `on_device`


# Consecutive runs in one process mostly use the same data set.
dataset_of = lru_cache(maxsize=1)(load_dataset)
