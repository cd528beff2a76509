"""A fleet as the deadline explorer of a page takes it."""

from typing import Any

from lesson.fleet.columns import columns_of, spread
from lesson.fleet.fleet import Fleet

EXPLORER = ("tiers.js", "fleet_csv.js", "explorer_words.js", "explorer_charts.js", "explorer.js")
"""The scripts of the explorer, in their order."""
MAX_CLIENTS = 5000
"""Clients a page holds; of a larger fleet so many, evenly spread over its latencies."""


def fleet_data(fleet: Fleet, deadline_s: float, ensure_first_tier: bool, source: str) -> dict[str, Any]:
    """What `Explorer.mount` is given: the clients, where to begin, and in words where the fleet comes from.

    `num_clients` counts the whole fleet; the page says so where it holds only a part of it.
    """
    return {
        "clients": columns_of(fleet, spread(fleet, MAX_CLIENTS)),
        "num_clients": len(fleet),
        "deadline_s": deadline_s,
        "ensure_first_tier": ensure_first_tier,
        "source": source,
    }
