"""FedAvg: B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.

In every round, max(1, round(C·n)) of the n connected clients start, C = `fraction`, or K = `clients_per_round`; by
default, all. They are drawn uniformly, or selected by one of the rules in `strategies/scheduling.py`. The round closes
when the last update has arrived. All updates are aggregated, weighted by `[training] weighting`. No update is ever
stale, and a round lasts as long as its slowest client takes.
"""

from dataclasses import dataclass, field

import numpy as np

from lesson.core.errors import InputError
from lesson.core.validation import Count, Fraction
from lesson.strategies.base import AllOf, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.scheduling import Rule, Scheduler
from lesson.strategies.shared import share_of


@dataclass
class FedAvg(CheckedOptions):
    """Synchronous rounds that wait for all clients, or for some of them."""

    fraction: Fraction = 1.0
    """Fraction C of the connected clients that start in a round."""
    clients_per_round: Count | None = None
    """Number K of clients that start in a round. None: as `fraction` says."""
    select: Rule = "random"
    """Which clients start: drawn uniformly, in turn, those with the highest data rates, those whose rates are highest
    relative to their mean, or those whose last aggregated update is the oldest."""
    _scheduler: Scheduler = field(default_factory=Scheduler, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients_per_round is not None and self.fraction != 1.0:
            raise InputError(f"clients_per_round must be unset if fraction is given, got {self.clients_per_round}")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        idle = np.flatnonzero(view.idle)
        count = share_of(len(idle), self.fraction) if self.clients_per_round is None else self.clients_per_round
        starts = self._scheduler.select(self.select, idle, count, view, rng)
        return RoundPlan(starts, AllOf(starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        self._scheduler.note(arrived, view.round)
        return average(view, arrived)
