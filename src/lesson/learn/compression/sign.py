"""Scaled signs: S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and Other Gradient Compression Schemes", ICML
2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.learn.compression.base import FLOAT_BITS, Compressor, Layout, Sent


@dataclass(frozen=True)
class Sign(Compressor):
    """Sends the sign of each value in 1 bit, and the mean magnitude of each array in 32 bits."""

    levels: ClassVar[Sequence[float]] = (1,)
    level: ClassVar[float] = 1
    error_feedback: ClassVar[bool] = True

    def bits(self, layout: Layout) -> int:
        return layout.num_values + FLOAT_BITS * len(layout.sizes)

    def encode(self, updates: Tensor, layout: Layout) -> list[Sent]:
        means = torch.stack([array.abs().mean(dim=1) for array in updates.split(list(layout.sizes), dim=1)], dim=1)
        return [Sent(means, FLOAT_BITS), Sent((updates >= 0).to(updates.dtype), 1)]

    def decode(self, fields: Sequence[Sent], layout: Layout) -> Tensor:
        (means, _), (signs, _) = fields
        counts = torch.tensor(list(layout.sizes), device=means.device)
        return (2 * signs - 1) * means.repeat_interleave(counts, dim=1)
