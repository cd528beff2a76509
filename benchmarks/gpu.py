"""Measure the speed of training on a GPU: rounds per second, local steps of many clients, and several runs at once.

All runs use LESSON with the preset `released` (50 clients, τ = 20 s, one step of 20 samples); times are medians.
"""

import argparse
import multiprocessing
import os
import platform
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson import InputError, Lesson, Settings, draw_fleet, make_loop
from lesson.learn import models
from lesson.learn.backend import Backend, Trainer
from lesson.learn.build import TrainingRun
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Graph, Precision, arithmetic
from lesson.learn.data import Samples, load_samples
from lesson.learn.evaluation import Evaluator
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Due, Pipeline
from lesson.learn.process import configure_process
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.tasks import BUILT_IN, image_task
from lesson.learn.workload import Workload, make_workload

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS_PER_EVALUATION = 25  # every 500 s


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    num_clients: int
    precisions: tuple[Precision, ...]
    num_train: int
    num_test: int
    warm_up: int
    """Rounds before the measured ones, in which CUDA graphs are recorded."""
    rounds: int
    repeats: int
    steps: int
    launches: int
    num_seeds: int
    together: tuple[str, ...]
    """Data sets on which several seeds are run at once."""


NAMES = ("mnist", "cifar10")
FULL = Size(50, ("tf32", "float32", "bfloat16"), 60_000, 10_000, 24, 300, 7, 20, 50, 5, NAMES)
QUICK = Size(12, ("tf32",) if DEVICE == "cuda" else ("float32",), 1_000, 100, 3, 2, 1, 1, 2, 2, ("mnist",))


def load_or_draw(name: str, size: Size) -> Samples:
    """Return the first samples of a data set, or noise in the shape of CIFAR-10 if it is not installed."""
    try:
        whole = load_samples(name)
    except InputError:
        rng = np.random.default_rng(0)
        num_train = min(size.num_train, 50_000)
        images = rng.integers(0, 256, (num_train + size.num_test, 3, 32, 32), dtype=np.uint8)
        labels = rng.integers(0, 10, len(images))
        return Samples(images[:num_train], labels[:num_train], images[num_train:], labels[num_train:])
    train, test = slice(size.num_train), slice(size.num_test)
    return Samples(
        whole.train_inputs[train], whole.train_targets[train], whole.test_inputs[test], whole.test_targets[test]
    )


def workload_of(name: str, size: Size, seed: int = 0) -> Workload:
    """Return the workload of the preset `released` on a data set."""
    task = image_task(name, load_or_draw(name, size), BUILT_IN[name].network)
    return make_workload(Settings(num_clients=size.num_clients, seed=seed, device=DEVICE), task)


def synchronize() -> None:
    """Wait until the GPU is idle."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed_s(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds until a call has finished on the device."""
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def make_backend(workload: Workload, precision: Precision) -> Backend:
    """Return the backend for the device of this benchmark."""
    return CudaBackend(workload, precision) if DEVICE == "cuda" else CpuBackend(workload)


def make_run(workload: Workload, precision: Precision, size: Size) -> TrainingRun:
    """Return a run after the rounds in which CUDA graphs are recorded."""
    settings, backend = Settings(), make_backend(workload, precision)
    lane = Lane(workload.initial_vector(), settings.training, ServerOptimizer(settings.server), settings.guards)
    evaluator = Evaluator(workload, backend)
    executor = Executor(SimulatedClients(workload, backend), evaluator, backend.rule)
    fleet = draw_fleet(settings, size.num_clients, seed=workload.seed).at_deadline(20.0)
    run = TrainingRun(Pipeline(make_loop(Lesson(20.0), fleet), lane, executor), evaluator, fleet)
    go(run, size.warm_up, evaluate=False)
    run.final_score()
    return run


def go(run: TrainingRun, rounds: int, evaluate: bool) -> None:
    """Run rounds, with or without evaluation at the default interval."""
    for number in range(rounds):
        due = Due(score=evaluate and number % ROUNDS_PER_EVALUATION == 0)
        run.pipeline.step(due=lambda *_, due=due: due)
    run.pipeline.submit()


def rounds_table(size: Size) -> None:
    """Print rounds per second, and the cost of evaluation."""
    print("| LESSON | rounds/s | ms per round | with evaluation | one evaluation (ms) | start-up (s) |")
    print("|---|---|---|---|---|---|")
    for name in NAMES:
        workload = workload_of(name, size)
        for precision in size.precisions:
            rounds_row(name, workload, precision, size)


def rounds_row(name: str, workload: Workload, precision: Precision, size: Size) -> None:
    """Measure and print one row of the table."""
    begin = time.perf_counter()
    run = make_run(workload, precision, size)
    begin_s = time.perf_counter() - begin

    def rounds_s(evaluate: bool) -> float:
        return timed_s(lambda: go(run, size.rounds, evaluate))

    pairs = [(rounds_s(evaluate=False), rounds_s(evaluate=True)) for _ in range(size.repeats)]
    round_s = statistics.median(plain for plain, _ in pairs) / size.rounds
    added = statistics.median(scored / plain for plain, scored in pairs) - 1
    score_s = statistics.median(timed_s(lambda: run.final_score()) for _ in range(size.repeats))
    print(
        f"| {name}, {precision} | {1 / round_s:,.0f} | {1000 * round_s:.2f} | {added:+.1%} | "
        f"{1000 * score_s:.2f} | {begin_s:.1f} |",
        flush=True,
    )
    run.pipeline.close()


def everybody(workload: Workload, num_clients: int, steps: int) -> Cohort:
    """Return one local training of each client."""
    zeros = np.zeros(num_clients, dtype=np.int64)
    return Cohort(
        workload.initial_vector(),
        client=np.arange(num_clients),
        index=zeros,
        lr=np.full(num_clients, 0.1),
        local_steps=zeros + steps,
        weight=np.full(num_clients, 1 / num_clients),
        first=zeros,
        level=np.full(len(zeros), np.nan),
    )


def plain_conv_pool_relu(layer: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """Apply a convolution, pooling and ReLU with PyTorch's own operators."""
    return functional.relu(functional.max_pool2d(layer(images), 2))


def bare_step(workload: Workload, num_clients: int) -> Callable[[], None]:
    """Return a function that trains all clients for one step with vmap and PyTorch's own layers on fixed minibatches.

    On a GPU it replays a recorded CUDA graph.
    """
    model = workload.task.model().to(DEVICE)
    parameters = {
        name: value.detach().repeat(num_clients, *[1] * value.dim()) for name, value in model.named_parameters()
    }
    shape = (num_clients, workload.batch_size)
    samples = torch.arange(num_clients * workload.batch_size, device=DEVICE)
    images, labels = (part.unflatten(0, shape) for part in workload.samples(samples))

    def loss(own: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, own, (images,)), labels)

    def step() -> None:
        for name, gradient in vmap(grad(loss))(parameters, images, labels).items():
            parameters[name].add_(gradient, alpha=-0.1)

    if DEVICE == "cpu":
        return step
    own, models.conv_pool_relu = models.conv_pool_relu, plain_conv_pool_relu
    try:
        return Graph(step, "tf32").replay
    finally:
        models.conv_pool_relu = own


def make_batched(workload: Workload) -> Trainer:
    """Return the batched trainer, or on the CPU the reference trainer, which starts no processes."""
    return make_backend(workload, "tf32").trainer("batched" if DEVICE == "cuda" else "reference")


def steps_table(size: Size) -> None:
    """Print the time of a local step of clients that each have their own parameters."""
    who = f"a step of {size.num_clients} clients with separate parameters"
    print(f"\n| {who} | bare vmapped graph (ms) | batched (ms) | ratio |")
    print("|---|---|---|---|")
    for name in NAMES:
        steps_row(name, workload_of(name, size), size)


def steps_row(name: str, workload: Workload, size: Size) -> None:
    """Measure and print one row of the table."""
    steps, bare, trainer = size.steps, bare_step(workload, size.num_clients), make_batched(workload)
    cohorts = [everybody(workload, size.num_clients, steps)]
    trainer.sums(cohorts)
    pairs = [
        (timed_s(lambda: [bare() for _ in range(steps)]), timed_s(lambda: trainer.sums(cohorts)))
        for _ in range(size.repeats)
    ]
    theirs, ours = (1000 * statistics.median(column) / steps for column in zip(*pairs, strict=True))
    ratio = statistics.median(our / their for their, our in pairs)
    print(f"| {name} | {theirs:.2f} | {ours:.2f} | {ratio:.2f} |", flush=True)


def profile_table(size: Size) -> None:
    """Print the time of a cohort without and with a CUDA graph, and the CPU time to launch it."""
    if DEVICE == "cpu":
        print("\nCUDA graphs need a GPU: their table is left out")
        return
    print("\n| a cohort of 11 clients | eager (ms) | as a graph (ms) | CPU to launch it (ms) |\n|---|---|---|---|")
    for name in NAMES:
        profile_row(name, workload_of(name, size), size)


def profile_row(name: str, workload: Workload, size: Size) -> None:
    """Measure and print one row of the table."""
    trainer = CudaFusedTrainer(workload, "tf32")
    cohorts = [everybody(workload, 11, 1)]
    trainer.sums(cohorts)
    *_, step = trainer._steps.values()  # the one that was used last
    with arithmetic("tf32"):
        eager = statistics.median(timed_s(step._sum) for _ in range(size.launches))

    def replay() -> None:
        for _ in range(size.launches):
            trainer.sums(cohorts)

    graph = statistics.median(timed_s(replay) for _ in range(size.repeats)) / size.launches
    launches = []
    for _ in range(size.launches):
        synchronize()
        begin = time.perf_counter()
        trainer.sums(cohorts)
        launches.append(time.perf_counter() - begin)
    print(
        f"| {name} | {1000 * eager:.2f} | {1000 * graph:.2f} | {1000 * statistics.median(launches):.3f} |", flush=True
    )


def one_of_many(name: str, seed: int, size: Size, barrier: Any, seconds: Any) -> None:
    """Run one seed in this process: seed 0 first alone, while the others wait, then all seeds at the same time."""
    configure_process()
    run = make_run(workload_of(name, size, seed), "tf32", size)

    def measure_s() -> float:
        return timed_s(lambda: go(run, 3 * size.rounds, evaluate=True))

    synchronize()
    barrier.wait()
    alone_s = measure_s() if seed == 0 else None
    barrier.wait()
    seconds.put((alone_s, measure_s()))
    run.pipeline.close()


def together_s(name: str, size: Size) -> tuple[float, float]:
    """Return the seconds of one seed alone, and those of all seeds at the same time, each in its own process."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(size.num_seeds), context.Queue()
    processes = [
        context.Process(target=one_of_many, args=(name, seed, size, barrier, seconds)) for seed in range(size.num_seeds)
    ]
    for process in processes:
        process.start()
    measured = [get_or_fail(seconds, processes) for _ in processes]
    for process in processes:
        process.join()
    (alone_s,) = [alone_s for alone_s, _ in measured if alone_s is not None]
    return alone_s, max(seconds for _, seconds in measured)


def get_or_fail(results: Any, processes: Sequence[BaseProcess]) -> Any:
    """Return the next result of processes. If one fails, terminate the others, which would wait for it, and raise."""
    while True:
        try:
            return results.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                for process in processes:
                    process.terminate()
                raise RuntimeError("one of the runs failed; its traceback is above") from None


def together_table(size: Size) -> None:
    """Print the speed of several seeds at once compared with one after the other."""
    num = size.num_seeds
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))  # NVIDIA's default
    shared = "with" if (pipe / "control").exists() else "without"
    print(f"\n| {num} seeds, {shared} MPS, evaluation included | one after the other (rounds/s) | together | ratio |")
    print("|---|---|---|---|")
    for name in size.together:
        alone_s, all_s = together_s(name, size)
        print(
            f"| {name} | {3 * size.rounds / alone_s:,.0f} | {num * 3 * size.rounds / all_s:,.0f} | "
            f"{num * alone_s / all_s:.2f} |",
            flush=True,
        )


TABLES = {"rounds": rounds_table, "steps": steps_table, "graphs": profile_table, "together": together_table}


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run a tiny case of every table, to check that it works; without a GPU, on the CPU",
    )
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), metavar="TABLE")
    chosen = parser.parse_args()
    if DEVICE == "cpu" and not chosen.quick:
        parser.exit(2, "gpu.py: a GPU is required; --quick runs what does not need one on the CPU\n")
    size = QUICK if chosen.quick else FULL
    configure_process()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU, everything runs on the CPU"
    where = f"{device}, {os.cpu_count()} cores ({platform.machine()})"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    try:
        load_samples("cifar10")
    except InputError:
        print("CIFAR-10 is not installed; noise of its shape is used instead\n")
    for name in chosen.tables:
        TABLES[name](size)


if __name__ == "__main__":
    main()
