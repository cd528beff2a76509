"""A fleet as the deadline explorer of a page takes it."""

from typing import Any

import numpy as np

from lesson.arrays import FloatArray, IntArray
from lesson.fleet import Fleet

EXPLORER = ("tiers.js", "fleet_csv.js", "explorer.js")
"""The scripts of the explorer, in their order."""
MAX_CLIENTS = 5000
"""Clients a page holds; of a larger fleet so many, evenly spread over its latencies."""


def fleet_data(fleet: Fleet, deadline_s: float, ensure_first_tier: bool, source: str) -> dict[str, Any]:
    """What `Explorer.mount` is given: the clients, where to begin, and in words where the fleet comes from.

    `num_clients` counts the whole fleet; the page says so where it holds only a part of it.
    """
    kept = _spread_over_latencies(fleet)

    def column(values: FloatArray) -> list[float] | None:
        return None if np.all(np.isnan(values)) else values[kept].tolist()

    people = fleet.population
    return {
        "clients": {
            "name": [fleet.names[client] for client in kept.tolist()],
            "x_km": None if people is None else people.x_km[kept].tolist(),
            "y_km": None if people is None else people.y_km[kept].tolist(),
            "compute_s": fleet.compute_s[kept].tolist(),
            "upload_s": fleet.upload_s[kept].tolist(),
            "latency_s": fleet.latency_s[kept].tolist(),
            "compute_j": column(fleet.compute_j),
            "transmit_j": column(fleet.transmit_j),
        },
        "num_clients": len(fleet),
        "deadline_s": deadline_s,
        "ensure_first_tier": ensure_first_tier,
        "source": source,
    }


def _spread_over_latencies(fleet: Fleet) -> IntArray:
    """The clients a page holds, sorted: all, or every so many-th by latency, the fastest and the slowest among them."""
    if len(fleet) <= MAX_CLIENTS:
        return np.arange(len(fleet))
    order = np.argsort(fleet.latency_s, kind="stable")
    return np.sort(order[np.linspace(0, len(fleet) - 1, MAX_CLIENTS).round().astype(np.int64)])
