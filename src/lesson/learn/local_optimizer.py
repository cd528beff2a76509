"""Optimizers of local training: SGD with momentum and weight decay, AdamW, and gradient clipping.

They follow torch.optim, but also work on the parameters of many clients, stacked along the first axis. The state is
reset at the start of each local training.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lesson.learn.template import Replica
from lesson.settings.sections import TrainingSettings

Number = float | Tensor


def moments_of(training: TrainingSettings) -> tuple[str, ...]:
    """Return the moments that local training keeps between steps."""
    if training.local_optimizer == "adamw":
        return "m", "v"
    return ("m",) if training.momentum else ()


def take_step(
    training: TrainingSettings,
    parameter: Tensor,
    gradient: Tensor,
    moments: dict[str, Tensor],
    lr: Number,
    number: Number,
) -> None:
    """Update a parameter and its moments in place; `number` counts steps from 1.

    AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """
    if training.local_optimizer == "adamw":
        beta1, beta2 = training.adam_beta1, training.adam_beta2
        number = number.double() if isinstance(number, Tensor) else number  # 1 − β₂ⁿ loses digits in 32 bits
        parameter.mul_(1 - lr * training.weight_decay)
        moments["m"].lerp_(gradient, 1 - beta1)
        moments["v"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (moments["v"] / (1 - beta2**number)).sqrt().add_(training.adam_epsilon)
        parameter.sub_(lr * (moments["m"] / (1 - beta1**number)) / root)
        return
    if training.weight_decay:
        gradient = gradient + training.weight_decay * parameter
    if training.momentum:
        moments["m"].mul_(training.momentum).add_(gradient)
        gradient = gradient + training.momentum * moments["m"] if training.nesterov else moments["m"]
    if isinstance(lr, Tensor):
        parameter.addcmul_(gradient, lr, value=-1)
    else:
        parameter.add_(gradient, alpha=-lr)


def clip_factor(max_norm: float, squares: Tensor) -> Tensor:
    """Return the factor, at most 1, that limits gradients to a norm, given the square of their norm; as in torch."""
    return (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)


class LocalTraining:
    """The optimizer of one client during one local training."""

    def __init__(self, training: TrainingSettings, replica: Replica, base: Tensor) -> None:
        self._training, self._replica = training, replica
        self._starts = replica.views(base)[: len(replica.parameters)]
        names = moments_of(training)
        self._moments: list[dict[str, Tensor]] = [
            {name: torch.zeros_like(one) for name in names} for one in replica.parameters
        ]
        self._number = 0

    def descend(self, loss: Tensor, lr: float) -> None:
        """Take one step on loss + μ/2·‖w − base‖², updating the parameters w in place."""
        training, parameters = self._training, self._replica.parameters
        gradients: Sequence[Tensor] = self._replica.gradients(loss)
        if training.proximal_mu:
            pairs = zip(parameters, gradients, self._starts, strict=True)
            gradients = [part.add(one.data - start, alpha=training.proximal_mu) for one, part, start in pairs]
        if training.clip_norm < math.inf:
            squares = torch.stack([part.double().square().sum() for part in gradients]).sum()
            factor = clip_factor(training.clip_norm, squares).to(torch.float32)
            gradients = [part * factor for part in gradients]
        self._number += 1
        for one, part, moments in zip(parameters, gradients, self._moments, strict=True):
            take_step(training, one.data, part, moments, lr, self._number)
