"""Losses of tasks: the mean over a minibatch and, where possible, the loss of each sample."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.learn.task import Arrays, Loss, num_samples

IGNORED = -100
"""Target that torch's cross-entropy ignores by default."""
_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.cross_entropy,
    functional.huber_loss,
    functional.l1_loss,
    functional.mse_loss,
    functional.nll_loss,
    functional.smooth_l1_loss,
)
_MODULES = (
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.CrossEntropyLoss,
    nn.HuberLoss,
    nn.L1Loss,
    nn.MSELoss,
    nn.NLLLoss,
    nn.SmoothL1Loss,
)
"""Losses of torch whose mean over a minibatch is the mean of the losses of its samples."""


class TaskLoss:
    """The loss of a task. `mean` is the loss of a minibatch, `each` that of each sample, None if it is unknown."""

    def __init__(self, loss: Loss | None, targets: Arrays) -> None:
        self.is_default = loss is None
        self.mean: Loss = functional.cross_entropy if loss is None else loss
        self.each = self._of_each(targets)

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum of the losses of the samples."""
        if self.is_default and targets.dim() == 1:
            return functional.cross_entropy(outputs, targets, reduction="sum")
        return self.mean(outputs, targets) * num_samples(targets)

    def _of_each(self, targets: Arrays) -> Callable[[Any, Any], Tensor] | None:
        """Return a function that maps outputs and targets to the loss of each sample, shape (num_samples,)."""
        if not isinstance(targets, Tensor):
            return None
        separate: Callable[[Tensor, Tensor], Tensor]
        if self.mean in _FUNCTIONS:
            separate = partial(self.mean, reduction="none")  # type: ignore[call-arg]
        elif type(self.mean) in _MODULES and self.mean.reduction == "mean" and _is_unweighted(self.mean):  # type: ignore[attr-defined]
            separate = copy.copy(self.mean)
            separate.reduction = "none"  # type: ignore[attr-defined]
        else:
            return None
        leaves_out = not targets.is_floating_point() and bool((targets == IGNORED).any())
        return None if leaves_out else partial(_one_per_sample, separate)


def _is_unweighted(loss: Any) -> bool:
    """Return whether all samples and classes have the same weight, and `ignore_index` is the default."""
    weights = (getattr(loss, name, None) for name in ("weight", "pos_weight"))
    return all(one is None for one in weights) and getattr(loss, "ignore_index", IGNORED) == IGNORED


def _one_per_sample(separate: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    losses = separate(outputs, targets)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def as_floats(outputs: Any) -> Any:
    """Convert outputs to 32-bit floats: losses are computed in this precision even if the model uses less."""
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs


@torch.no_grad()
def correct(outputs: Any, targets: Any) -> Tensor:
    """Return the share of correct predictions of each sample, shape (num_samples,): 0 or 1 for a single label.

    In a sequence, IGNORED targets, such as padding, do not count.
    """
    right: Tensor = outputs.argmax(1) == targets
    if right.dim() == 1:
        return right
    counted = (targets != IGNORED).flatten(1).sum(1).clamp(min=1)
    shares: Tensor = right.flatten(1).float().mean(1) * (targets[0].numel() / counted)
    return shares
