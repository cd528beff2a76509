"""FedAsync: C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", 2019.

All connected clients train all the time. A round closes with the next arrival, which is mixed into the model at once:
w ← (1 − α_t)·w + α_t·m with α_t = α·s(d), α = `mixing`, for a staleness of d versions. `staleness` selects s(d):
constant, 1; polynomial, (d + 1)^(−a); hinge, 1 if d ≤ b, else 1 / (a·(d − b) + 1). The client then starts again.
With `rate_per_s`, clients instead start one by one at given times, drawn uniformly from the idle ones.

Updates that arrive at the same time are mixed in one after the other, in order of arrival, by the weights of a single
merge. This creates one version, so the staleness of each of them counts only earlier versions, as in the records. The
paper's penalty ρ/2·‖x − x_t‖² belongs to the local objective: it is `[training] proximal_mu` here.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.validation import Fraction, NotNegativeOrInf, Positive
from lesson.strategies.base import Merge, RoundPlan, ServerView, Updates
from lesson.strategies.shared import AlwaysTraining, StartSchedule, StartTimes, check_connected, check_start_times

_USUAL_A = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}


@dataclass
class FedAsync(AlwaysTraining):
    """Every update is mixed into the model on arrival, with less weight if it is stale."""

    mixing: Fraction = 0.6
    """Weight α of an update that is not stale."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """How the weight decreases with staleness."""
    a: Positive | None = None
    """Parameter a of the staleness function. None: 0.5 for polynomial, 10 for hinge; constant does not use it."""
    b: NotNegativeOrInf = 4.0
    """Staleness in versions up to which hinge does not reduce the weight."""
    rate_per_s: Positive | None = None
    """Number of clients that start per second, whatever arrives. None: a client starts again as soon as its update has
    arrived."""
    start_times: StartTimes = "constant"
    """With `rate_per_s`: whether starts are equally spaced or a Poisson process."""
    _starts: StartSchedule = field(default_factory=StartSchedule, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start_times(self.rate_per_s, self.start_times)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        if self.rate_per_s is not None:
            return self._starts.plan(self.rate_per_s, self.start_times, view, rng)
        return super().open_round(view, rng)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        mixing = self.mixing * self._staleness_factor(view.version - arrived.base_version)
        if len(mixing) > 1:
            mixing[:-1] *= (1 - mixing)[:0:-1].cumprod()[::-1]  # share of each that remains after later ones
        return Merge(arrived.id, mixing)

    def _staleness_factor(self, staleness: IntArray) -> FloatArray:
        """Return s(d) for each staleness d, shape (num_updates,)."""
        a = _USUAL_A[self.staleness] if self.a is None else self.a
        if self.staleness == "constant":
            return np.ones(len(staleness))
        if self.staleness == "polynomial":
            factor: FloatArray = np.float_power(staleness + 1.0, -a)
        else:
            factor = np.reciprocal(a * np.maximum(staleness - self.b, 0.0) + 1.0)
        return factor
