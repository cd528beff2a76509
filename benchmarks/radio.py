"""Measure the cost of time-varying channels, without training, and print Markdown tables.

They show the fading of a million clients, and a round with each kind of variation.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lesson import Lesson, Settings, draw_fleet, make_loop
from lesson.clock.worlds.actual_times import ActualTimes
from lesson.core.random import key
from lesson.radio.fading import fading_gain


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    fading_clients: int
    repeats: int
    turns: int
    turn_rounds: int
    """Measurements of each case in the last table, and rounds per measurement."""


FULL = Size(1_000_000, 5, 12, 12)
QUICK = Size(1_000, 1, 3, 1)

MOVING: dict[str, Any] = {"speed_mps": (1.0, 15.0)}
ALL: dict[str, Any] = {"fading": "rayleigh", "shadowing_db": 8.0, **MOVING}
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "slowdown": {"slowdown": 0.5},
    "slowdown, quantile of the last 5": {"slowdown": 0.5, "estimate": "quantile"},
    "Rayleigh fading": {"fading": "rayleigh"},
    "Rayleigh fading, blocks of 1 s": {"fading": "rayleigh", "coherence_s": 1.0},
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
    return seconds(lambda: truth.launch(everybody, np.zeros_like(everybody), ones, ones, 0.0), size.repeats)


def draws_s(size: Size) -> float:
    """Return the seconds to draw the fading of all clients in one block."""
    everybody, block = np.arange(size.fading_clients)[:, None], np.zeros((1, 1), dtype=np.int64)
    return seconds(lambda: fading_gain(-np.inf, key(0, "fading"), everybody, block), size.repeats)


def print_fading(size: Size) -> None:
    """Print the cost of fading channels in a large fleet."""
    print(f"| {size.fading_clients:,} clients, Rayleigh fading | seconds, median of {size.repeats} |\n|---|---|")
    print(f"| draws of one block | {draws_s(size):.3f} |")
    for coherence_s in (10.0, 1.0):
        taken_s = launch_s(size, coherence_s)
        print(
            f"| arrival times of all clients that start now, blocks of {coherence_s:g} s | {taken_s:.2f} |", flush=True
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
        ratio = statistics.median(time / none for none, time in zip(times_ms["none"], times, strict=True))
        print(f"| {name} | {statistics.median(times):.2f} | {ratio:.1f} × |")


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case of every table, to check that it works")
    size = QUICK if parser.parse_args().quick else FULL
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}\n")
    print_fading(size)
    print_each_thing_on(size)


if __name__ == "__main__":
    main()
