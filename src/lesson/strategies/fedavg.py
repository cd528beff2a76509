"""FedAvg: B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.

Every idle client starts in every round. The round closes when the last of them has arrived. All of them are merged,
weighted by their data. Nobody is ever stale, and a round lasts as long as the slowest client takes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Updates, average


@dataclass
class FedAvg:
    """Wait for everybody."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        starts = np.flatnonzero(view.idle)
        return RoundPlan(starts, AllOf(starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
