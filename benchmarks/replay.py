"""Measure how far `lesson replay --check` can be trusted, on synthetic recordings whose truth is known.

Each recording holds synchronous rounds of FedAvg with five clients. Their latencies are log-normal around 8, 12, 20, 30
and 45 s with σ = 0.15, and 1.5 s pass between two rounds. The first half of each recording predicts the second; the
table has the median error of each predicted value, and the share of recordings whose measured value lies in the
predicted 95 % interval.
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from lesson.core.random import stream
from lesson.flight.check import Check, check_recording
from lesson.flight.recording import Event, Header, Recording, line_of, read_recording

LATENCY_S = (8.0, 12.0, 20.0, 30.0, 45.0)
SIGMA, OVERHEAD_S = 0.15, 1.5


def draw_recording(path: Path, seed: int, num_rounds: int) -> Recording:
    """Write and read a recording of FedAvg."""
    rng = stream(seed, "recording")
    events, now_s = list[Event](), 0.0
    for number in range(1, num_rounds + 1):
        latency_s = np.array(LATENCY_S) * np.exp(SIGMA * rng.standard_normal(len(LATENCY_S)))
        jobs = [{"client": f"client-{client}", "job": f"{number}-{client}"} for client in range(len(LATENCY_S))]
        events += [Event(event="asked", t_s=now_s, round=number, **job) for job in jobs]
        for client in np.argsort(latency_s).tolist():
            took_s = float(latency_s[client])
            events.append(Event(event="arrived", t_s=now_s + took_s, num_samples=100, **jobs[client]))
        end_s = now_s + float(latency_s.max())
        events.append(Event(event="round", t_s=end_s, round=number, merged=[job["client"] for job in jobs]))
        now_s = end_s + OVERHEAD_S
    path.write_text(line_of(Header(strategy="fedavg")) + "".join(map(line_of, events)))
    return read_recording(path)


def print_table(checks: list[Check]) -> None:
    """Print median errors and coverages over the recordings."""
    errors, covered = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for check in checks:
        for one in check.predictions:
            errors[one.what].append(one.error)
            covered[one.what].append(float(one.is_covered))
        covered["single rounds"].append(check.round_coverage)
        covered["single latencies"].append(check.latency_coverage)
    print("| value of the second half | median error | coverage of the 95 % interval |\n|---|---|---|")
    for what, shares in covered.items():
        error = f"{np.nanmedian(errors[what]):.1%}" if errors[what] else "–"
        print(f"| {what} | {error} | {np.mean(shares):.3f} |")
    order = np.mean([check.order for check in checks])
    wrong = sum(len(check.wrong_tiers) for check in checks)
    clients = sum(check.num_clients for check in checks)
    print(f"\nOrder of two clients by latency: {order:.1%} correct. Tiers: {1 - wrong / clients:.1%} correct.")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=40, help="number of recordings (default: 40)")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each recording (default: 40)")
    parser.add_argument("--replicates", type=int, default=60, help="simulations per recording (default: 60)")
    parser.add_argument("--quick", action="store_true", help="run a tiny case, to check that it works")
    given = parser.parse_args()
    recordings, rounds, replicates = (2, 8, 5) if given.quick else (given.recordings, given.rounds, given.replicates)
    print(f"{recordings} recordings of {rounds} rounds, {replicates} replicates\n")
    with tempfile.TemporaryDirectory() as folder:
        drawn = [draw_recording(Path(folder) / f"{seed}.jsonl", seed, rounds) for seed in range(recordings)]
        print_table([check_recording(one, num_replicates=replicates) for one in drawn])


if __name__ == "__main__":
    main()
