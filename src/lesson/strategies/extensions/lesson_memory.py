"""LESSON with a memory, an extension of L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware Semi-synchronous Client
Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py) that is not in the paper.

Who starts, what closes a round and who is due are LESSON's. The server keeps the latest update of each tier, the mean
by data of how far its clients moved from the model they started with. In every round it applies all of them, whether
their tier was due or not, each weighted by its tier's share of all data; before its first slot a tier adds nothing.
So slow tiers are never forgotten between their slots, and as tier j's update is applied j times, the step size is δ for
everybody; `scaling` makes it j·δ, Eq. (12), as well.

A client stays in the tier it was first estimated to be in; one that comes later gets one then.
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
    """LESSON that applies the latest update of every tier in every round."""

    scaling: bool = False
    _filled: set[int] = field(default_factory=set, init=False)
    """Tiers that have been merged."""
    _tier_of: IntArray | None = field(default=None, init=False, repr=False)
    _share: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """The tier of each client and what each tier counts for, found in the first round that asks."""
    _counted: FloatArray = field(default_factory=lambda: np.empty(0), init=False, repr=False)
    """What each client counted for then."""

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
        return super().state() | {"filled": sorted(self._filled)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._filled = set(state["filled"])

    def _tiers(self, view: ServerView, clients: IntArray) -> IntArray:
        """The tier of each of these clients, (len(clients),); shares are those of what clients count for now."""
        fresh = self._tier_of is None or bool(np.any(self._tier_of[clients] == UNREACHABLE))
        if self._tier_of is None or fresh:
            now = assign_tiers(view.first_latency_s, self.deadline_s)
            self._tier_of = now if self._tier_of is None else np.where(self._tier_of == UNREACHABLE, now, self._tier_of)
        if fresh or np.any(self._counted[clients] != view.client_weight[clients]):  # real clients say what they have
            self._counted = view.client_weight.copy()
            tiers, places = np.unique(self._tier_of, return_inverse=True)
            reachable = tiers != UNREACHABLE
            sums = np.bincount(places, scaled(self._counted))[reachable]
            self._share = dict(zip(tiers[reachable].tolist(), shares(sums).tolist(), strict=True))
        return self._tier_of[clients]
