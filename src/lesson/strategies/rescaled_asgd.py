"""Rescaled ASGD: A. Mahran, A. Maranjyan, P. Richtárik, "Rescaled Asynchronous SGD: Optimal Distributed Optimization
under Data and System Heterogeneity", 2026, arXiv:2605.13434.

All connected clients train all the time: a client starts from the newest model as soon as its update has arrived. A
round closes with the next arrival, which is added to the model at once: w ← w + η·(t / t̄)·Δ, with η = `server_lr` and
Δ = m − base. The step is in proportion to the time t from the start of the client to the arrival of its update, so each
client contributes the same total step size over a period, no matter how often it reports. The step size j·δ of LESSON,
Eq. (12), is this rule with t rounded up to a multiple of τ.

Source: the abstract of the paper, which states the proportion but not its constant. t̄ is the mean latency of the
reachable clients in the first round: each client contributes η in t̄ seconds. On Flower, a client whose latency is not
given counts with the deadline, so give latencies. Updates that arrive at the same time create a single version.

Departures: the paper's workers compute single stochastic gradients and communicate in no time; here, an update is the
usual local training, and t includes download and upload, because it determines how often a client reports. The paper
knows fixed times in advance; here, t is the time that the update actually took. Updates that arrive at the same time
create a single version. On Flower, a client whose latency is not given counts as if it took the deadline.
"""

from dataclasses import dataclass, field

import numpy as np

from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates
from lesson.strategies.shared import StepPerArrival


@dataclass
class RescaledASGD(StepPerArrival):
    """Every update is added to the model on arrival, with a weight in proportion to the time that it took."""

    _mean_s: float = field(default=0.0, init=False, repr=False)
    """t̄; 0 before the first round."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        plan = super().open_round(view, rng)
        self._mean_s = self._mean_s or float(view.latency_s[np.isfinite(view.latency_s)].mean())
        return plan

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        took_s = arrived.arrived_s - arrived.started_s
        return Merge(arrived.id, self._eta * took_s / self._mean_s, of="updates")
