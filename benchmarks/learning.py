"""Measure the speed of training on the CPU, as medians of repeats. CIFAR-10 is left out if it is not installed."""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from lesson import InputError, Lesson, Settings, draw_fleet, make_loop
from lesson.core.cores import num_cores
from lesson.learn.batched import BatchedTrainer
from lesson.learn.cohort import Cohort
from lesson.learn.evaluation import Evaluator
from lesson.learn.fused import FusedTrainer
from lesson.learn.lane import GlobalModel
from lesson.learn.process import configure_process
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.tasks import load_task
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload, make_workload
from lesson.runs.execute import execute

CLIENTS, SETTLE_S = 50, 0.02


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    fused_repeats: dict[str, int]
    """Number of repeats by data set."""
    plain_repeats: int
    steps: int
    steps_repeats: int
    num_workers: int | None
    """Number of worker processes; None for one per core."""
    loop_rounds: int
    loop_repeats: int
    time_budget_s: float


FULL = Size({"mnist": 25, "cifar10": 9}, 3, 50, 5, None, 200, 9, 4000.0)
QUICK = Size({"mnist": 1}, 1, 2, 1, 1, 5, 1, 40.0)


def timed_s(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds of a call, after a pause in which idle threads of previous calls stop spinning."""
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def everybody(workload: Workload, steps: int) -> Cohort:
    """Return one local training of each of the fifty clients."""
    zeros = np.zeros(CLIENTS, dtype=np.int64)
    return Cohort(
        workload.initial_vector(),
        client=np.arange(CLIENTS),
        index=zeros,
        lr=np.full(CLIENTS, 0.1),
        local_steps=zeros + steps,
        weight=np.full(CLIENTS, 1 / CLIENTS),
        first=zeros,
        most_samples=zeros + workload.batch_size,
        level=np.full(len(zeros), np.nan),
    )


def bare_step(workload: Workload) -> Callable[[], None]:
    """Return a function that makes one SGD step in plain PyTorch on 1000 samples, channels last, on all cores."""
    model = workload.task.model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type hints
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = workload.samples(torch.arange(1000))

    def step() -> None:
        torch.set_num_threads(num_cores())
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        torch.set_num_threads(1)

    return step


def fused_rounds(size: Size) -> None:
    """Print the time of a fused round of 50 clients with 20 samples each, and of one plain step on as many samples."""
    print("| one step of 20 for 50 clients | bare step (s) | fused round (s) | ratio | one by one (s) |")
    print("|---|---|---|---|---|")
    for name, repeats in size.fused_repeats.items():
        try:
            workload = make_workload(Settings(num_clients=CLIENTS, device="cpu"), load_task(name))
            fused_round(name, workload, repeats, size.plain_repeats)
        except InputError:
            print(f"| {name}: not here | | | | |")


def fused_round(name: str, workload: Workload, repeats: int, plain_repeats: int) -> None:
    """Measure and print one row of the table."""
    threads, cohorts = Threads(workload.template), [everybody(workload, 1)]
    fused, step, reference = FusedTrainer(workload, threads), bare_step(workload), ReferenceTrainer(workload)
    pairs = [(timed_s(step), timed_s(lambda: fused.sums(cohorts))) for _ in range(repeats + 2)][2:]
    plain = statistics.median(timed_s(lambda: reference.sums(cohorts)) for _ in range(plain_repeats))
    ratio = statistics.median(ours / theirs for theirs, ours in pairs)
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"| {name} | {bare:.4f} | {ours:.4f} | {ratio:.2f} | {plain:.3f} |")
    threads.close()


def several_steps(size: Size) -> None:
    """Print the time of several local steps of fifty clients, with worker processes and in one process."""
    workload = make_workload(Settings(num_clients=CLIENTS, device="cpu"), load_task("mnist"))
    cohorts = [everybody(workload, size.steps)]
    workers, reference = BatchedTrainer(workload, size.num_workers), ReferenceTrainer(workload)
    workers.sums([cohorts[0][:2]])
    pairs = [
        (timed_s(lambda: reference.sums(cohorts)), timed_s(lambda: workers.sums(cohorts)))
        for _ in range(size.steps_repeats)
    ]
    workers.close()
    one, many = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"\n| {size.steps} steps for 50 clients, mnist | one process (s) | workers (s) | ratio |\n|---|---|---|---|")
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"| median of {size.steps_repeats} | {one:.2f} | {many:.2f} | {ratio:.2f} |")


def loop(size: Size) -> None:
    """Print the time that strategy, clock and records take per round of 50 clients."""
    simulation = make_loop(Lesson(20.0), draw_fleet(Settings(), CLIENTS))
    rounds = size.loop_rounds
    blocks = [timed_s(lambda: [simulation.step() for _ in range(rounds)]) for _ in range(size.loop_repeats)]
    ms = 1000 * statistics.median(blocks) / rounds
    print(f"\n| the round loop alone | ms per round |\n|---|---|\n| LESSON, 50 clients | {ms:.2f} |")


def evaluation(size: Size) -> None:
    """Print the share of a run's time that evaluation takes at the default interval."""
    spent = [0.0]
    original = Evaluator.begin_score

    def score(self: Evaluator, model: GlobalModel) -> object:
        begin = time.perf_counter()
        result = original(self, model)
        spent[0] += time.perf_counter() - begin
        return result

    Evaluator.begin_score = score  # type: ignore[method-assign,assignment]
    folder = Path(tempfile.mkdtemp())
    settings = Settings(run={"time_budget_s": size.time_budget_s})
    total = timed_s(lambda: execute(settings, folder / "run"))
    Evaluator.begin_score = original  # type: ignore[method-assign]
    shutil.rmtree(folder)
    print(f"\n| LESSON on mnist, {size.time_budget_s:g} s | seconds | evaluation |\n|---|---|---|")
    print(f"| default grid | {total:.1f} | {spent[0] / total:.0%} |")


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case of every table, to check that it works")
    size = QUICK if parser.parse_args().quick else FULL
    configure_process()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}\n")
    fused_rounds(size)
    several_steps(size)
    loop(size)
    evaluation(size)


if __name__ == "__main__":
    main()
