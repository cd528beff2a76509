"""Measure what compressing uploads costs, relative to training the same cohort without compression.

A cohort of fifty clients trains separate models, and their weighted sum is computed; with a compressor, the updates are
encoded and decoded in between, with error feedback where the compressor has it. Both take turns in one process, and the
ratio is the median of the ratios of consecutive measurements. The data is random in the shape of the task, since only
shapes affect the time.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from lesson import Settings, Task
from lesson.core.cores import num_cores
from lesson.learn.backend import Backend
from lesson.learn.cohort import Cohort
from lesson.learn.compression import COMPRESSORS
from lesson.learn.compression.transform import CompressUploads
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.process import configure_process
from lesson.learn.tasks import BUILT_IN, scaled
from lesson.learn.workload import Workload, make_workload

SETTLE_S, BATCH_SIZE = 0.02, 20
SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
LEVELS = [("none", 32.0), ("float16", 16.0), ("qsgd", 8.0), ("qsgd", 4.0), ("uniform", 8.0), ("sign", 1.0)]
LEVELS += [("topk", 0.01), ("randk", 0.01)]


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    num_clients: int
    levels: int
    """Number of LEVELS."""
    repeats: dict[str, int]
    """Number of measurements by task."""


FULL = {"cpu": Size(50, 8, {"mnist": 25, "cifar10": 7}), "cuda": Size(50, 8, {"mnist": 50, "cifar10": 50})}
QUICK = Size(2, 3, {"mnist": 1})


def workload_of(name: str, num_clients: int, device: str) -> Workload:
    """Return the workload of a task with random images, on which each client takes one step on 20 samples."""
    num = num_clients * BATCH_SIZE
    samples = torch.randint(256, (num, *SHAPES[name]), dtype=torch.uint8), torch.randint(10, (num,))
    task = Task(train=samples, test=samples, model=BUILT_IN[name].network, prepare=scaled, name=name)
    return make_workload(Settings(num_clients=num_clients, split="iid", batch_size=BATCH_SIZE, device=device), task)


def everybody(workload: Workload, level: float) -> Cohort:
    """Return one local training of each client."""
    count = len(workload.holdings.num_samples)
    zeros = np.zeros(count, dtype=np.int64)
    return Cohort(
        workload.initial_vector(),
        client=np.arange(count),
        index=zeros,
        lr=np.full(count, 0.1),
        local_steps=zeros + 1,
        weight=np.full(count, 1 / count),
        first=zeros,
        most_samples=zeros + workload.batch_size,
        level=np.full(count, level),
    )


def timed_s(work: Callable[[], object], device: str) -> float:
    """Return the wall-clock seconds of a call, after a pause in which idle threads of previous calls stop spinning."""
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(name: str, workload: Workload, size: Size) -> None:
    """Measure and print the rows of one task."""
    backend: Backend = CudaBackend(workload, "tf32") if workload.device == "cuda" else CpuBackend(workload)
    trainer, template = backend.trainer("fused"), workload.template

    def round_of(compression: str, level: float) -> Callable[[], object]:
        cohort, transform = everybody(workload, level), None
        if compression != "none":
            transform = CompressUploads(COMPRESSORS[compression](), template.parameter_sizes, seed=0)

        def work() -> object:
            (models,) = trainer.models([cohort])
            trained = replace(cohort, trained=models)
            return (trained if transform is None else transform([trained])[0][0]).weighted_sum()

        return work

    plain = round_of("none", 32.0)
    plain()
    for compression, level in LEVELS[: size.levels]:
        work = round_of(compression, level)
        work()
        pairs = [(timed_s(plain, workload.device), timed_s(work, workload.device)) for _ in range(size.repeats[name])]
        plain_s, taken_s = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(before / after for before, after in pairs)
        row = f"| {name}, {compression} {level:g} | {1e3 * plain_s:.2f} | {1e3 * taken_s:.2f} | {ratio:.2f} |"
        print(row, flush=True)
    trainer.close()
    backend.close()


def main() -> None:
    """Print the table."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=default, choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="run a tiny case, to check that it works")
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL[chosen.device]
    configure_process()
    on_cpu = f"{platform.machine()}, {os.cpu_count()} cores, {num_cores()} used"
    where = torch.cuda.get_device_name() if chosen.device == "cuda" else on_cpu
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print("| a cohort's round | without compression (ms) | with (ms) | ratio |\n|---|---|---|---|", flush=True)
    for name in size.repeats:
        measure(name, workload_of(name, size.num_clients, chosen.device), size)


if __name__ == "__main__":
    main()
