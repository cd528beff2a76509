"""SemiSync: D. Stripelis, J. L. Ambite, "Semi-Synchronous Federated Learning", 2021.

Every idle client starts in every round and trains as many steps as fit the hyper-period, at least one: with a step of
t_k = compute_s / local_steps seconds, B_k = ⌊λ·max_k(compute_s) / t_k⌋, λ = `period_factor`. The upload comes on top;
the latency is charged for both. The round closes when the last has arrived; all are merged, weighted by their data.

The paper's period is λ times the slowest learner's epoch; here it is λ times the longest of the usual local works,
`local_steps` minibatches or `local_epochs` as the scenario says. The paper, too, fits training alone into the period.
"""

from dataclasses import dataclass

import numpy as np

from lesson.errors import InputError
from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Stateless, Updates, average
from lesson.strategies.checks import check_connected, check_number
from lesson.tiers import TOLERANCE

MAX_STEPS = 10_000_000


@dataclass
class SemiSyncSteps(Stateless):
    """Everybody trains as many steps as fit the period."""

    period_factor: float = 2.0

    def __post_init__(self) -> None:
        check_number("period_factor", self.period_factor)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        starts = np.flatnonzero(view.idle)
        compute_s = view.compute_s[starts]
        if not np.all(compute_s > 0):
            raise InputError("semisync-steps needs compute_s > 0 of every client; add the column to the file")
        period_s = self.period_factor * compute_s.max(initial=0.0)
        steps = period_s / compute_s * view.local_steps[starts] * (1 + TOLERANCE)
        if np.any(steps > MAX_STEPS):
            raise InputError(
                f"semisync-steps would give client {starts[np.argmax(steps)]} {steps.max():.3g} steps a round, over "
                f"{MAX_STEPS}: the slowest client is too slow for it; leave it out or take a smaller period_factor"
            )
        return RoundPlan(starts, AllOf(starts), local_steps=np.maximum(1, steps.astype(np.int64)))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
