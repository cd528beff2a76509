"""Speed of training on a GPU: rounds a second, steps of clients with their own parameters, several runs at once."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from lesson import InputError, Lesson, Scenario, Simulation, draw_fleet
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.learner import Learner
from lesson.learn.task import Task

CLIENTS, BATCH, REPEATS = 50, 20, 7


def loaded(name: str) -> Dataset:
    """The data set, or noise of its shape where it is absent: the arithmetic is the same."""
    try:
        return load_dataset(name)
    except InputError:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60_000, 3, 32, 32), dtype=np.uint8)
        labels = rng.integers(0, 10, 60_000)
        print(f"{name} is not here; noise of its shape instead")
        return Dataset(name, images[:50_000], labels[:50_000], images[50_000:], labels[50_000:])


def timed_s(work: Callable[[], object]) -> float:
    """Wall-clock seconds until the GPU has done some work."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def make_run(task: Task, precision: str) -> tuple[Simulation, Learner]:
    """LESSON in the released scenario at τ = 20 s."""
    scenario = Scenario()
    learner = Learner(task, scenario.learning_rate, scenario.lr_cap, CudaBackend(task, precision))  # type: ignore[arg-type]
    fleet = draw_fleet(scenario, CLIENTS).with_first_tier(20.0)
    return Simulation(Lesson(20.0), fleet, learner=learner), learner


def rounds_a_second(name: str, task: Task, precision: str) -> None:
    """One row: rounds a second without evaluation, and what evaluation on the default grid adds."""
    simulation, learner = make_run(task, precision)
    begin = time.perf_counter()
    for _ in range(24):
        simulation.step()
    learner.score(simulation.version)
    warm_s = time.perf_counter() - begin
    plain = [timed_s(lambda: [simulation.step() for _ in range(300)]) / 300 for _ in range(REPEATS)]

    def with_evaluation() -> None:
        for number in range(300):
            simulation.step()
            if number % 25 == 24:
                learner.begin_score(simulation.version)

    scored = [timed_s(with_evaluation) / 300 for _ in range(REPEATS)]
    round_s, all_s = statistics.median(plain), statistics.median(scored)
    score_s = statistics.median(timed_s(lambda: learner.score(simulation.version)) for _ in range(REPEATS))
    print(
        f"| {name}, {precision} | {1 / round_s:.0f} | {1000 * round_s:.2f} | {1000 * score_s:.2f} | "
        f"{all_s / round_s - 1:.1%} | {warm_s:.1f} |"
    )
    learner.close()
