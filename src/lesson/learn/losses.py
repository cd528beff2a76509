"""Losses of tasks, by sample and by minibatch, and correct predictions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.task import Arrays, Loss
from lesson.learn.trees import leaves_of, map_tensors

IGNORED = -100
"""Target that torch's cross-entropy ignores by default."""


class TaskLoss:
    """The loss of a task. `values` returns one value per sample, or per element of each sample."""

    def __init__(self, loss: Loss | None, targets: Arrays) -> None:
        self.is_default = loss is None
        given: Callable[..., Tensor] = loss or functional.cross_entropy
        is_of_torch = getattr(given, "__module__", "") == functional.__name__
        self.values: Callable[[Any, Any], Tensor] = partial(given, reduction="none") if is_of_torch else given
        self._is_plain = loss is None and not any(bool((one == IGNORED).any()) for one in leaves_of(targets))
        """Whether torch's mean cross-entropy is the mean over samples: no target is ignored."""

    def each(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each sample, shape (num_samples,): the mean of its elements."""
        values = self.values(outputs, targets)
        if values.dim() == 1:
            return values
        return _mean_of_counted(values, targets) if self.is_default else values.flatten(1).mean(1)

    def mean(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of a minibatch."""
        return functional.cross_entropy(outputs, targets) if self._is_plain else self.each(outputs, targets).mean()

    def weighted(self, outputs: Any, targets: Any, weights: Tensor) -> Tensor:
        """Return Σ weight · loss over samples."""
        losses = self.each(outputs, targets)
        return losses @ weights.to(losses.dtype)

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum of the losses of the samples."""
        if not self._is_plain:
            return self.each(outputs, targets).sum()
        if targets.dim() == 1:
            return functional.cross_entropy(outputs, targets, reduction="sum")
        return functional.cross_entropy(outputs, targets) * len(targets)


def as_floats(outputs: Any) -> Any:
    """Convert outputs to 32-bit floats if they have fewer bits: losses are computed in at least this precision."""
    return map_tensors(lambda one: one.float() if one.is_floating_point() and one.itemsize < 4 else one, outputs)


@torch.no_grad()
def correct(outputs: Any, targets: Any) -> Tensor:
    """Return the share of correct predictions of each sample, shape (num_samples,): 0 or 1 for a single label."""
    right: Tensor = outputs.argmax(1) == targets
    return right if right.dim() == 1 else _mean_of_counted(right.float(), targets)


def _mean_of_counted(values: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of each sample's values, which are 0 for IGNORED targets, such as padding: they do not count."""
    counted = (targets != IGNORED).flatten(1).sum(1).clamp(min=1)
    return values.flatten(1).mean(1) * (targets[0].numel() / counted)
