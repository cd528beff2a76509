"""Compressors that send a fraction of the values, each with its place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lesson.core.errors import InputError
from lesson.core.validation import Flag
from lesson.learn.compression.base import FLOAT_BITS, Compressor, Layout, Sent


@dataclass(frozen=True)
class _Sparse(Compressor):
    """Sends k = ⌈level · n⌉ of n values, each in 32 bits, and their places in ⌈log2 n⌉ bits."""

    uncompressed: ClassVar[float] = 1.0
    levels: ClassVar[Sequence[float]] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
    level: ClassVar[float] = 0.01
    error_feedback: ClassVar[bool] = True

    def check(self, level: float) -> None:
        if not 0 < level <= 1:
            raise InputError(f"must be a fraction, above 0 and at most 1, got {level:g}")

    def bits(self, layout: Layout) -> int:
        return _count(layout) * (FLOAT_BITS + _place_bits(layout))

    def encode(self, updates: Tensor, layout: Layout) -> list[Sent]:
        ranks = self._ranks(updates, layout)
        places = ranks.topk(_count(layout), dim=1, sorted=False).indices
        return [Sent(updates.gather(1, places), FLOAT_BITS), Sent(places, _place_bits(layout))]

    def decode(self, fields: Sequence[Sent], layout: Layout) -> Tensor:
        (values, _), (places, _) = fields
        return values.new_zeros(len(values), layout.num_values).scatter_(1, places, values)

    def _ranks(self, updates: Tensor, layout: Layout) -> Tensor:
        """Return a number for each value; those with the largest numbers are sent."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(_Sparse):
    """Sends the values with the largest magnitudes: level is the fraction that is sent.

    Each takes 32 bits, and its place ⌈log2 n⌉ bits. Without error feedback, the others are lost.
    """

    def _ranks(self, updates: Tensor, layout: Layout) -> Tensor:
        return updates.abs()


@dataclass(frozen=True)
class RandK(_Sparse):
    """Sends values chosen at random: level is the fraction that is sent.

    Each takes 32 bits, and its place ⌈log2 n⌉ bits. Without error feedback, the others are lost.
    """

    unbiased: Flag = False
    """Whether the values are divided by the fraction, so that they are right on average; not with error feedback."""

    def decode(self, fields: Sequence[Sent], layout: Layout) -> Tensor:
        decoded = super().decode(fields, layout)
        return decoded * (layout.num_values / _count(layout)) if self.unbiased else decoded

    def _ranks(self, updates: Tensor, layout: Layout) -> Tensor:
        return layout.random(layout.num_values)


def _count(layout: Layout) -> int:
    return max(1, math.ceil(layout.level * layout.num_values * (1 - 1e-12)))


def _place_bits(layout: Layout) -> int:
    return max(1, (layout.num_values - 1).bit_length())
