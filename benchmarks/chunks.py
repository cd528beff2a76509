"""Measure how many updates per second a run trains if the clock runs ahead, compared with a run round by round.

For each strategy, three variants take turns in one process: round by round, in chunks, and the clock alone, which is
the same run without training and an upper limit. Round by round, the loop also waits for a GPU in every round. Settings
are those of the preset `released` (50 clients, one step on 20 samples). Rates are medians; the ratio is the median of
the ratios within each repeat.
"""

import argparse
import os
import platform
import statistics
import time
from dataclasses import dataclass

import torch

from lesson import FedAsync, FedBuff, Fleet, InputError, Lesson, Settings, Strategy, draw_fleet, make_loop
from lesson.clock.loop import RoundLoop
from lesson.learn.backend import Backend, ChunkRule
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.data import load_samples
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.process import configure_process
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.tasks import BUILT_IN, image_task
from lesson.learn.workload import Workload, make_workload

NUM_CLIENTS = 50
STRATEGIES: dict[str, Strategy] = {
    "lesson": Lesson(20.0),
    "fedasync": FedAsync(),
    "fedbuff": FedBuff(buffer_size=10, concurrency=NUM_CLIENTS),
}


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    num_updates: int
    """Aggregated updates per measurement, at least."""
    num_lesson_updates: int
    """The same for LESSON, which aggregates many updates per round."""
    repeats: int


FULL = {"cpu": Size(200, 200, 5), "cuda": Size(2_000, 20_000, 3)}
QUICK = Size(4, 4, 1)


def workload_of(name: str, device: str) -> Workload | None:
    """Return the workload of the preset `released`; None if the data set is not installed."""
    try:
        task = image_task(name, load_samples(name), BUILT_IN[name].network)
    except InputError:
        return None
    return make_workload(Settings(num_clients=NUM_CLIENTS, device=device), task)


def make_pipeline(strategy: Strategy, fleet: Fleet, workload: Workload, rule: ChunkRule | None) -> Pipeline:
    """Return a run in chunks of `rule`, by default the device's."""
    settings, backend = Settings(), make_backend(workload)
    lane = Lane(workload.initial_vector(), settings.training, ServerOptimizer(settings.server), settings.guards)
    executor = Executor(SimulatedClients(workload, backend), None, rule or backend.rule)
    return Pipeline(make_loop(strategy, fleet), lane, executor)


def make_backend(workload: Workload) -> Backend:
    """Return the backend for the workload's device."""
    return CudaBackend(workload, "tf32") if workload.device == "cuda" else CpuBackend(workload)


def run_updates(run: Pipeline | RoundLoop, num_updates: int) -> float:
    """Run rounds until this many updates have been aggregated; return updates per second."""
    count, begin = 0, time.perf_counter()
    while count < num_updates:
        record = run.step()
        assert record is not None
        count += len(record.merged)
    if isinstance(run, Pipeline):
        run.skip_results()
    return count / (time.perf_counter() - begin)


def measure(name: str, strategy: Strategy, workload: Workload, size: Size) -> None:
    """Measure and print one row of the table."""
    fleet = draw_fleet(Settings(), NUM_CLIENTS, seed=0).at_deadline(20.0)
    pipelines = [make_pipeline(strategy, fleet, workload, rule) for rule in (ChunkRule(), None)]
    runs: list[Pipeline | RoundLoop] = [*pipelines, make_loop(strategy, fleet)]
    count = size.num_lesson_updates if isinstance(strategy, Lesson) else size.num_updates
    for run in runs:  # warm-up, in which CUDA graphs are recorded
        run_updates(run, count)
    measured = [[run_updates(run, count) for run in runs] for _ in range(size.repeats)]
    one, ahead, clock = (statistics.median(column) for column in zip(*measured, strict=True))
    ratio = statistics.median(fast / slow for slow, fast, _ in measured)
    print(f"| {name}, {workload.task.name} | {one:,.0f} | {ahead:,.0f} | {ratio:.2f} | {clock:,.0f} |", flush=True)
    for pipeline in pipelines:
        pipeline.close()


def main() -> None:
    """Print the table."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=default, choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="run a tiny case, to check that it works")
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL[chosen.device]
    configure_process()
    where = torch.cuda.get_device_name() if chosen.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print("| updates/s | round by round | in chunks | ratio | clock alone |\n|---|---|---|---|---|", flush=True)
    for dataset in ("mnist",) if chosen.quick else ("mnist", "cifar10"):
        workload = workload_of(dataset, chosen.device)
        if workload is None:
            print(f"{dataset} is not installed; its rows are left out")
            continue
        for name, strategy in STRATEGIES.items():
            measure(name, strategy, workload, size)


if __name__ == "__main__":
    main()
