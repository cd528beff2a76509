"""A fleet as files and pages hold it: lists by name, with None for what is unknown or infinite."""

from typing import Any

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.fleet import Fleet

Columns = dict[str, list[Any] | None]


def columns_of(fleet: Fleet, chosen: IntArray) -> Columns:
    """Names, places, seconds and joules of some clients; places or joules that nobody knows of any are None."""
    people, columns = fleet.population, Columns(name=[fleet.names[client] for client in chosen.tolist()])
    for name in ("x_km", "y_km"):
        columns[name] = None if people is None else known(getattr(people, name)[chosen])
    for name in ("compute_s", "upload_s", "latency_s"):
        columns[name] = known(getattr(fleet, name)[chosen])
    for name in ("compute_j", "transmit_j"):
        joules: FloatArray = getattr(fleet, name)
        columns[name] = None if np.all(np.isnan(joules)) else known(joules[chosen])
    return columns


def spread(fleet: Fleet, most: int) -> IntArray:
    """All clients, or so many of them: every so many-th by latency, the fastest and the slowest among them, sorted."""
    if len(fleet) <= most:
        return np.arange(len(fleet))
    order = np.argsort(fleet.latency_s, kind="stable")
    return np.sort(order[np.linspace(0, len(fleet) - 1, most).round().astype(np.int64)])


def known(values: FloatArray) -> list[float | None]:
    """Numbers as JSON takes them."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
