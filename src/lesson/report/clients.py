"""The stored clients of a run, as figures and pages show them: with actual latencies, and in tiers by the deadline."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.tiers import assign_tiers, client_to_promote
from lesson.settings.settings import Settings

if TYPE_CHECKING:  # it takes a while to import
    from lesson.experiments.run import Run

_TIMES = ("compute_s", "upload_s", "latency_s")


def stored_clients(run: "Run") -> dict[str, Any]:
    """Return the stored clients; a promoted one has its actual latency instead of its assumed one. Empty if unknown."""
    kept = run.read_clients()
    promoted = kept.get("promoted")
    if promoted is None or promoted["client"] not in kept["clients"]["number"]:
        return kept
    place, columns = kept["clients"]["number"].index(promoted["client"]), dict(kept["clients"])
    factor = promoted["latency_s"] / columns["latency_s"][place]
    for name in _TIMES:
        values = list(columns[name])
        values[place] = values[place] and values[place] * factor
        columns[name] = values
    return kept | {"clients": columns}


def values_of(columns: dict[str, list[Any] | None], name: str, unknown: float = math.nan) -> FloatArray:
    """Return a column of stored clients as numbers, with `unknown` for values that are not known."""
    column = columns[name] or [None] * len(columns["name"] or [])
    return np.array([unknown if value is None else value for value in column], dtype=float)


def tiers_of(kept: dict[str, Any], settings: Settings) -> IntArray:
    """Return the tier of each client by the deadline, even if the strategy has no tiers; 0 for unknown latencies."""
    seconds, chosen = values_of(kept["clients"], "latency_s", math.inf), settings.strategy
    tiers = assign_tiers(seconds, chosen.deadline_s)
    promoted = client_to_promote(seconds, chosen.deadline_s, chosen.ensure_first_tier)
    if promoted is not None:
        tiers[promoted] = 1
    return tiers
