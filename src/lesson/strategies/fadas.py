"""FADAS: Y. Wang, S. Wang, S. Lu, J. Chen, "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024.

Clients start and rounds close as in FedBuff. When the buffer holds M = `buffer_size` updates, they are aggregated with
equal weights: Δ = Σ Δ_i / M. The server optimizer AMSGrad applies Δ: m ← β₁·m + (1 − β₁)·Δ, v ← β₂·v + (1 − β₂)·Δ²,
v̂ ← max(v̂, v), w ← w + η_t·m / (√v̂ + ε). With d the largest staleness in the buffer, η_t = η if
d ≤ `delay_threshold`, otherwise η / d.

η, β₁, β₂ and ε are the settings `learning_rate`, `beta1`, `beta2` and `epsilon` of [server]. If [server] optimizer is
not "none", it replaces AMSGrad.

With `reduction = "limit"`, η_t = min(η, 1 / d) beyond the threshold, as in the paper; it equals η for the usual step
sizes of adaptive optimizers. The default, η / d, is the rule of the authors' code (github.com/yujiaw98/FADAS, 8c4df23).
With `bias_correction`, m is divided by 1 − β₁^t and v̂ by 1 − β₂^t in step t, as in that code; the paper does neither.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lesson.core.validation import Flag, NotNegativeOrInf
from lesson.strategies.base import Merge, ServerView, Updates
from lesson.strategies.fedbuff import Buffered


@dataclass
class FADAS(Buffered):
    """FedBuff with the server optimizer AMSGrad, whose step size is smaller if an update is very stale."""

    delay_threshold: NotNegativeOrInf = 1.0
    """Largest staleness in versions that does not reduce the step size; inf to never reduce it."""
    reduction: Literal["divide", "limit"] = "divide"
    """Step size for a larger staleness d: η / d, as in the authors' code (divide), or min(η, 1 / d), as in the paper
    (limit)."""
    bias_correction: Flag = False
    """Whether the moments are corrected for their initial value 0, as in the authors' code."""
    server_optimizer: ClassVar[str] = "amsgrad"

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        taken = self.take_full_buffer(view, arrived)
        if not len(taken):
            return Merge(taken.id, np.empty(0), of="updates")
        delay, weights = int((view.version - taken.base_version).max()), np.full(len(taken), 1 / len(taken))
        most = 1 / delay if delay > self.delay_threshold else np.inf
        if self.reduction == "limit":
            return Merge(taken.id, weights, of="updates", step_limit=most)
        return Merge(taken.id, weights, of="updates", step_scale=min(1.0, most))
