"""QSGD: D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NIPS 2017."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.core.validation import Count
from lesson.learn.compression.base import FLOAT_BITS, Compressor, MessagePart, UpdateLayout


@dataclass(frozen=True)
class QSGD(Compressor):
    """Rounds each value at random to one of up to 2^level evenly spaced ones, so that it is right on average.

    Values are divided into buckets. Each bucket sends the largest magnitude M of its values, in 32 bits, and for each
    value a whole number c from −s to s that stands for c·M/s, with s = 2^(level − 1) − 1. With one bit, only −M and M
    can be sent. As in the experiments of the paper, M takes the place of the Euclidean norm, which is larger. The
    paper's variable-length code is left out: the length of a message would depend on the values.
    """

    levels: ClassVar[Sequence[float]] = tuple(range(16, 0, -1))
    level: ClassVar[float] = 8
    bucket: Count = 512
    """Number of values in a bucket."""

    def bits(self, layout: UpdateLayout) -> int:
        return int(layout.level) * layout.num_values + FLOAT_BITS * -(-layout.num_values // self.bucket)

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        size, steps, whole = layout.num_values, _steps(layout), layout.num_values // self.bucket * self.bucket
        buckets = updates[:, :whole].unflatten(1, (whole // self.bucket, self.bucket))
        parts = [buckets.abs().amax(dim=2)] if whole else []
        parts += [updates[:, whole:].abs().amax(dim=1, keepdim=True)] if whole < size else []
        largest = torch.cat(parts, dim=1)
        # The codes 0 … steps stand for the values from −M to M.
        scaled = self._multiplied(updates, steps / 2 / largest.clamp(min=1e-30))
        codes = scaled.add_(steps / 2).add_(layout.random(size)).floor_().clamp_(0, steps)
        return [MessagePart(largest, FLOAT_BITS), MessagePart(codes, int(layout.level))]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        (largest, _), (codes, _) = message
        steps = _steps(layout)
        return self._multiplied(codes - steps / 2, 2 * largest / steps)

    def _multiplied(self, values: Tensor, factors: Tensor) -> Tensor:
        """Return the values of each bucket times its factor."""
        num, products = values.shape[1] // self.bucket, torch.empty_like(values)
        shape, whole = (num, self.bucket), num * self.bucket
        inner, outer = values[:, :whole].unflatten(1, shape), products[:, :whole].unflatten(1, shape)
        torch.mul(inner, factors[:, :num, None], out=outer)
        torch.mul(values[:, whole:], factors[:, num:], out=products[:, whole:])
        return products


def _steps(layout: UpdateLayout) -> int:
    """Return the number of steps between −M and M: even, so that 0 can be sent, except with one bit."""
    return max(1, (1 << int(layout.level)) - 2)
