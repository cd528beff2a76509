"""FedCS as the LESSON paper compares with it (Yu et al., Section V): only tier 1, in rounds of τ seconds.

Clients that are expected to arrive within the deadline start in every round; the others never do. Round k closes at
k·τ. Updates that started and arrived in the round are aggregated, weighted by `[training] weighting`; late ones are
dropped.

FedCS as published by Nishio and Yonetani (2019) schedules uploads on a shared channel; that is `fedcs-greedy`.
"""

import math
from dataclasses import dataclass

import numpy as np

from lesson.core.errors import InputError
from lesson.fleet.tiers import assign_tiers, check_deadline
from lesson.strategies.base import Deadline, Merge, RoundPlan, ServerView, Stateless, Updates, average


@dataclass
class FedCS(Stateless):
    """Synchronous rounds of fixed length with the clients that meet the deadline.

    Args:
        deadline_s: Deadline τ in seconds, > 0 and finite: the length of a round.
    """

    deadline_s: float

    def __post_init__(self) -> None:
        if math.isinf(check_deadline(self.deadline_s)):
            raise InputError("deadline_s must be finite for fedcs, got inf; use fedavg to wait for all clients")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        ready = view.freed[view.idle[view.freed]]
        starts = ready[assign_tiers(view.latency_s[ready], self.deadline_s) == 1]
        if view.round == 1 and not len(starts) and not np.any(assign_tiers(view.latency_s, self.deadline_s) == 1):
            raise InputError(
                f"fedcs has no client to train: none meets deadline_s = {self.deadline_s:g}, the fastest takes "
                f"{view.latency_s.min():.4g} s; use a longer deadline, or set ensure_first_tier"
            )
        # With real clients, rounds may end late; from then on, each round lasts τ from its own start.
        on_time = view.now_s == (view.round - 1) * self.deadline_s
        return RoundPlan(starts, Deadline(view.round * self.deadline_s if on_time else view.now_s + self.deadline_s))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        in_time = arrived.started_round == view.round
        return average(view, arrived[in_time], drops=arrived.id[~in_time])
