"""Who took part in a run: where each client was, how fast, and how good the final model is on data like its own."""

from typing import Any

import numpy as np

from lesson.arrays import FloatArray, IntArray
from lesson.fleet import Fleet
from lesson.learn.learner import Learner
from lesson.simulate import Simulation

MAX_CLIENTS = 2000
"""Beyond, so many of them are written down, evenly from first to last."""


def clients_of(simulation: Simulation, learner: Learner) -> dict[str, Any]:
    """The clients of a run that has ended, as strict JSON takes it: what is unknown or infinite is None."""
    fleet, by_class = simulation.fleet, learner.class_accuracy(simulation.version)
    chosen = evenly(len(fleet), MAX_CLIENTS)
    shares = learner.class_shares(chosen, len(by_class))
    # On test images mixed as its own data are: a class it has none of does not count.
    accuracy = np.where(shares > 0, shares * by_class, 0.0).sum(axis=1)
    accuracy[shares.sum(axis=1) == 0] = np.nan
    return {
        "num_clients": len(fleet),
        "class_accuracy": known(by_class),
        "promoted": None if fleet.promoted is None else vars(fleet.promoted),
        "clients": {
            "number": chosen.tolist(),
            **columns_of(fleet, chosen),
            "num_samples": fleet.num_samples[chosen].tolist(),
            "accuracy": known(accuracy),
        },
    }


def columns_of(fleet: Fleet, chosen: IntArray) -> dict[str, list[Any] | None]:
    """What there is to know of some clients of a fleet; None for what nobody knows of any."""
    columns: dict[str, list[Any] | None] = {"name": [fleet.names[client] for client in chosen.tolist()]}
    people = fleet.population
    for name in ("x_km", "y_km"):
        columns[name] = None if people is None else known(getattr(people, name)[chosen])
    for name in ("compute_s", "upload_s", "latency_s", "compute_j", "transmit_j"):
        values = known(getattr(fleet, name)[chosen])
        columns[name] = values if any(value is not None for value in values) else None
    return columns


def evenly(count: int, most: int) -> IntArray:
    """All numbers below `count`, or so many of them, evenly."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def known(values: FloatArray) -> list[float | None]:
    """Numbers as JSON takes them."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
