"""LESSON: L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware Semi-synchronous Client Selection and Model Aggregation
for Wireless Federated Learning".

Whoever was merged last starts again, with its tier as the factor of its step size, Eq. (12). Round k closes at k·τ. A
client of tier j is due j rounds after its start, which is k % j == 0, Eq. (8), while tiers stay; an early reply waits
until then, a late one is taken when it comes or dropped. All that are due are merged, weighted by their data, Eq. (10).

If everybody starts together in tier 1, the round closes at the last arrival: τ → ∞ is FedAvg in model and in time.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from lesson.errors import InputError
from lesson.strategies.base import AllOf, Deadline, Merge, RoundPlan, ServerView, Updates, average
from lesson.tiers import UNREACHABLE, assign_tiers, check_deadline


@dataclass
class Lesson:
    """Tier j uploads every j rounds."""

    deadline_s: float
    late: Literal["merge", "drop"] = "merge"
    needs: ClassVar[frozenset[str]] = frozenset()
    _grid_s: float = field(default=0.0, init=False)
    _grid_round: int = field(default=1, init=False)
    """Where the grid of round ends begins: its start time and first round. Moved by a round that closed early."""

    def __post_init__(self) -> None:
        check_deadline(self.deadline_s)
        if self.late not in ("merge", "drop"):
            raise InputError(f"late must be 'merge' or 'drop', got {self.late!r}")

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        ready = view.freed[view.idle[view.freed] & (view.waiting[view.freed] == 0)]
        tiers = assign_tiers(view.latency_s[ready], self.deadline_s)
        starts, tiers = ready[tiers != UNREACHABLE], tiers[tiers != UNREACHABLE]
        if view.now_s != self._round_start_s(view.round):
            self._grid_s, self._grid_round = view.now_s, view.round
        end_s = self._round_start_s(view.round + 1)
        everybody_in_tier_1 = len(starts) == view.num_connected and tiers.max(initial=1) == 1
        closes = AllOf(starts, by_s=end_s) if everybody_in_tier_1 else Deadline(end_s)
        return RoundPlan(starts, closes, lr_scale=tiers.astype(np.float64))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        rounds_passed = view.round - arrived.started_round + 1
        tiers = assign_tiers(arrived.expected_s, self.deadline_s)
        due = tiers <= rounds_passed
        late = tiers < rounds_passed
        if self.late == "drop":
            return average(view, arrived[due & ~late], drops=arrived.id[late])
        return average(view, arrived[due])

    def state(self) -> dict[str, Any]:
        return {"grid_s": self._grid_s, "grid_round": self._grid_round}

    def restore(self, state: dict[str, Any]) -> None:
        self._grid_s, self._grid_round = state["grid_s"], state["grid_round"]

    def _round_start_s(self, round: int) -> float:
        """A multiple of τ, never a running sum."""
        rounds = round - self._grid_round
        return self._grid_s + rounds * self.deadline_s if rounds else self._grid_s
