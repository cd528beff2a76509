"""Uniform quantization of each array between its smallest and its largest value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.learn.compression.base import FLOAT_BITS, Compressor, MessagePart, UpdateLayout


@dataclass(frozen=True)
class Uniform(Compressor):
    """Rounds each value to the nearest of 2^level evenly spaced ones, from the smallest to the largest of its array.

    Each array sends both ends in 32 bits.
    """

    levels: ClassVar[Sequence[float]] = tuple(range(16, 0, -1))
    level: ClassVar[float] = 8

    def bits(self, layout: UpdateLayout) -> int:
        return int(layout.level) * layout.num_values + 2 * FLOAT_BITS * len(layout.sizes)

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        arrays, steps = updates.split(list(layout.sizes), dim=1), 2 ** int(layout.level) - 1
        ends = [array.aminmax(dim=1, keepdim=True) for array in arrays]
        codes = [
            ((array - low) * (steps / (high - low).clamp(min=1e-30))).round_()
            for array, (low, high) in zip(arrays, ends, strict=True)
        ]
        sent = torch.cat([one for pair in ends for one in pair], dim=1)
        return [MessagePart(sent, FLOAT_BITS), MessagePart(torch.cat(codes, dim=1), int(layout.level))]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        (ends, _), (codes, _) = message
        arrays = codes.split(list(layout.sizes), dim=1)
        lows, highs = ends[:, 0::2].split(1, dim=1), ends[:, 1::2].split(1, dim=1)
        steps = 2 ** int(layout.level) - 1
        decoded = [low + array * ((high - low) / steps) for array, low, high in zip(arrays, lows, highs, strict=True)]
        return torch.cat(decoded, dim=1)
