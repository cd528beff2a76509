"""FedCS as the LESSON paper compares with it (Yu et al., Section V): only tier 1, in rounds of τ seconds.

Clients that are expected to arrive within the deadline start in every round; the others never do. Round k closes at
k·τ. Updates that started and arrived in the round are aggregated, weighted by `[training] weighting`; late ones are
dropped.

FedCS as published by Nishio and Yonetani (2019) schedules uploads on a shared channel; that is `fedcs-greedy`.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.errors import UnfitFleetError
from lesson.core.validation import Positive
from lesson.fleet.tiers import assign_tiers
from lesson.strategies.base import CheckedOptions, Every, Merge, RoundPlan, ServerView, Updates, average


@dataclass
class FedCS(CheckedOptions):
    """Synchronous rounds of fixed length with the clients that meet the deadline."""

    deadline_s: Positive
    """Deadline τ: the length of a round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        ready = view.to_consider[view.idle[view.to_consider]]
        starts = ready[assign_tiers(view.latency_s[ready], self.deadline_s) == 1]
        if view.round == 1 and not len(starts) and not np.any(assign_tiers(view.latency_s, self.deadline_s) == 1):
            raise UnfitFleetError(
                f"fedcs has no client to train: none meets deadline_s = {self.deadline_s:g}, the fastest takes "
                f"{view.latency_s.min():.4g} s; use a longer deadline, or set ensure_first_tier"
            )
        return RoundPlan(starts, Every(self.deadline_s))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        in_time = arrived.started_round == view.round
        return average(view, arrived[in_time], drops=arrived.id[~in_time])
