"""Measure the speed and memory of the simulator without training, and print Markdown tables."""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lesson import Fleet, Lesson, Settings, assign_tiers, draw_fleet, make_loop
from lesson.strategies.base import Strategy
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedbuff import FedBuff


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    tiers_clients: int
    """Number of clients that are drawn and assigned to tiers."""
    fleets: tuple[int, ...]
    """Sizes of the fleets whose rounds are timed; times are relative to the first."""
    num_due: tuple[int, ...]
    async_fleets: tuple[int, ...]
    """The same for FedAsync and FedBuff, in which almost every client starts from a different model version."""
    rounds: int
    run_clients: int
    run_rounds: int
    repeats: int


FULL = Size(1_000_000, (10_000, 100_000, 1_000_000), (100, 5_000), (50, 1_000, 16_000), 200, 100_000, 1000, 5)
QUICK = Size(10_000, (1_000, 2_000), (100,), (100, 200), 5, 1_000, 20, 1)


def timed_s(work: Callable[[], object]) -> float:
    """Return the wall-clock seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure_tiers(num_clients: int) -> dict[str, float]:
    """Return the seconds to draw clients, their latencies and tiers, and the peak memory of this process in MB."""

    def work() -> None:
        assign_tiers(draw_fleet(Settings(), num_clients).latency_s, 20.0)

    return {"seconds": timed_s(work), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_tiers_in_a_new_process(num_clients: int) -> dict[str, float]:
    """Run `measure_tiers` in a new process, so that the peak memory includes nothing else."""
    command = [sys.executable, __file__, "--tiers-of", str(num_clients)]
    measured: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return measured


def fleet_with_fixed_due(num_clients: int, num_due: int) -> Fleet:
    """Return a fleet in which `num_due` clients are due in every round, and the others only after the measurement."""
    fleet = draw_fleet(Settings(), num_clients)
    fleet.latency_s[:] = np.where(np.arange(num_clients) < num_due, 10.0, 1e9)
    return fleet


def round_ms(fleet: Fleet, rounds: int) -> float:
    """Return the median milliseconds of a round, without the first one, in which all clients start."""
    simulation = make_loop(Lesson(20.0), fleet)
    simulation.step()
    return 1000 * statistics.median(timed_s(simulation.step) for _ in range(rounds))


def print_tiers(size: Size) -> None:
    """Print the time and memory for assigning the tiers of a large fleet."""
    runs = [measure_tiers_in_a_new_process(size.tiers_clients) for _ in range(size.repeats)]
    seconds = statistics.median(run["seconds"] for run in runs)
    peak_mb = statistics.median(run["peak_mb"] for run in runs)
    print("| population, latency and tiers | seconds | peak memory |\n|---|---|---|")
    print(f"| {size.tiers_clients:,} clients, median of {size.repeats} | {seconds:.2f} | {peak_mb:.0f} MB |\n")


def print_rounds(size: Size) -> None:
    """Print the cost of a round by the size of the fleet and the number of clients due."""
    print(f"| LESSON round, timing only | clients | due | ms | against {size.fleets[0]:,} clients |")
    print("|---|---|---|---|---|")
    for num_due in size.num_due:
        base_ms = 0.0
        for num_clients in size.fleets:
            fleet = fleet_with_fixed_due(num_clients, num_due)
            ms = statistics.median(round_ms(fleet, size.rounds) for _ in range(size.repeats))
            base_ms = base_ms or ms
            print(f"| fixed number due | {num_clients:,} | {num_due:,} | {ms:.3f} | {ms / base_ms:.2f} × |")


def async_round_us(strategy: Strategy, num_clients: int, rounds: int) -> float:
    """Return the median microseconds of a round with one arrival, when most clients train from different versions."""
    simulation = make_loop(strategy, draw_fleet(Settings(), num_clients))
    for _ in range(num_clients):
        simulation.step()
    return 1e6 * statistics.median(timed_s(simulation.step) for _ in range(rounds))


def print_async(size: Size) -> None:
    """Print the cost of a round in which one update arrives and one client starts, by the size of the fleet."""
    print(
        "\n| a round with one arrival, timing only (µs) |" + "".join(f" {num:,} clients |" for num in size.async_fleets)
    )
    print("|---|" + "---|" * len(size.async_fleets))
    for kind in (FedAsync, FedBuff):
        cells = [f"{async_round_us(kind(), num, 10 * size.rounds):.0f}" for num in size.async_fleets]
        print(f"| {kind.__name__} | {' | '.join(cells)} |")


def print_run(size: Size) -> None:
    """Print the cost of a whole run per aggregated update."""
    simulation = make_loop(Lesson(20.0), draw_fleet(Settings(), size.run_clients))
    begin, merged = time.perf_counter(), 0
    for _ in range(size.run_rounds):
        record = simulation.step()
        assert record is not None
        merged += len(record.merged)
    seconds = time.perf_counter() - begin
    print("\n| LESSON run, timing only | clients | rounds | updates | seconds | µs per update |")
    print("|---|---|---|---|---|---|")
    print(
        f"| `released`, τ = 20 s | {size.run_clients:,} | {size.run_rounds:,} | {merged:,} | {seconds:.1f} | "
        f"{1e6 * seconds / merged:.2f} |"
    )


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run a tiny case of every table, to check that it works")
    parser.add_argument("--tiers-of", type=int, metavar="N", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.tiers_of:
        print(json.dumps(measure_tiers(chosen.tiers_of)))
        return
    size = QUICK if chosen.quick else FULL
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}\n")
    print_tiers(size)
    print_rounds(size)
    print_async(size)
    print_run(size)


if __name__ == "__main__":
    main()
