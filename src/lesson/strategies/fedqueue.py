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
from typing import ClassVar, Literal, get_args

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import AllOf, Merge, RoundPlan, ServerView, Stateless, Updates, scaled, shares
from lesson.strategies.checks import (
    MAX_STEPS,
    check_compute_times,
    check_connected,
    check_count,
    check_flag,
    check_number,
)

Staleness = Literal["harmonic", "exponential"]


@dataclass
class FedQueue(Stateless):
    """Local work fits into a window; delayed updates are carried over to the next one.

    Args:
        deadline_s: Length t_sync of a window in seconds, > 0.
        min_steps: Least number of local steps, >= 1 and <= 10,000,000.
        margin_s: Part θ of the window in seconds that is left free, >= 0.
        cutoff: Share α of the window by which an update may be delayed without being carried over, >= 0.
        overtime: Share of the window by which a round may exceed it, >= 0.
        staleness: How the weight decreases with staleness: "harmonic" or "exponential".
        beta: Parameter β of the staleness function, >= 0.
        scale_lr: Whether clients that take more steps take smaller ones.
    """

    deadline_s: float
    min_steps: int = 1
    margin_s: float = 0.0
    cutoff: float = 0.2
    overtime: float = 0.15
    staleness: Staleness = "harmonic"
    beta: float = 0.5
    scale_lr: bool = True
    has_tiers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("deadline_s", self.deadline_s)
        check_count("min_steps", self.min_steps, most=MAX_STEPS)
        for name in ("margin_s", "cutoff", "overtime", "beta"):
            check_number(name, getattr(self, name), or_zero=True)
        if self.staleness not in get_args(Staleness):
            raise InputError(f"staleness must be one of {', '.join(get_args(Staleness))}, got {self.staleness!r}")
        check_flag("scale_lr", self.scale_lr)

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
        weights = scaled(view.client_weight[taken.client]) * self._kept(view.version - taken.base_version)
        return Merge(taken.id, shares(weights), of="updates")

    def _steps(self, view: ServerView, clients: IntArray) -> IntArray:
        """Return E of each client; the usual number of steps if its compute time is 0 or unknown."""
        compute_s, usual = view.compute_s[clients], view.local_steps[clients]
        budget_s = self.deadline_s - self.margin_s - (view.latency_s[clients] - compute_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            fitting = budget_s / compute_s * usual * (1 + TOLERANCE)
        steps = np.where(np.isfinite(fitting), np.minimum(fitting, MAX_STEPS), usual)
        return np.maximum(steps.astype(np.int64), self.min_steps)

    def _kept(self, staleness: IntArray) -> FloatArray:
        """Return s(d) for each staleness d, up to a common factor, shape (num_updates,)."""
        if self.staleness == "harmonic":
            return np.asarray(1 / (1 + self.beta * staleness))
        # Relative to the smallest d, so that not all of them can be 0.
        return np.asarray(np.exp(-self.beta * (staleness - staleness.min(initial=np.iinfo(np.int64).max))))
