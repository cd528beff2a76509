"""The figures of docs/model.md about the two scenarios: means over 200 seeds of 50 clients at τ = 20 s."""

import numpy as np

from lesson import Scenario, draw_fleet

for preset in ("printed", "released"):
    fleets = [draw_fleet(Scenario(preset=preset), 50, seed) for seed in range(200)]
    slowest_s = np.mean([fleet.slowest_s for fleet in fleets])
    median_s = np.mean([np.median(fleet.latency_s) for fleet in fleets])
    tier_1 = np.mean([np.mean(fleet.latency_s <= 20) for fleet in fleets])
    empty = np.mean([np.all(fleet.latency_s > 10) for fleet in fleets])
    print(f"{preset}: slowest {slowest_s:.1f} s, median {median_s:.1f} s, tier 1 {tier_1:.1%}", end="")
    print(f", nobody within 10 s in {empty:.0%} of draws")
