"""FedAT: Z. Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
Asynchronous Tiers", 2021.

Clients are divided by latency into M = `num_tiers` tiers whose sizes differ by at most one (by default five, or one per
client in smaller fleets). When no client of a tier is busy, `fraction` of its clients start, drawn uniformly, at least
one. A round closes when all updates of some tier have arrived; the mean of their models, weighted by `[training]
weighting`, becomes the tier's model. The new global model is Σ_m T_(M+1−m) / T · (tier m's model), where T_m is the
number of reports of tier m and T that of all tiers, so that tiers that report rarely weigh more.

As the formula implies, a tier that has not reported contributes the initial model, so the first report of the fastest
tier gives all the weight to the slowest tier, which still has the initial model. Tiers that report at the same time
create one version, which is the same as if they reported one after the other. The paper also compresses models, which
is left out here, and adds a penalty λ/2·‖w_k − w‖² to the local objective, which is `[training] proximal_mu` here.
"""

from dataclasses import dataclass, field

import numpy as np

from lesson.core.arrays import NO_CLIENTS, IntArray
from lesson.core.validation import Count, Fraction
from lesson.strategies.base import AnyOf, CheckedOptions, GroupMemory, Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.shared import check_connected, count_of, cut_tiers, draw_share

USUAL_TIERS = 5


@dataclass
class FedAT(CheckedOptions):
    """Asynchronous tiers; those that report rarely have more weight."""

    num_tiers: Count | None = None
    """Number M of tiers. None: 5, or the number of reachable clients in the first round if that is less."""
    fraction: Fraction = 1.0
    """Fraction of a tier's clients that start together."""
    _num_reports: list[int] = field(default_factory=list, init=False, repr=False)
    """T_m of each tier, fastest first; empty before the tiers are formed."""
    _members: list[IntArray] = field(default_factory=list, init=False, repr=False)
    _tier_of: IntArray = field(default_factory=lambda: NO_CLIENTS, init=False, repr=False)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view, num_tiers=self.num_tiers)
        resting = [self._members[tier] for tier in self._resting(view, view.to_consider)]
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

    def _resting(self, view: ServerView, clients: IntArray) -> list[int]:
        """Return those tiers of these clients in which no client is busy."""
        if not self._members or np.any(self._tier_of[clients] < 0):  # at first, and when a new client joins
            self._num_reports = self._num_reports or [0] * count_of(self.num_tiers, USUAL_TIERS, view)
            self._members = cut_tiers(view, len(self._num_reports))
            self._tier_of = np.full(len(view.latency_s), -1)
            for tier, members in enumerate(self._members):
                self._tier_of[members] = tier
        return [int(tier) for tier in np.unique(self._tier_of[clients]) if not np.any(view.busy[self._members[tier]])]


def _name(tier: int) -> str:
    return f"tier {tier + 1}"
