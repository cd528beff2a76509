"""Scaled signs: S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and Other Gradient Compression Schemes", ICML
2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.core.validation import Flag
from lesson.learn.compression.base import FLOAT_BITS, Compressor, MessagePart, UpdateLayout


@dataclass(frozen=True)
class Sign(Compressor):
    """Sends the sign of each value in 1 bit, and the mean magnitude of each array in 32 bits."""

    levels: ClassVar[Sequence[float]] = (1,)
    level: ClassVar[float] = 1
    error_feedback: Flag = True

    def bits(self, layout: UpdateLayout) -> int:
        return layout.num_values + FLOAT_BITS * len(layout.sizes)

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        arrays = updates.split(list(layout.sizes), dim=1)
        # Sums in 64 bits: in 32 bits, their last digit would depend on how many updates are compressed together.
        sums = torch.stack([array.abs().sum(dim=1, dtype=torch.float64) for array in arrays], dim=1)
        means = (sums / torch.tensor(list(layout.sizes), device=sums.device)).to(updates.dtype)
        return [MessagePart(means, FLOAT_BITS), MessagePart((updates >= 0).to(updates.dtype), 1)]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        (means, _), (signs, _) = message
        counts = torch.tensor(list(layout.sizes), device=means.device)
        return (2 * signs - 1) * means.repeat_interleave(counts, dim=1)
