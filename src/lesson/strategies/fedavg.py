"""FedAvg: B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.

In every round, max(1, round(C·n)) of the n connected clients start, drawn uniformly; C = `fraction` is 1 by default.
The round closes when the last update has arrived. All updates are aggregated, weighted by `[training] weighting`. No
update is ever stale, and a round lasts as long as its slowest client takes.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.validation import Fraction
from lesson.strategies.base import AllOf, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import draw_share


@dataclass
class FedAvg(CheckedOptions):
    """Synchronous rounds that wait for all clients, or for a random fraction of them."""

    fraction: Fraction = 1.0
    """Fraction C of the connected clients that start in a round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        starts = draw_share(np.flatnonzero(view.idle), self.fraction, rng)
        return RoundPlan(starts, AllOf(starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
