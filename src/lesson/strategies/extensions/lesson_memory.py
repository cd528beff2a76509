"""LESSON with a memory, an extension of L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware Semi-synchronous Client
Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py) that is not in the paper.

Clients start, rounds close and updates are due as in LESSON. The server keeps the latest update of each tier: the mean
of its clients' updates, weighted by `[training] weighting`. In every round it applies the latest updates of all tiers,
whether or not they are due, each weighted by its tier's share of the total client weight; a tier contributes nothing
before its first slot. Slow tiers thus keep their influence between slots. Because the update of tier j is applied j
times, the step size is δ in every tier; `scaling` makes it j·δ, Eq. (12), in addition.

A client stays in the tier of its first latency estimate; a client that joins later is assigned to a tier then.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.tiers import UNREACHABLE, assign_tiers
from lesson.strategies.base import GroupMemory, Merge, ServerView, Updates, scaled, shares
from lesson.strategies.lesson import Lesson


@dataclass
class LessonMemory(Lesson):
    """LESSON that applies the latest update of every tier in every round.

    The other options are those of `Lesson`.

    Args:
        scaling: Whether clients of tier j also use step size j·δ, Eq. (12), instead of δ.
    """

    scaling: bool = False
    _filled: set[int] = field(default_factory=set, init=False)
    """Tiers of which updates have been aggregated."""
    _tier_of: IntArray | None = field(default=None, init=False, repr=False)
    """Tier of each client, shape (num_clients,); None before it is needed."""
    _share: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """Share of each tier in the total client weight."""
    _counted: FloatArray = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    """Client weights from which the shares were computed."""

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        due, drops = self._due(view, arrived)
        tiers, places = np.unique(self._tiers(view, due.client), return_inverse=True)
        self._filled |= set(tiers.tolist())
        groups = GroupMemory(
            names=[str(tier) for tier in tiers[places]],
            weights={str(tier): self._share[tier] for tier in sorted(self._filled & self._share.keys())},
        )
        return Merge(due.id, shares(view.client_weight[due.client], places), of="updates", groups=groups, drops=drops)

    def state(self) -> dict[str, Any]:
        tier_of = None if self._tier_of is None else self._tier_of.tolist()
        return super().state() | {"filled": sorted(self._filled), "tier_of": tier_of}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._filled = set(state["filled"])
        self._tier_of = None if state["tier_of"] is None else np.array(state["tier_of"], dtype=np.int64)

    def _tiers(self, view: ServerView, clients: IntArray) -> IntArray:
        """Return the tier of each of these clients, shape (len(clients),), after updating the shares of tiers."""
        fresh = not len(self._counted)
        if self._tier_of is None or np.any(self._tier_of[clients] == UNREACHABLE):
            now, fresh = assign_tiers(view.first_latency_s, self.deadline_s), True
            self._tier_of = now if self._tier_of is None else np.where(self._tier_of == UNREACHABLE, now, self._tier_of)
        if fresh or np.any(self._counted[clients] != view.client_weight[clients]):  # real clients report their weights
            self._counted = view.client_weight.copy()
            tiers, places = np.unique(self._tier_of, return_inverse=True)
            reachable = tiers != UNREACHABLE
            sums = np.bincount(places, scaled(self._counted))[reachable]
            self._share = dict(zip(tiers[reachable].tolist(), shares(sums).tolist(), strict=True))
        return self._tier_of[clients]
