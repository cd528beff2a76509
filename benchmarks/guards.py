"""Measure the cost of guards: rounds of the fused trainer with each guard, alternating with rounds without any."""

import argparse
import os
import platform
import statistics
import time
from typing import Any

from lesson.learn.build import build
from lesson.learn.device import on_device
from lesson.learn.process import configure_process
from lesson.settings.settings import Settings

OFF: dict[str, Any] = {"finite": False, "exclude_after_rejections": 0}
CASES: dict[str, dict[str, Any]] = {
    "none, measured again": OFF,
    "defaults": {},
    "norm = clip": {"norm": "clip"},
    "aggregation = median": {"aggregation": "median"},
    "aggregation = trimmed-mean": {"aggregation": "trimmed-mean"},
}


class Round:
    """A run whose rounds are timed on demand."""

    def __init__(self, strategy: str, num_clients: int, device: str, guards: dict[str, Any]) -> None:
        settings = Settings(
            fleet={"num_clients": num_clients},
            strategy={"name": strategy},
            run={"rounds": 1, "device": device},
            guards=guards,
        )
        self.run = build(on_device(settings))
        self.run.server.source.may_wait = False  # guards that reject need every round at once; so does the baseline
        self._clock = time.perf_counter if device == "cuda" else time.process_time
        if guards is not OFF:
            self.run.server.source.trusted = False  # as if uploads came from outside; those trained here are trusted

    def ms(self, count: int) -> float:
        """Return the mean milliseconds of `count` rounds: CPU time of all cores, or wall-clock time on a GPU."""
        begin = self._clock()
        for _ in range(count):
            self.run.loop.step()
        self.run.model.vector.sum().item()  # wait for the GPU
        return 1000 * (self._clock() - begin) / count


def main() -> None:
    """Measure each guard and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--asks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="run a tiny case, to check that it works")
    chosen = parser.parse_args()
    fleets = [("lesson", 5)] if chosen.quick else [("lesson", 50), ("fedavg", 50), ("fedavg", 500)]
    asks, rounds = (1, 1) if chosen.quick else (chosen.asks, chosen.rounds)
    configure_process()
    print(f"{platform.machine()}, {os.cpu_count()} cores, device {chosen.device}; MNIST, one step of 20 samples\n")
    print("| strategy | clients | guards | ms per round | without | ratio |")
    print("|---|---|---|---|---|---|")
    for strategy, num_clients in fleets:
        for name, guards in CASES.items():
            plain = Round(strategy, num_clients, chosen.device, OFF)
            guarded = Round(strategy, num_clients, chosen.device, guards)
            pairs = [(plain.ms(rounds), guarded.ms(rounds)) for _ in range(asks + 2)][2:]
            without, with_them = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(one / other for other, one in pairs)
            print(
                f"| {strategy} | {num_clients} | {name} | {with_them:.2f} | {without:.2f} | {ratio:.3f} |", flush=True
            )
            for one in (plain, guarded):
                one.run.close()


if __name__ == "__main__":
    main()
