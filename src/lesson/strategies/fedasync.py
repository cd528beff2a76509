"""FedAsync: C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", 2019.

All connected clients train all the time. A round closes with the next arrival, which is mixed into the model at once:
w ← (1 − α_t)·w + α_t·m with α_t = α·s(d), α = `mixing`, for a staleness of d versions. `staleness` selects s(d):
constant, 1; polynomial, (d + 1)^(−a); hinge, 1 if d ≤ b, else 1 / (a·(d − b) + 1). The client then starts again.

Updates that arrive at the same time are mixed in one after the other, in order of arrival, by the weights of a single
merge. This creates one version, so the staleness of each of them counts only earlier versions, as in the records. The
paper's penalty ρ/2·‖x − x_t‖² belongs to the local objective: it is `[training] proximal_mu` here.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.strategies.base import Arrivals, Merge, RoundPlan, ServerView, Stateless, Updates
from lesson.strategies.checks import check_connected, check_number

Staleness = Literal["constant", "polynomial", "hinge"]
_USUAL_A = {"constant": 0.0, "polynomial": 0.5, "hinge": 10.0}


@dataclass
class FedAsync(Stateless):
    """Every update is mixed into the model on arrival, with less weight if it is stale.

    Args:
        mixing: Weight α of an update that is not stale, > 0 and <= 1.
        staleness: How the weight decreases with staleness: "constant", "polynomial" or "hinge".
        a: Parameter a of the staleness function, > 0. None: 0.5 for polynomial, 10 for hinge; constant does not use it.
        b: Staleness in versions up to which hinge does not reduce the weight, >= 0.
    """

    mixing: float = 0.6
    staleness: Staleness = "polynomial"
    a: float | None = None
    b: float = 4.0

    def __post_init__(self) -> None:
        check_number("mixing", self.mixing, most=1)
        if self.staleness not in get_args(Staleness):
            raise InputError(f"staleness must be one of {', '.join(get_args(Staleness))}, got {self.staleness!r}")
        if self.a is not None:
            check_number("a", self.a)
        check_number("b", self.b, most=math.inf, or_zero=True)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        check_connected(view)
        return RoundPlan(view.freed[view.idle[view.freed]], Arrivals(1))

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        mixing = self.mixing * self._kept(view.version - arrived.base_version)
        if len(mixing) > 1:
            mixing[:-1] *= (1 - mixing)[:0:-1].cumprod()[::-1]  # share of each that remains after later ones
        return Merge(arrived.id, mixing)

    def _kept(self, staleness: IntArray) -> FloatArray:
        """Return s(d) for each staleness d, shape (num_updates,)."""
        a = _USUAL_A[self.staleness] if self.a is None else self.a
        if self.staleness == "constant":
            return np.ones(len(staleness))
        if self.staleness == "polynomial":
            kept: FloatArray = np.float_power(staleness + 1.0, -a)
        else:
            kept = np.reciprocal(a * np.maximum(staleness - self.b, 0.0) + 1.0)
        return kept
