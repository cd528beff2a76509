"""Speed of training on a GPU: rounds a second, steps of clients with their own parameters, several runs at once.

LESSON in the released scenario (50 clients, τ = 20 s, one step of 20 samples). Medians of repeats.
"""

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson import InputError, Lesson, Scenario, Simulation, draw_fleet
from lesson.engines.gpu import shared_gpu
from lesson.learn import models
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Graph, arithmetic
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.learner import Learner
from lesson.learn.process import settle_process
from lesson.learn.task import Task, Work, make_task, scaled

NAMES, CLIENTS, REPEATS, ROUNDS, SEEDS = ("mnist", "cifar10"), 50, 7, 300, 5
ROUNDS_PER_EVALUATION = 25  # every 500 s


def loaded(name: str) -> Dataset:
    """The data set, or noise of its shape where it is absent: the arithmetic is the same."""
    try:
        return load_dataset(name)
    except InputError:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60_000, 3, 32, 32), dtype=np.uint8)
        labels = rng.integers(0, 10, 60_000)
        return Dataset(name, images[:50_000], labels[:50_000], images[50_000:], labels[50_000:])


def task_of(name: str, seed: int = 0) -> Task:
    """What the released scenario learns from a data set."""
    return make_task(Scenario(), loaded(name), CLIENTS, seed, device="cuda")


def timed_s(work: Callable[[], object]) -> float:
    """Wall-clock seconds until the GPU has done some work."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def make_run(task: Task, precision: Any = "tf32") -> tuple[Simulation, Learner]:
    """A run whose graphs are recorded."""
    scenario = Scenario()
    learner = Learner(task, scenario.learning_rate, scenario.lr_cap, CudaBackend(task, precision))
    fleet = draw_fleet(scenario, CLIENTS, seed=task.seed).with_first_tier(20.0)
    simulation = Simulation(Lesson(20.0), fleet, learner=learner)
    for _ in range(24):
        simulation.step()
    learner.score(simulation.version)
    return simulation, learner


def go(simulation: Simulation, learner: Learner, evaluate: bool) -> None:
    """Some rounds, with or without evaluation on the default grid, as a run does it: nobody waits for the score."""
    for number in range(ROUNDS):
        simulation.step()
        if evaluate and number % ROUNDS_PER_EVALUATION == 0:
            learner.begin_score(simulation.version)


def rounds_table() -> None:
    """Rounds a second, and what evaluation adds."""
    print("| LESSON | rounds/s | ms a round | with evaluation | score alone (ms) | to begin (s) |")
    print("|---|---|---|---|---|---|")
    for name in NAMES:
        task = task_of(name)
        for precision in ("tf32", "float32", "bfloat16"):
            rounds_row(name, task, precision)


def rounds_row(name: str, task: Task, precision: str) -> None:
    """One line of that table."""
    begin = time.perf_counter()
    simulation, learner = make_run(task, precision)
    begin_s = time.perf_counter() - begin
    pairs = [
        (timed_s(lambda: go(simulation, learner, False)), timed_s(lambda: go(simulation, learner, True)))
        for _ in range(REPEATS)
    ]
    round_s = statistics.median(plain for plain, _ in pairs) / ROUNDS
    added = statistics.median(scored / plain for plain, scored in pairs) - 1
    score_s = statistics.median(timed_s(lambda: learner.score(simulation.version)) for _ in range(REPEATS))
    print(
        f"| {name}, {precision} | {1 / round_s:,.0f} | {1000 * round_s:.2f} | +{added:.1%} | "
        f"{1000 * score_s:.2f} | {begin_s:.1f} |",
        flush=True,
    )
    learner.close()


def everybody(steps: int) -> Work:
    """One piece of work for each of fifty clients."""
    whole = np.zeros(CLIENTS, dtype=np.int64)
    return Work(np.arange(CLIENTS), whole, np.full(CLIENTS, 0.1), whole + steps, np.full(CLIENTS, 1 / CLIENTS))


def plain_conv_pool_relu(layer: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """Torch's own layers."""
    return functional.relu(functional.max_pool2d(layer(images), 2))


def bare_step(task: Task) -> Callable[[], None]:
    """Fifty clients' vmapped step on fixed minibatches, torch's own layers, one CUDA graph: nothing is drawn."""
    model = task.factory().cuda()
    parameters = {name: value.detach().repeat(CLIENTS, *[1] * value.dim()) for name, value in model.named_parameters()}
    shape = (CLIENTS, task.batch_size)
    samples = torch.arange(CLIENTS * task.batch_size, device="cuda")
    images, labels = (
        scaled(task.train_images[samples]).unflatten(0, shape),
        task.train_labels[samples].unflatten(0, shape),
    )

    def loss(own: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, own, (images,)), labels)

    def step() -> None:
        for name, gradient in vmap(grad(loss))(parameters, images, labels).items():
            parameters[name].add_(gradient, alpha=-0.1)

    own, models.conv_pool_relu = models.conv_pool_relu, plain_conv_pool_relu
    try:
        return Graph(step, "tf32").replay
    finally:
        models.conv_pool_relu = own


def steps_table() -> None:
    """Clients with their own parameters."""
    print("\n| a step of 50 clients with their own parameters | bare vmapped graph (ms) | batched (ms) | ratio |")
    print("|---|---|---|---|")
    for name in NAMES:
        steps_row(name, task_of(name), steps=20)


def steps_row(name: str, task: Task, steps: int) -> None:
    """One line of that table."""
    bare, trainer = bare_step(task), CudaBackend(task, "tf32").trainer("batched")
    jobs = [(task.initial_vector(), everybody(steps))]
    trainer.cohorts(jobs)
    pairs = [
        (timed_s(lambda: [bare() for _ in range(steps)]), timed_s(lambda: trainer.cohorts(jobs)))
        for _ in range(REPEATS)
    ]
    theirs, ours = (1000 * statistics.median(column) / steps for column in zip(*pairs, strict=True))
    ratio = statistics.median(our / their for their, our in pairs)
    print(f"| {name} | {theirs:.2f} | {ours:.2f} | {ratio:.2f} |", flush=True)


def one_of_many(name: str, seed: int, begun: Any, seconds: Any) -> None:
    """One run beside others: what its rounds take while all of them go on."""
    settle_process()
    simulation, learner = make_run(task_of(name, seed))
    torch.cuda.synchronize()
    begun.wait()
    begin = time.perf_counter()
    for _ in range(3):
        go(simulation, learner, True)
    torch.cuda.synchronize()
    seconds.put(time.perf_counter() - begin)


def together_s(name: str, num: int) -> float:
    """Seconds until so many runs in processes side by side are through."""
    context = multiprocessing.get_context("spawn")
    begun, seconds = context.Barrier(num), context.Queue()
    processes = [context.Process(target=one_of_many, args=(name, seed, begun, seconds)) for seed in range(num)]
    for process in processes:
        process.start()
    longest = max(seconds.get() for _ in processes)
    for process in processes:
        process.join()
    return float(longest)


def together_table() -> None:
    """Five seeds at once against one after the other."""
    print(f"\n| {SEEDS} seeds, evaluation included | one after the other (rounds/s) | together | ratio | without MPS |")
    print("|---|---|---|---|---|")
    for name in NAMES:
        alone = 3 * ROUNDS / together_s(name, 1)
        plain = SEEDS * 3 * ROUNDS / together_s(name, SEEDS)
        with shared_gpu() as shared:
            ours = SEEDS * 3 * ROUNDS / together_s(name, SEEDS) if shared else plain
        print(f"| {name} | {alone:,.0f} | {ours:,.0f} | {ours / alone:.2f} | {plain:,.0f} |", flush=True)


def profile_table() -> None:
    """What a graph saves, and what the CPU has to do."""
    print("\n| a cohort of 11 clients | eager (ms) | as a graph (ms) | CPU to launch it (ms) |\n|---|---|---|---|")
    for name in NAMES:
        profile_row(name, task_of(name))


def profile_row(name: str, task: Task) -> None:
    """One line of that table."""
    trainer = CudaFusedTrainer(task, "tf32")
    jobs = [(task.initial_vector(), everybody(1)[:11])]
    trainer.cohorts(jobs)
    (step,) = trainer._steps.values()
    with arithmetic("tf32"):
        eager = statistics.median(timed_s(step._sum) for _ in range(20))
    graph = statistics.median(timed_s(lambda: [trainer.cohorts(jobs) for _ in range(50)]) for _ in range(REPEATS)) / 50
    launches = []
    for _ in range(50):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        trainer.cohorts(jobs)
        launches.append(time.perf_counter() - begin)
    print(
        f"| {name} | {1000 * eager:.2f} | {1000 * graph:.2f} | {1000 * statistics.median(launches):.3f} |", flush=True
    )


if __name__ == "__main__":
    settle_process()
    where = f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores ({platform.machine()})"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    try:
        load_dataset("cifar10")
    except InputError:
        print("CIFAR-10 is not here; noise of its shape instead\n")
    rounds_table()
    steps_table()
    profile_table()
    together_table()
