"""From settings to a simulation that learns."""

from functools import lru_cache
from pathlib import Path

from lesson.errors import InputError
from lesson.fleet import draw_fleet
from lesson.learn.backend import Backend, on_device
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.learner import Learner
from lesson.learn.models import FACTORIES, ModelFactory
from lesson.learn.task import Task, make_task
from lesson.settings import Settings
from lesson.simulate import Simulation
from lesson.strategies import fleet_for, make_strategy


def build(
    settings: Settings,
    *,
    data_dir: Path | None = None,
    num_threads: int | None = None,
    dataset: Dataset | None = None,
    model: ModelFactory | None = None,
) -> tuple[Simulation, Learner]:
    """The simulation of a run and what learns in it; a data set or model of one's own takes the place of the named."""
    settings = on_device(settings)
    data = dataset or _load(settings.run.dataset, data_dir)
    if model is None and data.name not in FACTORIES:
        raise InputError(f"model must be given for the data set '{data.name}'")
    scenario, seed = settings.scenario, settings.run.seed
    strategy = make_strategy(settings.strategy.name, scenario.deadline_s, settings.strategy.options)
    holding_out = "client_accuracy" in strategy.needs
    task = make_task(scenario, data, scenario.num_clients, seed, model, settings.run.device, holding_out)
    backend = _backend(task, settings, num_threads)
    rates = scenario.learning_rate, scenario.lr_cap
    learner = Learner(task, *rates, backend, settings.run.trainer, settings.server, strategy.needs)
    fleet = draw_fleet(scenario, seed=seed, num_samples=task.holdings.num_samples)
    return Simulation(strategy, fleet_for(settings.strategy.name, fleet, scenario), learner=learner, seed=seed), learner


def _backend(task: Task, settings: Settings, num_threads: int | None) -> Backend:
    """What trains on the device the task's data is on."""
    if task.device == "cpu":
        return CpuBackend(task, num_threads)
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(task, settings.run.precision)  # type: ignore[arg-type]  # `on_device` has settled it


# Runs that follow each other in one process mostly learn from the same data.
_load = lru_cache(maxsize=1)(load_dataset)
