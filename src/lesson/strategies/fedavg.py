"""FedAvg: B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.

max(1, round(C·n)) of the n connected clients, C = `fraction`, drawn uniformly, start in every round; by default all.
The round closes when the last of them has arrived. All of them are merged, weighted by their data. Nobody is ever
stale, and a round lasts as long as its slowest client takes.
"""

from dataclasses import dataclass

import numpy as np

from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Stateless, Updates, average
from lesson.strategies.checks import check_number, draw_share


@dataclass
class FedAvg(Stateless):
    """Wait for everybody, or for those drawn."""

    fraction: float = 1.0

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, most=1)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        starts = draw_share(np.flatnonzero(view.idle), self.fraction, rng)
        return RoundPlan(starts, AllOf(starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
