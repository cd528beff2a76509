"""LESSON for server optimizers, an extension of L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware
Semi-synchronous Client Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py) that is not in
the paper.

Clients start, rounds close and updates are due as in LESSON. But clients do not idle until their slot ends: a client of
tier j uses all of its j·τ seconds. It takes one step, of size δ in every tier, with the mean gradient of as many
minibatches as fit, max(1, ⌊(j·τ − upload − download) / compute⌋), but at most one per sample it holds. No time is
wasted, and updates are less noisy, which is what an adaptive optimizer needs most.

Due updates are added to the newest model, weighted by `[training] weighting` and 1 / j^`discount`: an optimizer with
momentum continues in the direction of an update long after it was applied, so stale updates do more harm than the data
of slow clients does good. Choose τ so that most clients are in tier 1.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.core.validation import Flag
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.lesson import Lesson


@dataclass
class LessonFilled(Lesson):
    """LESSON whose clients train until their slot ends, for server optimizers."""

    scaling: Flag = False
    """Whether clients of tier j use step size j·δ, Eq. (12), instead of δ."""
    discount: Annotated[float, Field(ge=0, le=100, strict=True)] = 2.0
    """Exponent of the weight 1 / j^discount of an update of tier j."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        if view.round == 1 and np.any(view.local_steps != 1):
            raise InputError(
                "lesson-filled takes one step on several minibatches: set local_steps = 1 and local_epochs = 0"
            )
        plan = super().open_round(view, rng)
        return replace(plan, batches=self._fitting(view, plan))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        due, drops = self._due(view, arrived)
        # Relative to the fastest due tier: weights must not underflow to 0 if only slow tiers are due.
        slower = due.tier / due.tier.min() if len(due) else np.ones(0)
        weights = view.client_weight[due.client] * np.float_power(slower, -self.discount)
        return Merge(due.id, shares(weights), of="updates", drops=drops)

    def _fitting(self, view: ServerView, plan: RoundPlan) -> IntArray:
        """Return how many minibatches fit into each client's slot: at least 1, at most its number of samples."""
        clients = plan.starts
        assert plan.tiers is not None, "plans of LESSON have tiers"
        upload_s = view.upload_s[clients]
        if isinstance(plan.compression, np.ndarray):
            bits = np.array([view.level_bits[level] for level in plan.compression.tolist()])
            upload_s = bits / view.upload_bits * upload_s
        with np.errstate(divide="ignore"):
            rooms = (plan.tiers * self.deadline_s - upload_s - view.download_s[clients]) / view.compute_s[clients]
        fitting = np.clip(np.nan_to_num(rooms * (1 + TOLERANCE), nan=1.0), 1, np.maximum(1, view.num_samples[clients]))
        return np.floor(fitting).astype(np.int64)
