"""FedQueue: Y. Li et al., "FedQueue: Queue-Aware Federated Learning for Cross-Facility HPC Training", 2026. The rule is
that of APPFL, the authors' framework.

In every window of t_sync = `deadline_s`, all idle clients start, except those with an update that is carried over. With
q the server's estimate of a client's queue time, c that of the time of a step and θ = `margin_s`, the client takes
E = ⌊(t_sync − q − θ) / c⌋ local steps, at least `min_steps`, of size δ·E_min / E, where E_min is the smallest E of all
connected clients. The round closes when all clients have arrived, at most (1 + `overtime`)·t_sync after it opened. An
update that arrives more than α·t_sync later than expected, α = `cutoff`, is carried over to the next round, unless
nothing else can be aggregated. The others are aggregated: w ← w + Σ a·Δ with Δ = m − base and weights a in proportion
to n·s(d), for a staleness of d versions and n by `[training] weighting`. `staleness` selects s(d): harmonic,
1 / (1 + β·d); exponential, e^(−β·d).

Departures: jobs do not wait in queues here; the queue time of a client is its download and upload time. Estimates are
those of `[server] estimate`, not exponential means. Clients do not report their queue time, so the delay of an update
also includes computation that took longer than expected.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.validation import Flag, NotNegative, Positive
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import AllOf, CheckedOptions, Merge, RoundPlan, ServerView, Updates, scaled, shares
from lesson.strategies.shared import MAX_STEPS, Steps, check_compute_times, check_connected


@dataclass
class FedQueue(CheckedOptions):
    """Local work fits into a window; delayed updates are carried over to the next one."""

    deadline_s: Positive
    """Length t_sync of a window."""
    min_steps: Steps = 1
    """Least number of local steps."""
    margin_s: NotNegative = 0.0
    """Part θ of the window that is left free."""
    cutoff: NotNegative = 0.2
    """Share α of the window by which an update may be delayed without being carried over."""
    overtime: NotNegative = 0.15
    """Share of the window by which a round may exceed it."""
    staleness: Literal["harmonic", "exponential"] = "harmonic"
    """How the weight decreases with staleness."""
    beta: NotNegative = 0.5
    """Parameter β of the staleness function."""
    scale_lr: Flag = True
    """Whether clients that take more steps take smaller ones."""
    has_tiers: ClassVar[bool] = False

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        if view.round == 1:
            check_compute_times("fedqueue", view)
        connected = np.flatnonzero(view.connected)
        starting = view.idle[connected] & (view.waiting[connected] == 0)
        steps = self._steps(view, connected)
        lr_scale = steps.min(initial=np.iinfo(np.int64).max) / steps[starting] if self.scale_lr else 1.0
        return RoundPlan(
            connected[starting],
            AllOf(connected, by_s=view.now_s + (1 + self.overtime) * self.deadline_s),
            local_steps=steps[starting],
            lr_scale=lr_scale,
        )

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        delay_s = arrived.arrived_s - arrived.started_s - arrived.expected_s
        is_carried_over = arrived.base_version < view.version
        is_admitted = is_carried_over | (delay_s <= self.cutoff * self.deadline_s + TOLERANCE * arrived.arrived_s)
        taken = arrived[is_admitted] if is_admitted.any() else arrived
        weights = scaled(view.client_weight[taken.client]) * self._staleness_factor(view.version - taken.base_version)
        return Merge(taken.id, shares(weights), of="updates")

    def _steps(self, view: ServerView, clients: IntArray) -> IntArray:
        """Return E of each client; the usual number of steps if its compute time is 0 or unknown."""
        compute_s, usual = view.compute_s[clients], view.local_steps[clients]
        budget_s = self.deadline_s - self.margin_s - (view.latency_s[clients] - compute_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = budget_s / compute_s * usual * (1 + TOLERANCE)
        steps = np.where(np.isfinite(fitting), np.minimum(fitting, MAX_STEPS), usual)
        return np.maximum(steps.astype(np.int64), self.min_steps)

    def _staleness_factor(self, staleness: IntArray) -> FloatArray:
        """Return s(d) for each staleness d, up to a common factor, shape (num_updates,)."""
        if self.staleness == "harmonic":
            return np.asarray(1 / (1 + self.beta * staleness))
        # Relative to the smallest d, so that not all of them can be 0.
        return np.asarray(np.exp(-self.beta * (staleness - staleness.min(initial=np.iinfo(np.int64).max))))
