"""Server optimizers: S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

The difference g = w − aggregated model serves as a pseudo-gradient, which the optimizer applies to the model w. Moments
have the shape of the model: m starts at 0 and v at ε² (the paper's τ²). As in the paper, there is no bias correction.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from lesson.settings.sections import ServerSettings

Moments = Mapping[str, Tensor]
Step = tuple[Tensor, Moments]
"""The new model and the new moments."""


def momentum(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings) -> Step:
    """FedAvgM (Hsu et al. 2019): m ← β₁·m + g, w ← w − η·m."""
    m = server.beta1 * moments.get("m", 0.0) + gradient
    return model - server.step_size * m, {"m": m}


def adagrad(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings) -> Step:
    """FedAdagrad: v ← v + g²."""
    v = moments.get("v", server.epsilon**2) + gradient**2
    return _scaled(model, gradient, moments, v, server)


def adam(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings) -> Step:
    """FedAdam: v ← β₂·v + (1 − β₂)·g²."""
    v = server.beta2 * moments.get("v", server.epsilon**2) + (1 - server.beta2) * gradient**2
    return _scaled(model, gradient, moments, v, server)


def yogi(model: Tensor, gradient: Tensor, moments: Moments, server: ServerSettings) -> Step:
    """FedYogi: v ← v − (1 − β₂)·g²·sign(v − g²)."""
    v, square = moments.get("v", server.epsilon**2), gradient**2
    v = v - (1 - server.beta2) * square * (v - square).sign()
    return _scaled(model, gradient, moments, v, server)


def _scaled(model: Tensor, gradient: Tensor, moments: Moments, v: Tensor, server: ServerSettings) -> Step:
    """m ← β₁·m + (1 − β₁)·g, w ← w − η·m / (√v + ε)."""
    m = server.beta1 * moments.get("m", 0.0) + (1 - server.beta1) * gradient
    return model - server.step_size * m / (v.sqrt() + server.epsilon), {"m": m, "v": v}


OPTIMIZERS: Mapping[str, Callable[[Tensor, Tensor, Moments, ServerSettings], Step]] = {
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "yogi": yogi,
}


class ServerOptimizer:
    """The optimizer of the server settings, with its moments, which persist between aggregations."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.moments: Moments = {}

    def step(self, model: Tensor, aggregated: Tensor) -> Tensor:
        """Return the model after one step toward the aggregated model; without an optimizer, `aggregated` itself."""
        if self.settings.optimizer == "none":
            return aggregated
        take = OPTIMIZERS[self.settings.optimizer]
        model, self.moments = take(model, model - aggregated, self.moments, self.settings)
        return model
