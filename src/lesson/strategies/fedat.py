"""FedAT: Z. Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
Asynchronous Tiers", 2021.

Clients sorted by latency are cut into M = `num_tiers` tiers of equal numbers, to one (by default into five, or into one
per client where there are fewer). A tier whose clients are all idle
starts, with `fraction` of them drawn uniformly, at least one. A round closes when everybody of some tier has arrived;
their models, weighted by data, become the tier's model. The new global model is Σ_m T_(M+1−m) / T · (tier m's model),
where T_m counts how often tier m has reported and T all reports, so that tiers that report rarely weigh more.

As the formula has it, a tier that never reported stands in with the initial model, so that the first report of the
fastest tier gives all the weight to the slowest tier's initial model. Tiers that report at the same moment make one
version, the same as one after the other. The paper compresses models, which is left out here, and adds a penalty
λ/2·‖w_k − w‖² to the local objective, which is the scenario's `proximal_mu`.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lesson.core.arrays import NO_CLIENTS, IntArray
from lesson.strategies.base import AnyOf, GroupMemory, Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.checks import check_connected, check_count, check_number, count_of, cut_tiers, draw_share

USUAL_TIERS = 5


@dataclass
class FedAT:
    """Tiers go on by themselves; those that report rarely weigh more."""

    num_tiers: int | None = None
    """None: 5, or the number of reachable clients when the first round opens, if that is less."""
    fraction: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset()
    _num_reports: list[int] = field(default_factory=list, init=False, repr=False)
    """T_m of each tier, the fastest first; empty before the tiers are made."""
    _members: list[IntArray] = field(default_factory=list, init=False, repr=False)
    _tier_of: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_tiers is not None:
            check_count("num_tiers", self.num_tiers)
        check_number("fraction", self.fraction, most=1)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, num_tiers=self.num_tiers)
        resting = [self._members[tier] for tier in self._resting(view, view.freed)]
        drawn = [draw_share(members[view.idle[members]], self.fraction, rng) for members in resting]
        return RoundPlan(np.sort(np.concatenate([NO_CLIENTS, *drawn])), AnyOf(self._members))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        reporting = self._resting(view, arrived.client)
        taken = arrived[np.isin(self._tier_of[arrived.client], reporting)]
        if not len(taken):
            return Merge(taken.id, view.client_weight[taken.client])
        for tier in reporting:
            self._num_reports[tier] += 1
        tiers, weights = self._tier_of[taken.client], view.client_weight[taken.client]
        tier_weights = [count / sum(self._num_reports) for count in reversed(self._num_reports)]
        groups = GroupMemory(
            [_name(tier) for tier in tiers], {_name(tier): share for tier, share in enumerate(tier_weights)}
        )
        return Merge(taken.id, shares(weights, tiers), groups=groups)

    def state(self) -> dict[str, Any]:
        return {"num_reports": list(self._num_reports)}

    def restore(self, state: dict[str, Any]) -> None:
        self._num_reports = list(state["num_reports"])

    def _resting(self, view: ServerView, clients: IntArray) -> list[int]:
        """The tiers of these clients in which nobody works."""
        if not self._members or np.any(self._tier_of[clients] < 0):  # at first, and when somebody comes who is in none
            self._num_reports = self._num_reports or [0] * count_of(self.num_tiers, USUAL_TIERS, view)
            self._members = cut_tiers(view, len(self._num_reports))
            self._tier_of = np.full(len(view.latency_s), -1)
            for tier, members in enumerate(self._members):
                self._tier_of[members] = tier
        working = view.connected & ~view.idle
        return [int(tier) for tier in np.unique(self._tier_of[clients]) if not np.any(working[self._members[tier]])]


def _name(tier: int) -> str:
    return f"tier {tier + 1}"
