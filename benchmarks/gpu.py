"""Measure the speed of training on a GPU: rounds per second, local steps of many clients, and many runs at once.

All runs use LESSON with the preset `released` (50 clients, τ = 20 s, one step of 20 samples); times are medians.
"""

import argparse
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson import InputError, Lesson, Settings, Task, draw_fleet, make_loop
from lesson.experiments.engines import Line, LocalEngine
from lesson.learn import models
from lesson.learn.backend import Backend, Trainer
from lesson.learn.build import TrainingRun
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Graph, Precision, arithmetic
from lesson.learn.data import Samples, load_samples
from lesson.learn.device import event
from lesson.learn.evaluation import Evaluator
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.lanes.machine import NUM_STREAMS, Machine
from lesson.learn.lanes.vectors import clients_per_row
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Due, Pipeline
from lesson.learn.process import configure_process
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.tasks import BUILT_IN, image_task
from lesson.learn.workload import Workload, make_workload
from lesson.runs.summary import read_metrics

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
    num_lanes: int
    lanes_s: tuple[float, float]
    """Simulated seconds of LESSON in a lane, on MNIST and CIFAR-10."""
    together: tuple[str, ...]
    """Data sets on which many runs are executed at once."""


NAMES = ("mnist", "cifar10")
FULL = Size(50, ("tf32", "float32", "bfloat16"), 60_000, 10_000, 24, 300, 7, 20, 50, 32, (24_000.0, 7_000.0), NAMES)
QUICK = Size(
    12, ("tf32",) if DEVICE == "cuda" else ("float32",), 1_000, 100, 3, 2, 1, 1, 2, 2, (600.0, 600.0), ("mnist",)
)


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
        most_samples=zeros + workload.batch_size,
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


def alone_images(workload: Workload, num_clients: int, size: Size) -> float:
    """Return the images per second of the graphs of lanes, replayed on all streams without anything in between."""
    machine = Machine(workload, "tf32" if DEVICE == "cuda" else "float32", 1)
    lane = machine.open(workload.holdings, workload.seed)
    packed = [machine.packed(num_clients, turn) for turn in range(NUM_STREAMS)]

    def replay() -> None:
        for _ in range(size.launches):
            begun = event(DEVICE)
            for turn, graph in enumerate(packed):
                with machine.on_stream(turn, begun):
                    graph.replay()
            machine.join(NUM_STREAMS)

    replay()
    seconds = statistics.median(timed_s(replay) for _ in range(size.repeats))
    machine.close(lane)
    machine.release()
    return size.launches * sum(graph.num_samples for graph in packed) / seconds


@dataclass
class Trials:
    """When the rounds of several runs were reported, and when the first run ended."""

    rounds: dict[Path, list[tuple[float, int]]] = field(default_factory=dict)
    ended: float = math.inf

    def hear(self, path: Path, line: Line) -> None:
        """Note an event of a run."""
        if "error" in line:
            raise RuntimeError(f"{path.name}: {line['error']}\n{line.get('traceback')}")
        if "round" in line:
            self.rounds.setdefault(path, []).append((time.perf_counter(), line["round"]))
        if "done" in line:
            self.ended = min(self.ended, time.perf_counter())

    def updates_per_s(self) -> float:
        """Return the updates per second that were reported while all runs were being executed."""
        begun = max(rounds[0][0] for rounds in self.rounds.values())
        merged = sum(num_merged(path, self._last(path, begun), self._last(path, self.ended)) for path in self.rounds)
        return merged / abs(self.ended - begun)  # negative in the quick case, whose runs do not overlap

    def _last(self, path: Path, time_s: float) -> int:
        """Return the last round of a run that had been reported by then."""
        return max((number for when, number in self.rounds[path] if when <= time_s), default=0)


def num_merged(folder: Path, after: int, until: int) -> int:
    """Return the number of updates that a run has aggregated after a round, until another one."""
    return sum(len(line["merged"]) for line in read_metrics(folder / "metrics.jsonl")[after:until])


def lanes_row(name: str, strategies: Sequence[str], size: Size, task: Task, alone: float) -> None:
    """Execute one run per lane and print one row of the table; `alone` is what the graphs reach, in images/s."""
    budget_s = size.lanes_s[name == "cifar10"] / (1 if strategies == ("lesson",) else 4)
    lanes = LocalEngine(num_lanes=size.num_lanes, task=task, lanes_on_cpu=DEVICE == "cpu")
    with tempfile.TemporaryDirectory() as folder:
        plan = {
            Path(folder) / f"{number}": Settings(
                strategy={"name": strategies[number % len(strategies)]},
                num_clients=size.num_clients,
                seed=number,
                device=DEVICE,
                time_budget_s=budget_s,
                eval_every_s=budget_s,
            )
            for number in range(size.num_lanes)
        }
        trials = Trials()
        lanes.run(plan, trials.hear)
        updates = trials.updates_per_s()
    images = updates * Settings().training.batch_size
    print(
        f"| {' and '.join(strategies)}, {name} | {updates:,.0f} | {images / 1e6:.2f} | {alone / 1e6:.2f} | "
        f"{images / alone:.2f} |",
        flush=True,
    )


def lanes_table(size: Size) -> None:
    """Print the speed of many runs in one process, from when the last one has begun until the first one has ended."""
    who = f"{size.num_lanes} lanes"
    print(f"\n| {who} | updates/s | million images/s | the graphs alone, million images/s | ratio |")
    print("|---|---|---|---|---|")
    for name in size.together:
        task = image_task(name, load_or_draw(name, size), BUILT_IN[name].network)
        workload = make_workload(Settings(num_clients=size.num_clients, device=DEVICE), task)
        for strategies, num_clients in ((("lesson",), clients_per_row(20)), (("fedasync", "fedbuff"), 1)):
            lanes_row(name, strategies, size, task, alone_images(workload, num_clients, size))


TABLES = {"rounds": rounds_table, "steps": steps_table, "graphs": profile_table, "lanes": lanes_table}


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
