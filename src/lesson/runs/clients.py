"""Who took part in a run: where each client was, how fast, and how good the final model is on data like its own."""

from typing import Any

import numpy as np

from lesson.clock.simulate import Simulation
from lesson.fleet.columns import columns_of, known, spread
from lesson.learn.learner import Learner

MAX_CLIENTS = 2000
"""Of a larger fleet so many are written down, evenly spread over their latencies."""


def clients_of(simulation: Simulation, learner: Learner) -> dict[str, Any]:
    """The clients of a run that has ended, as strict JSON takes it: what is unknown or infinite is None."""
    fleet, by_class = simulation.fleet, learner.class_accuracy(simulation.version)
    chosen = spread(fleet, MAX_CLIENTS)
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
