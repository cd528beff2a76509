"""Speed of training on the CPU: ratios within one run, medians of repeats. CIFAR-10 is left out where it is absent."""

import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lesson import InputError, Lesson, Scenario, Simulation, draw_fleet
from lesson.learn.batched import BatchedTrainer
from lesson.learn.cpu import CpuBackend
from lesson.learn.data import load_dataset
from lesson.learn.fused import FusedTrainer
from lesson.learn.learner import Learner
from lesson.learn.process import settle_process
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Task, Work, make_task, scaled
from lesson.learn.threads import Threads
from lesson.runs import execute
from lesson.settings import make_settings

CLIENTS, SETTLE_S = 50, 0.02


def timed_s(work: Callable[[], object]) -> float:
    """Wall-clock seconds of some work, after a moment in which idle threads of what ran before stop spinning."""
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def everybody(steps: int) -> Work:
    """One piece of work for each of fifty clients."""
    whole = np.zeros(CLIENTS, dtype=np.int64)
    return Work(np.arange(CLIENTS), whole, np.full(CLIENTS, 0.1), whole + steps, np.full(CLIENTS, 1 / CLIENTS))


def bare_step(task: Task) -> Callable[[], None]:
    """Forward, backward and SGD step of plain PyTorch on 1000 samples, channels last, on all cores."""
    model = task.factory().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = scaled(task.train_images[:1000]), task.train_labels[:1000]

    def step() -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
        torch.set_num_threads(1)

    return step


def fused_rounds() -> None:
    """A fused round of 50 clients, one step of 20, against one bare step on as many samples."""
    print("| one step of 20 for 50 clients | bare step (s) | fused round (s) | ratio | one by one (s) |")
    print("|---|---|---|---|---|")
    for name, repeats in (("mnist", 25), ("cifar10", 9)):
        try:
            fused_round(name, make_task(Scenario(), load_dataset(name), CLIENTS, 0), repeats)
        except InputError:
            print(f"| {name}: not here | | | | |")


def fused_round(name: str, task: Task, repeats: int) -> None:
    """One row of that table."""
    threads, base, work = Threads(task.factory), task.initial_vector(), everybody(1)
    fused, step, reference = FusedTrainer(task, threads), bare_step(task), ReferenceTrainer(task)
    pairs = [(timed_s(step), timed_s(lambda: fused.cohorts([(base, work)]))) for _ in range(repeats + 2)][2:]
    plain = statistics.median(timed_s(lambda: reference.cohorts([(base, work)])) for _ in range(3))
    ratio = statistics.median(ours / theirs for theirs, ours in pairs)
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"| {name} | {bare:.4f} | {ours:.4f} | {ratio:.2f} | {plain:.3f} |")
    threads.close()


def several_steps() -> None:
    """Fifty clients, fifty steps each: worker processes against one process."""
    task = make_task(Scenario(), load_dataset("mnist"), CLIENTS, 0)
    base, work = task.initial_vector(), everybody(50)
    workers, reference = BatchedTrainer(task), ReferenceTrainer(task)
    workers.cohorts([(base, work[:2])])
    pairs = [
        (timed_s(lambda: reference.cohorts([(base, work)])), timed_s(lambda: workers.cohorts([(base, work)])))
        for _ in range(5)
    ]
    workers.close()
    one, many = (statistics.median(column) for column in zip(*pairs, strict=True))
    print("\n| 50 steps for 50 clients, mnist | one process (s) | workers (s) | ratio |\n|---|---|---|---|")
    print(f"| median of 5 | {one:.2f} | {many:.2f} | {statistics.median(a / b for a, b in pairs):.2f} |")


class NoTraining(Learner):
    """A learner whose merges cost nothing: what is left is the loop itself."""

    def merge(self, *arguments: Any) -> None:
        """Keep the model as it is."""
        version = arguments[3]
        self.versions[version + 1] = self.versions[version]


def loop() -> None:
    """Strategy, clock and records of a round of 50 clients."""
    task = make_task(Scenario(), load_dataset("mnist"), CLIENTS, 0)
    learner = NoTraining(task, 0.1, 1.0, CpuBackend(task))
    simulation = Simulation(Lesson(20.0), draw_fleet(Scenario(), CLIENTS), learner=learner)
    blocks = [timed_s(lambda: [simulation.step() for _ in range(200)]) / 200 for _ in range(9)]
    ms = 1000 * statistics.median(blocks)
    learner.close()
    print(f"\n| the loop itself | ms a round |\n|---|---|\n| LESSON, 50 clients | {ms:.2f} |")


def evaluation() -> None:
    """What part of a run is evaluation, on the default grid."""
    spent = [0.0]
    original = Learner.begin_score

    def score(self: Learner, version: int) -> object:
        begin = time.perf_counter()
        result = original(self, version)
        spent[0] += time.perf_counter() - begin
        return result

    Learner.begin_score = score  # type: ignore[method-assign,assignment]
    folder = Path(tempfile.mkdtemp())
    settings = make_settings({"run": {"time_budget_s": 4000.0}})
    total = timed_s(lambda: execute(settings, folder / "run"))
    Learner.begin_score = original  # type: ignore[method-assign]
    shutil.rmtree(folder)
    print("\n| LESSON on mnist, 4000 s | seconds | evaluation |\n|---|---|---|")
    print(f"| default grid | {total:.1f} | {spent[0] / total:.0%} |")


if __name__ == "__main__":
    settle_process()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}\n")
    fused_rounds()
    several_steps()
    loop()
    evaluation()
