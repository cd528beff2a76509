"""SemiSync: D. Stripelis, J. L. Ambite, "Semi-Synchronous Federated Learning", 2021.

In every round, all idle clients start and train for as many steps as fit into the hyper-period, at least one: with
t_k = compute_s / local_steps seconds per step, B_k = ⌊λ·max_k(compute_s) / t_k⌋, where λ = `period_factor`. The upload
takes additional time. The round closes when the last update has arrived; all updates are aggregated, weighted by
`[training] weighting`.

The paper's period is λ times the slowest learner's epoch; here it is λ times the longest of the usual local trainings,
which `local_steps` or `local_epochs` in `[training]` define. As in the paper, only training has to fit into the period.
If a trace has a compute time of 0 during a run, or one so short that more than MAX_STEPS steps would fit, the client
trains its usual number of steps: such an estimate says nothing about the next local training.
"""

from dataclasses import dataclass

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.validation import Positive
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import AllOf, CheckedOptions, Merge, RoundPlan, ServerView, Updates, average
from lesson.strategies.shared import MAX_STEPS, check_compute_times, check_connected


@dataclass
class SemiSyncSteps(CheckedOptions):
    """All clients train for the same period, each with as many steps as fit."""

    period_factor: Positive = 2.0
    """Length λ of the period, in units of the slowest client's usual compute time."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        if view.round == 1:
            self._check(view)
        starts = np.flatnonzero(view.idle)
        steps, usual = self._fitting(view, starts), view.local_steps[starts]
        steps = np.where(steps <= MAX_STEPS, steps, usual)
        return RoundPlan(starts, AllOf(starts), local_steps=np.maximum(1, steps.astype(np.int64)))

    def _fitting(self, view: ServerView, clients: IntArray) -> FloatArray:
        """Return how many steps fit into the period, not rounded; inf or NaN if the compute time is 0 or unknown."""
        compute_s = view.compute_s[clients]
        period_s = self.period_factor * compute_s.max(initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(period_s / compute_s * view.local_steps[clients] * (1 + TOLERANCE))

    def _check(self, view: ServerView) -> None:
        """Raise if a reachable client, connected or not, has no compute time > 0, or would train too many steps."""
        check_compute_times("semisync-steps", view)
        reachable = np.flatnonzero(np.isfinite(view.latency_s))
        steps = self._fitting(view, reachable)
        if np.any(steps > MAX_STEPS):
            raise InputError(
                f"semisync-steps would give client {reachable[np.argmax(steps)]} {steps.max():.3g} steps per round, "
                f"more than {MAX_STEPS}: the slowest client is too slow for it; remove that client or use a smaller "
                "period_factor"
            )

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return average(view, arrived)
