"""Builds a simulation with real training from settings."""

from functools import lru_cache
from pathlib import Path

from lesson.clock.faults import CorruptedUploads
from lesson.clock.loop import RoundLoop
from lesson.clock.simulate import Simulation
from lesson.core.errors import InputError
from lesson.fleet.fleet import fleet_of
from lesson.fleet.population import Population, draw_population
from lesson.learn.backend import Backend, on_device
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
) -> tuple[RoundLoop, Learner]:
    """Return the simulation of a run and its learner; `dataset` and `model` replace those that the settings name."""
    settings = on_device(settings)
    data = dataset or dataset_of(settings.data.dataset, data_dir)
    if model is None and data.name not in FACTORIES:
        raise InputError(f"model must be given for the data set '{data.name}'")
    seed = settings.run.seed
    strategy = strategy_of(settings)
    people = draw_population(settings)
    task = task_of(settings, data, model, people)
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
    fleet = fleet_of(settings, people, task.holdings.num_samples)
    fleet = fleet_for(settings.strategy.name, fleet, settings.strategy.deadline_s)
    return Simulation(strategy, fleet, model_server=learner, seed=seed, settings=settings), learner


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
