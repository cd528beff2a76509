"""Builds a simulation with real training from settings."""

from functools import lru_cache
from pathlib import Path

from lesson.clock.faults import CorruptedUploads, Disconnections
from lesson.clock.simulate import Simulation
from lesson.core.errors import InputError
from lesson.fleet.fleet import draw_fleet
from lesson.learn.backend import Backend
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.learner import Learner
from lesson.learn.models import FACTORIES, ModelFactory
from lesson.learn.task import Task, make_task
from lesson.settings.settings import Settings
from lesson.strategies import Strategy, fleet_for, make_strategy


def build(
    settings: Settings,
    *,
    data_dir: Path | str | None = None,
    num_threads: int | None = None,
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
) -> tuple[Simulation, Learner]:
    """Return the simulation of a run and its learner, on the device of the settings, which `on_device` has resolved.

    `dataset` and `model` replace those that the settings name.
    """
    data = dataset or dataset_of(settings.data.dataset, data_dir)
    if model is None and data.name not in FACTORIES:
        raise InputError(f"model must be given for the data set '{data.name}'")
    seed = settings.run.seed
    strategy = strategy_of(settings)
    task = task_of(settings, data, model)
    backend, rates = _backend(task, settings, num_threads), (settings.training.learning_rate, settings.training.lr_cap)
    learner = Learner(
        task,
        *rates,
        backend,
        settings.run.trainer,
        settings.server,
        strategy.needs,
        settings.guards,
        corrupted=CorruptedUploads.of(settings.faults, settings.fleet.num_clients, seed),
    )
    fleet = draw_fleet(settings, seed=seed, num_samples=task.holdings.num_samples)
    fleet = fleet_for(settings.strategy.name, fleet, settings)
    clock = Simulation(
        strategy,
        fleet,
        learner=learner,
        seed=seed,
        settings=settings,
        disconnections=Disconnections.of(settings.faults, seed),
        guards=settings.guards,
    )
    return clock, learner


def strategy_of(settings: Settings) -> Strategy:
    """Return the strategy of a run."""
    return make_strategy(settings.strategy.name, settings.strategy.deadline_s, settings.strategy.options)


def task_of(settings: Settings, data: Dataset, model: ModelFactory | None = None) -> Task:
    """Return the task of a run; clients hold out samples if the strategy needs their accuracy."""
    limits = settings.run
    holding_out = "client_accuracy" in strategy_of(settings).needs
    return make_task(settings, data, settings.fleet.num_clients, limits.seed, model, limits.device, holding_out)


def _backend(task: Task, settings: Settings, num_threads: int | None) -> Backend:
    """Return the backend of the device that holds the task's data."""
    if task.device == "cpu":
        return CpuBackend(task, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(task, settings.run.precision)  # type: ignore[arg-type]  # resolved by `on_device`


# Consecutive runs in one process mostly use the same data set.
dataset_of = lru_cache(maxsize=1)(load_dataset)
