"""Speed and memory of the part that needs no training, as Markdown tables of what is measured here and now."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from lesson import Fleet, Lesson, Scenario, Simulation, assign_tiers, draw_fleet

MILLION = 1_000_000
REPEATS = 5


def timed_s(work: Callable[[], object]) -> float:
    """Wall-clock seconds of some work."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def tiers_of_a_million() -> dict[str, float]:
    """Population, latency and tiers of a million clients, and the most memory this process ever had."""

    def work() -> None:
        assign_tiers(draw_fleet(Scenario(), MILLION).latency_s, 20.0)

    return {"seconds": timed_s(work), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_a_process_of_its_own() -> dict[str, float]:
    """One such measurement where nothing else has used memory before."""
    output = subprocess.run([sys.executable, __file__, "--one"], check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def fleet_with_fixed_due(num_clients: int, num_due: int) -> Fleet:
    """A drawn fleet in which so many clients are due in every round, and the others only after all that is measured."""
    fleet = draw_fleet(Scenario(), num_clients)
    fleet.latency_s[:] = np.where(np.arange(num_clients) < num_due, 10.0, 1e9)
    return fleet


def round_ms(fleet: Fleet, rounds: int) -> float:
    """Milliseconds of a round, after the first in which everybody starts."""
    simulation = Simulation(Lesson(20.0), fleet)
    simulation.step()
    return 1000 * statistics.median(timed_s(simulation.step) for _ in range(rounds))


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}\n")

    runs = [in_a_process_of_its_own() for _ in range(REPEATS)]
    seconds = statistics.median(run["seconds"] for run in runs)
    peak_mb = statistics.median(run["peak_mb"] for run in runs)
    print("| population, latency and tiers | seconds | peak memory |\n|---|---|---|")
    print(f"| 1,000,000 clients, median of {REPEATS} | {seconds:.2f} | {peak_mb:.0f} MB |\n")

    print("| LESSON round, timing only | clients | due | ms | against 10,000 clients |\n|---|---|---|---|---|")
    for num_due in (100, 5_000):
        base_ms = 0.0
        for num_clients in (10_000, 100_000, MILLION):
            fleet = fleet_with_fixed_due(num_clients, num_due)
            ms = statistics.median(round_ms(fleet, 200) for _ in range(REPEATS))
            base_ms = base_ms or ms
            print(f"| fixed number due | {num_clients:,} | {num_due:,} | {ms:.3f} | {ms / base_ms:.2f} × |")

    simulation = Simulation(Lesson(20.0), draw_fleet(Scenario(), 100_000))
    counts: list[int] = []
    seconds = timed_s(lambda: counts.extend(len(simulation.step().merged) for _ in range(1000)))
    merged = sum(counts)
    print("\n| LESSON run, timing only | clients | rounds | merged | seconds | µs a merged client |")
    print("|---|---|---|---|---|---|")
    print(f"| `released`, τ = 20 s | 100,000 | 1,000 | {merged:,} | {seconds:.1f} | {1e6 * seconds / merged:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--one"]:
        print(json.dumps(tiers_of_a_million()))
    else:
        main()
