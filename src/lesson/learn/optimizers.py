"""Server optimizers: S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

The difference g = w − aggregated model serves as a pseudo-gradient, which the optimizer applies to the model w with the
step size η. Moments have the shape of the model: m starts at 0 and v at ε² (the paper's τ²). As in the paper, there is
no bias correction. AMSGrad is that of FADAS (strategies/fadas.py), where v starts at 0; its bias can be corrected.
"""

import math
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor

from lesson.core.errors import InputError, unknown
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Strategy

Moments = Mapping[str, Tensor]
Step = tuple[Tensor, Moments]
"""The new model and the new moments."""


def momentum(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings, eta: float) -> Step:
    """FedAvgM (Hsu et al. 2019): m ← β₁·m + g, w ← w − η·m."""
    m = server.beta1 * moments.get("m", 0.0) + gradient
    return model - eta * m, {"m": m}


def adagrad(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings, eta: float) -> Step:
    """FedAdagrad: v ← v + g²."""
    v = moments.get("v", server.epsilon**2) + gradient**2
    return _scaled(model, gradient, moments, v, server, eta)


def adam(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings, eta: float) -> Step:
    """FedAdam: v ← β₂·v + (1 − β₂)·g²."""
    v = server.beta2 * moments.get("v", server.epsilon**2) + (1 - server.beta2) * gradient**2
    return _scaled(model, gradient, moments, v, server, eta)


def yogi(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings, eta: float) -> Step:
    """FedYogi: v ← v − (1 − β₂)·g²·sign(v − g²)."""
    v, square = moments.get("v", server.epsilon**2), gradient**2
    v = v - (1 - server.beta2) * square * (v - square).sign()
    return _scaled(model, gradient, moments, v, server, eta)


def amsgrad(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings, eta: float) -> Step:
    """FADAS: v as in FedAdam, but from 0; v̂ ← max(v̂, v), which takes the place of v in the step."""
    v = server.beta2 * moments.get("v", 0.0) + (1 - server.beta2) * gradient**2
    largest = torch.maximum(moments["v_max"], v) if "v_max" in moments else v
    model, new = _scaled(model, gradient, moments, largest, server, eta)
    return model, {"m": new["m"], "v": v, "v_max": largest}


def _scaled(model: Tensor, gradient: Tensor, moments: Moments, v: Tensor, server: ServerSettings, eta: float) -> Step:
    """m ← β₁·m + (1 − β₁)·g, w ← w − η·m / (√v + ε)."""
    m = server.beta1 * moments.get("m", 0.0) + (1 - server.beta1) * gradient
    return model - eta * m / (v.sqrt() + server.epsilon), {"m": m, "v": v}


Optimizer = Callable[[Tensor, Tensor, Moments, ServerSettings, float], Step]
OPTIMIZERS: Mapping[str, Optimizer] = {
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "yogi": yogi,
    "amsgrad": amsgrad,
}


class ServerOptimizer:
    """The optimizer of the server settings, with its moments, which persist between aggregations."""

    def __init__(self, settings: ServerSettings, note: str = "", corrects_bias: bool = False) -> None:
        self.settings = settings
        self.corrects_bias = corrects_bias
        """Whether m and v are divided by 1 − β^t."""
        self.moments: Moments = {}
        self.note = note
        """Note for the summary of a run; may be empty."""

    @classmethod
    def of(cls, settings: ServerSettings, strategy: Strategy) -> Self:
        """Return the optimizer of the settings; if it is "none", the `server_optimizer` of the strategy, if any."""
        own, corrects_bias = getattr(strategy, "server_optimizer", "none"), getattr(strategy, "bias_correction", False)
        if corrects_bias and (own if settings.optimizer == "none" else settings.optimizer) != "amsgrad":
            raise InputError(f"bias_correction needs [server] optimizer = 'amsgrad', got '{settings.optimizer}'")
        if settings.optimizer != "none" or own == "none":
            return cls(settings, corrects_bias=corrects_bias)
        who = type(strategy).__name__
        if own not in OPTIMIZERS:
            raise unknown("server_optimizer", str(own), OPTIMIZERS, to=who)
        note = f"server optimizer: {own}, as {who} prescribes"
        return cls(settings.model_copy(update={"optimizer": own}), note, corrects_bias)

    def step(
        self,
        model: Tensor,
        aggregated: Tensor,
        scale: float = 1.0,
        optimizers: Mapping[str, Optimizer] = OPTIMIZERS,
        *,
        limit: float = math.inf,
        number: int = 1,
    ) -> Tensor:
        """Return the model after one step toward the aggregated model.

        The step size is `scale` times the usual one, but at most `limit`. Without an optimizer, the step is the whole
        difference, times `scale`: by default, `aggregated` itself. `optimizers` apply the formulas above to vectors of
        this kind. `number` counts steps from 1; only the correction of the bias depends on it.
        """
        server, eta = self.settings, min(scale * self.settings.step_size, limit)
        if server.optimizer == "none":
            scale = min(scale, limit)
            return aggregated if scale == 1 else model + scale * (aggregated - model)
        if self.corrects_bias:
            # η·(m / c₁) / (√v / c₂ + ε) = (η·c₂ / c₁)·m / (√v + ε·c₂)
            root = math.sqrt(1 - server.beta2**number)
            eta *= root / (1 - server.beta1**number)
            server = server.model_copy(update={"epsilon": server.epsilon * root})
        model, self.moments = optimizers[server.optimizer](model, model - aggregated, self.moments, server, eta)
        return model
