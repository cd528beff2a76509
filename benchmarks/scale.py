"""Measure the time and memory of a round by the size of the fleet and by the number of participants, on CPU or GPU.

Fleets of virtual clients train on CIFAR-10: each client draws its 500 samples from the whole data set, and a limited
number of clients per tier start when its slot begins. In rows with several local steps, clients are available for
eight hours a day, and on a GPU the measurement covers one simulated day. Each row is measured in its own process,
because it reports the peak memory.
"""

import argparse
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from lesson.learn.process import configure_process
from lesson.runs.resolve import resolve
from lesson.settings.settings import Settings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    num_clients: int
    participation: int
    """How many clients of a tier start at a time."""
    local_steps: int = 1
    """Number of local steps. With several, clients are available for eight hours a day; with one, always."""


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    dataset: str
    rows: tuple[Row, ...]
    rounds: int
    repeats: int


MANY_STEPS = 5
ALWAYS_AVAILABLE = tuple(Row(num, 10) for num in (1_000, 10_000, 100_000, 1_000_000))
BY_PARTICIPATION = (Row(100_000, 50), Row(100_000, 200))
PART_TIME = tuple(Row(num, 10, MANY_STEPS) for num in (10_000, 100_000, 1_000_000))
FULL = {
    "cuda": Size("cifar10", ALWAYS_AVAILABLE + BY_PARTICIPATION + PART_TIME, 24, 5),
    "cpu": Size("cifar10", ALWAYS_AVAILABLE + BY_PARTICIPATION[:1] + PART_TIME, 12, 3),
}[DEVICE]
QUICK = Size("mnist", (Row(100, 2), Row(100, 2, 2)), 2, 1)
DAY_S, AVAILABLE_S, ROUND_S = 86_400.0, 8 * 3600.0, 20.0


def write_presence(path: Path, num_clients: int) -> None:
    """Write a presence file: each client is available for eight hours on four days, from its own random time."""
    begins = np.random.default_rng(0).uniform(-AVAILABLE_S, DAY_S - AVAILABLE_S, num_clients)
    with path.open("w") as file:
        file.write("client,from_s,to_s\n")
        for client, begin_s in enumerate(begins.tolist()):
            days = (begin_s + DAY_S * day for day in range(4))
            file.writelines(f"{client},{max(0.0, start):.1f},{start + AVAILABLE_S:.1f}\n" for start in days)


def measure(size: Size, row: Row, folder: Path) -> None:
    """Measure and print one row of the table."""
    configure_process()
    sections: dict[str, dict[str, Any]] = {
        "fleet": {"num_clients": row.num_clients},
        "data": {"dataset": size.dataset, "split": "dirichlet-pool", "samples_per_client": 500},
        "training": {"local_steps": row.local_steps, "learning_rate": 0.01},  # 0.1 diverges with several steps
        "strategy": {"participation": row.participation},
        "run": {"rounds": 10**6, "device": DEVICE},
    }
    part_time = row.local_steps > 1
    if part_time:
        write_presence(folder / "presence.csv", row.num_clients)
        sections["fleet"]["presence"] = str(folder / "presence.csv")
    whole_day = part_time and size is FULL and DEVICE == "cuda"
    num_rounds = math.ceil(DAY_S / ROUND_S / size.repeats) if whole_day else size.rounds
    begin = time.perf_counter()
    run = resolve(Settings(**sections)).build()
    made_s = time.perf_counter() - begin

    def rounds() -> tuple[float, float]:
        begin, merged = time.perf_counter(), 0
        for _ in range(num_rounds):
            record = run.pipeline.step()
            assert record is not None
            merged += len(record.merged)
        run.pipeline.skip_results()
        run.final_score()  # waits for the GPU
        return (time.perf_counter() - begin) / num_rounds, merged / num_rounds

    for _ in range(size.rounds):  # warm-up, in which CUDA graphs are recorded
        run.pipeline.step()
    run.pipeline.skip_results()
    run.final_score()
    scores = []
    for _ in range(size.repeats):
        begin = time.perf_counter()
        run.final_score()
        scores.append((time.perf_counter() - begin) / num_rounds)
    measured = [rounds() for _ in range(size.repeats)]
    round_s = statistics.median(seconds for seconds, _ in measured) - statistics.median(scores)
    merged = statistics.mean(number for _, number in measured)
    host_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    device_mb = torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else 0
    memory = f"{host_mb:,.0f} | {device_mb:,.0f}" if DEVICE == "cuda" else f"{host_mb:,.0f}"
    available = "8 h a day" if part_time else "always"
    about = f"| {row.num_clients:,} | {available} | {row.local_steps} | {row.participation} | {merged:.0f}"
    print(f"{about} | {1000 * round_s:.2f} | {made_s:.1f} | {memory} |")
    run.pipeline.close()


def main() -> None:
    """Print the table, or one row of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case on MNIST, to check that it works")
    parser.add_argument("--row", type=int, nargs=3, metavar="N", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else FULL
    if chosen.row:
        with TemporaryDirectory() as folder:
            measure(size, Row(*chosen.row), Path(folder))
        return
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{os.cpu_count()} cores ({platform.machine()})"
    print(f"{where}, Python {platform.python_version()}, torch {torch.__version__}\n")
    memory = "host MB | GPU MB" if DEVICE == "cuda" else "MB"
    print(
        "| clients | available | local steps | started per tier | aggregated per round | ms per round "
        f"| start-up (s) | {memory} |"
    )
    print("|---|---|---|---|---|---|---|---|" + ("---|" if DEVICE == "cuda" else ""), flush=True)
    command = [sys.executable, __file__, *(["--quick"] if chosen.quick else []), "--row"]
    for one in size.rows:
        subprocess.run([*command, *map(str, astuple(one))], check=True)


if __name__ == "__main__":
    main()
