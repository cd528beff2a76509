"""Measure the time and memory of a round by the size of the fleet and by the number of participants, on CPU or GPU.

Fleets of virtual clients train on CIFAR-10: each client draws its 500 samples from the whole data set, and a limited
number of clients per tier start when its slot begins. Every row is measured in its own process, as it includes the peak
memory.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from lesson.learn.build import build
from lesson.learn.device import on_device
from lesson.learn.process import configure_process
from lesson.settings.settings import Settings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    dataset: str
    rows: tuple[tuple[int, int], ...]
    """Size of the fleet, and how many clients of a tier start at a time."""
    rounds: int
    repeats: int


ROWS = ((1_000, 10), (10_000, 10), (100_000, 10), (100_000, 50), (100_000, 200))
FULL = Size("cifar10", ROWS, 24, 5) if DEVICE == "cuda" else Size("cifar10", ROWS[:-1], 12, 3)
QUICK = Size("mnist", ((100, 2),), 2, 1)


def row(size: Size, num_clients: int, participation: int) -> None:
    """Measure and print one row of the table."""
    configure_process()
    sections: dict[str, dict[str, Any]] = {
        "fleet": {"num_clients": num_clients},
        "data": {"dataset": size.dataset, "split": "dirichlet-pool", "samples_per_client": 500},
        "strategy": {"participation": participation},
        "run": {"rounds": 10**6, "device": DEVICE},
    }
    begin = time.perf_counter()
    run = build(on_device(Settings(**sections)))
    made_s = time.perf_counter() - begin

    def rounds() -> tuple[float, float]:
        begin, merged = time.perf_counter(), 0
        for _ in range(size.rounds):
            record = run.loop.step()
            assert record is not None
            merged += len(record.merged)
        run.evaluator.score(run.model)  # waits for the GPU
        return (time.perf_counter() - begin) / size.rounds, merged / size.rounds

    rounds()
    scores = []
    for _ in range(size.repeats):
        begin = time.perf_counter()
        run.evaluator.score(run.model)
        scores.append((time.perf_counter() - begin) / size.rounds)
    measured = [rounds() for _ in range(size.repeats)]
    round_s = statistics.median(seconds for seconds, _ in measured) - statistics.median(scores)
    merged = statistics.mean(number for _, number in measured)
    host_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    device_mb = torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else 0
    memory = f"{host_mb:,.0f} | {device_mb:,.0f}" if DEVICE == "cuda" else f"{host_mb:,.0f}"
    print(f"| {num_clients:,} | {participation} | {merged:.0f} | {1000 * round_s:.2f} | {made_s:.1f} | {memory} |")
    run.close()


def main() -> None:
    """Print the table, or one row of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case on MNIST, to check that it works")
    parser.add_argument("--row", type=int, nargs=2, metavar="N", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL
    if chosen.row:
        row(size, *chosen.row)
        return
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{os.cpu_count()} cores ({platform.machine()})"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    memory = "host MB | GPU MB" if DEVICE == "cuda" else "MB"
    print(f"| clients | started per tier | aggregated per round | ms per round | start-up (s) | {memory} |")
    print("|---|---|---|---|---|---|" + ("---|" if DEVICE == "cuda" else ""), flush=True)
    command = [sys.executable, __file__, *(["--quick"] if chosen.quick else []), "--row"]
    for num_clients, participation in size.rows:
        subprocess.run([*command, str(num_clients), str(participation)], check=True)


if __name__ == "__main__":
    main()
