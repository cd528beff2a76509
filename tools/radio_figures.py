"""Mean length of FedAvg's rounds over seeds, with one setting changed at a time; radio.md shows the figures."""

import statistics
from typing import Any

from lesson import FedAvg, Settings, draw_fleet, simulate

NUM_SEEDS = 5
CASES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    "speed_mps = [1, 15]": {"speed_mps": (1.0, 15.0)},
    "fading = rayleigh": {"fading": "rayleigh"},
    "slowdown = 0.5": {"slowdown": 0.5},
    "download = true": {"download": True},
    "spectrum = equal": {"spectrum": "equal"},
    "spectrum = in-turn": {"spectrum": "in-turn"},
}

for name, changes in CASES.items():
    settings, lengths_s = Settings(**changes), []
    for seed in range(NUM_SEEDS):
        fleet = draw_fleet(settings, seed=seed)
        records = list(simulate(FedAvg(), fleet, rounds=50, seed=seed, settings=settings))
        lengths_s += [record.end_s - record.start_s for record in records[25:]]
    print(f"{name}: {statistics.mean(lengths_s):.1f} s")
