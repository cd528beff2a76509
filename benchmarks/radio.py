"""Measure the cost of time-varying channels, without training, and print Markdown tables.

They show the fading of a million clients, a round with all variation off compared with the commit before it was added,
and a round with each kind of variation.
"""

import argparse
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lesson import Lesson, Settings, draw_fleet, make_loop
from lesson.clock.worlds.actual_times import ActualTimes
from lesson.core.random import key
from lesson.radio.fading import fading_gain

ROOT = Path(__file__).parent.parent
BEFORE = "86c0ec4"
"""The last commit before times could vary."""


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    fading_clients: int
    repeats: int
    strategies: tuple[str, ...]
    fleets: tuple[int, ...]
    rounds: int
    """Rounds in a measurement; a tenth of them for large fleets of strategies that train all clients."""
    asks: int
    """Measurements per process."""
    starts: int
    """How many times both processes are started."""
    turns: int
    turn_rounds: int
    """Measurements of each case in the last table, and rounds per measurement."""


FULL = Size(1_000_000, 5, ("lesson", "fedavg", "fedbuff"), (50, 10_000), 100, 40, 4, 12, 12)
QUICK = Size(1_000, 1, ("lesson",), (50,), 5, 1, 1, 3, 1)

# Runs the package in PYTHONPATH: for every line on stdin, it prints the milliseconds of a round.
ROUNDS = """
import sys, time
import lesson
from lesson import make_loop, draw_fleet
from lesson.strategies import STRATEGIES

name, num_clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
settings = getattr(lesson, "Settings", None) or lesson.Scenario  # its name before version 0.2
options = {"lesson": {"deadline_s": 20.0}, "fedavg": {}}
options["fedbuff"] = {"concurrency": num_clients // 2, "buffer_size": 10}
simulation = make_loop(STRATEGIES[name](**options[name]), draw_fleet(settings(), num_clients))
for _ in sys.stdin:
    begin = time.process_time()
    for _ in range(rounds):
        simulation.step()
    print(1000 * (time.process_time() - begin) / rounds, flush=True)
"""

MOVING: dict[str, Any] = {"speed_mps": (1.0, 15.0)}
ALL: dict[str, Any] = {"fading": "rayleigh", "shadowing_db": 8.0, **MOVING}
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "slowdown": {"slowdown": 0.5},
    "slowdown, quantile of the last 5": {"slowdown": 0.5, "estimate": "quantile"},
    "Rayleigh fading": {"fading": "rayleigh"},
    "Rayleigh fading, blocks of 0.1 s": {"fading": "rayleigh", "coherence_s": 0.1},
    "Rician fading": {"fading": "rician"},
    "Rayleigh fading, download": {"fading": "rayleigh", "download": True},
    "moving": MOVING,
    "moving, uma": {"path_loss": "uma", **MOVING},
    "moving, shadowing, Rayleigh fading": ALL,
    "equal split": {"spectrum": "equal"},
    "equal split, Rayleigh fading": {"spectrum": "equal", "fading": "rayleigh"},
    "equal split, moving, shadowing, Rayleigh fading": {"spectrum": "equal", **ALL},
    "in turn": {"spectrum": "in-turn"},
    "in turn, Rayleigh fading": {"spectrum": "in-turn", "fading": "rayleigh"},
    "in turn, moving, shadowing, Rayleigh fading": {"spectrum": "in-turn", **ALL},
}


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall-clock seconds of a call."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def launch_s(size: Size, coherence_s: float) -> float:
    """Return the seconds to compute the arrival times of all clients when they start together on fading channels."""
    settings, everybody = Settings(fading="rayleigh", coherence_s=coherence_s), np.arange(size.fading_clients)
    truth = ActualTimes(settings, draw_fleet(settings, size.fading_clients), seed=0)
    ones = np.ones(size.fading_clients)
    return seconds(lambda: truth.launch(everybody, np.zeros_like(everybody), ones, 0.0), size.repeats)


def draws_s(size: Size) -> float:
    """Return the seconds to draw the fading of all clients in one block."""
    everybody, block = np.arange(size.fading_clients)[:, None], np.zeros((1, 1), dtype=np.int64)
    return seconds(lambda: fading_gain("rayleigh", 0.0, key(0, "fading"), everybody, block), size.repeats)


class RoundTimer:
    """A process that times rounds of the package in a source tree on demand."""

    def __init__(self, tree: Path, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ROUNDS, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ms(self) -> float:
        """Return the CPU time of a round in milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Close the input of the process and wait until it ends."""
        self._process.communicate()


def beside(size: Size, trees: Sequence[Path], *arguments: object) -> list[list[float]]:
    """Return pairs of milliseconds of a round, one for each of two source trees, measured in alternation."""
    pairs = []
    for start in range(size.starts):
        runs = [RoundTimer(tree, *arguments) for tree in (trees[::-1] if start % 2 else trees)]
        runs = runs[::-1] if start % 2 else runs  # which process was started first matters, too
        for ask in range(size.asks):
            times_ms = [0.0, 0.0]
            for place in (0, 1) if ask % 2 else (1, 0):
                times_ms[place] = runs[place].ms()
            if ask >= size.asks // 10:
                pairs.append(times_ms)
        for run in runs:
            run.end()
    return pairs


def median_ratio(pairs: list[list[float]]) -> float:
    """Return the median ratio of the second to the first time of each pair."""
    return statistics.median(second / first for first, second in pairs)


def print_fading(size: Size) -> None:
    """Print the cost of fading channels in a large fleet."""
    print(f"| {size.fading_clients:,} clients, Rayleigh fading | seconds, median of {size.repeats} |\n|---|---|")
    print(f"| draws of one block | {draws_s(size):.3f} |")
    for coherence_s in (10.0, 1.0):
        taken_s = launch_s(size, coherence_s)
        print(
            f"| arrival times of all clients that start now, blocks of {coherence_s:g} s | {taken_s:.2f} |", flush=True
        )


def print_nothing_on(size: Size, before: Path) -> None:
    """Print the cost of a round in which times do not vary, compared with that in another source tree."""
    print(
        f"\n| all variations off, timing only | clients | {BEFORE} (ms) | now (ms) | ratio | {BEFORE} against itself |"
    )
    print("|---|---|---|---|---|---|")
    for name in size.strategies:
        for num_clients in size.fleets:
            rounds = size.rounds // 10 if num_clients > 50 and name != "fedbuff" else size.rounds
            pairs = beside(size, [before, ROOT], name, num_clients, rounds)
            then_ms, now_ms = (statistics.median(times_ms) for times_ms in zip(*pairs, strict=True))
            ratio, noise = median_ratio(pairs), median_ratio(beside(size, [before, before], name, num_clients, rounds))
            print(
                f"| {name} | {num_clients:,} | {then_ms:.3f} | {now_ms:.3f} | {ratio:.3f} | {noise:.3f} |", flush=True
            )


def print_each_thing_on(size: Size) -> None:
    """Print the cost of LESSON's rounds of 50 clients in each case; cases alternate every few rounds."""
    simulations = {}
    for name, changes in CASES.items():
        settings = Settings(**changes)
        simulations[name] = make_loop(Lesson(20.0), draw_fleet(settings), settings=settings)
    times_ms: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(size.turns):
        for name, simulation in simulations.items():
            begin = time.process_time()
            for _ in range(size.turn_rounds):  # 12: a cycle of the first four tiers
                simulation.step()
            if turn >= 2:
                times_ms[name].append(1000 * (time.process_time() - begin) / size.turn_rounds)
    print("\n| LESSON, 50 clients, timing only | ms per round | compared with none |\n|---|---|---|")
    for name, times in times_ms.items():
        ratio = median_ratio([[*pair] for pair in zip(times_ms["none"], times, strict=True)])
        print(f"| {name} | {statistics.median(times):.2f} | {ratio:.1f} × |")


def write_source(commit: str, folder: Path) -> bool:
    """Write the source of the package at a commit to a folder; return whether this clone has the commit."""
    command = ["git", "-C", str(ROOT), "archive", "--format=zip", commit, "src"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        return False
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(folder)
    return True


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case of every table, to check that it works")
    quick = parser.parse_args().quick
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder)
        if not write_source(BEFORE, before):
            if not quick:
                parser.error(f"commit {BEFORE} is not in this clone; get it with 'git fetch --unshallow'")
            print(f"commit {BEFORE} is not in this clone: this version is compared with itself\n")
            before = ROOT
        versions = f"Python {platform.python_version()}, numpy {np.__version__}"
        print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}\n")
        print_fading(size)
        print_nothing_on(size, before)
    print_each_thing_on(size)


if __name__ == "__main__":
    main()
