"""FedAvg: B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.

In every round, max(1, round(C·n)) of the n connected clients start, drawn uniformly; C = `fraction` is 1 by default.
The round closes when the last update has arrived. All updates are aggregated, weighted by `[training] weighting`. No
update is ever stale, and a round lasts as long as its slowest client takes.
"""

from dataclasses import dataclass

import numpy as np

from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Stateless, Updates, average
from lesson.strategies.checks import check_number, draw_share


@dataclass
class FedAvg(Stateless):
    """Synchronous rounds that wait for all clients, or for a random fraction of them.

    Args:
        fraction: Fraction C of the connected clients that start in a round, > 0 and <= 1.
    """

    fraction: float = 1.0

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, most=1)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        starts = draw_share(np.flatnonzero(view.idle), self.fraction, rng)
        return RoundPlan(starts, AllOf(starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
