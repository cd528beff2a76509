"""LESSON for servers with an optimizer, an extension of L. Yu, X. Sun, R. Albelaihi, C. Yi, "Latency Aware
Semi-synchronous Client Selection and Model Aggregation for Wireless Federated Learning" (see lesson.py) that is not in
the paper.

Who starts, what closes a round and who is due are LESSON's. But clients do not wait for their slots: one of tier j uses
all of its j·τ seconds, with a step of as many minibatches as fit beside the upload, max(1, ⌊(j·τ − upload) / compute⌋)
of them but at most one per sample it holds, whose mean gradient makes the step, of size δ for everybody. So nobody's
time is lost, and updates are less noisy, which is what an adaptive optimizer needs most.

What is due is applied to the newest model as updates, weighted by data / j^`discount`: an optimizer with momentum goes
on along an update long after it was applied, so that stale ones harm it more than the data of slow clients help. Take τ
so that most clients are in tier 1.
"""

from dataclasses import dataclass, replace

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.fleet.tiers import TOLERANCE, assign_tiers
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates, shares
from lesson.strategies.checks import check_number
from lesson.strategies.lesson import Lesson


@dataclass
class LessonFilled(Lesson):
    """LESSON whose clients fill their slots with work, for server optimizers."""

    scaling: bool = False
    discount: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("discount", self.discount, most=100, or_zero=True)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        if view.round == 1 and np.any(view.local_steps != 1):
            raise InputError(
                "lesson-filled makes one step of several minibatches: take local_steps 1 and local_epochs 0"
            )
        plan = super().open_round(view, rng)
        return replace(plan, batches=self._fitting(view, plan.starts))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        due, drops = self._due(view, arrived)
        tiers = assign_tiers(due.expected_s, self.deadline_s)
        # Relative to the fastest that is due, as a large power would leave nothing of a tier that is due alone.
        slower = tiers / tiers.min() if len(due) else np.ones(0)
        weights = view.client_weight[due.client] * np.float_power(slower, -self.discount)
        return Merge(due.id, shares(weights), of="updates", drops=drops)

    def _fitting(self, view: ServerView, clients: IntArray) -> IntArray:
        """How many minibatches each of these clients has time for in its slot, at most one per sample it holds."""
        slots_s = assign_tiers(view.latency_s[clients], self.deadline_s) * self.deadline_s
        with np.errstate(divide="ignore"):
            rooms = (slots_s - view.upload_s[clients] - view.download_s[clients]) / view.compute_s[clients]
        fitting = np.clip(np.nan_to_num(rooms * (1 + TOLERANCE), nan=1.0), 1, np.maximum(1, view.num_samples[clients]))
        return np.floor(fitting).astype(np.int64)
