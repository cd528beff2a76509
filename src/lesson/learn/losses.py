"""Losses of tasks: a task's loss is the mean over a minibatch; here, it becomes a loss per sample or per minibatch."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesson.core.errors import InputError
from lesson.learn.task import Arrays, Loss
from lesson.learn.trees import describe_tree, leaves_of, num_samples, split

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
    """The loss of a task; `mean` is the loss of a minibatch."""

    def __init__(self, loss: Loss | None, targets: Arrays) -> None:
        self.is_default = loss is None
        self.mean: Loss = functional.cross_entropy if loss is None else loss
        self._separate = self._of_each(targets)

    @property
    def is_separable(self) -> bool:
        """Whether the loss of a minibatch is known to be the mean of the losses of its samples."""
        return self._separate is not None

    def each(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss of each sample, shape (num_samples,): that of a minibatch of this sample alone."""
        if self._separate is not None:
            return self._separate(outputs, targets)
        check_rows(outputs)
        ones = [1] * num_samples(targets)
        return torch.stack([self.mean(*pair) for pair in zip(split(outputs, ones), split(targets, ones), strict=True)])

    def weighted(self, outputs: Any, targets: Any, sizes: list[int], scale: Tensor, weights: Tensor) -> Tensor:
        """Return Σ scale · loss over minibatches of these sizes.

        `weights` has the share of each sample in the scale of its minibatch, 0 for padding; unless the loss is
        separable, there must be no padding.
        """
        if self._separate is not None:
            losses = self._separate(outputs, targets)
            return losses @ weights.to(losses.dtype)
        pairs = zip(split(outputs, sizes), split(targets, sizes), strict=True)
        means = torch.stack([self.mean(*pair) for pair in pairs])
        return (means * scale.to(means.dtype)).sum()

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


def check_rows(outputs: Any) -> None:
    """Raise InputError if outputs are not tensors with one row per sample, or tuples or dicts of them."""
    if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves_of(outputs)):
        raise InputError(
            "model must return tensors with one row per sample, or tuples or dicts of them, for this loss or these "
            f"metrics, got {describe_tree(outputs)}"
        )


def as_floats(outputs: Any) -> Any:
    """Convert outputs to 32-bit floats if they have fewer bits: losses are computed in at least this precision."""
    is_short = isinstance(outputs, Tensor) and outputs.is_floating_point() and outputs.itemsize < 4
    return outputs.float() if is_short else outputs


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
