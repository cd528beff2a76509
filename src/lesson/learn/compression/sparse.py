"""Compressors that send a fraction of the values, each with its place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lesson.core.errors import InputError
from lesson.core.validation import Flag
from lesson.learn.compression.base import FLOAT_BITS, Compressor, MessagePart, UpdateLayout


@dataclass(frozen=True)
class _Sparse(Compressor):
    """Sends k = ⌈level · n⌉ of n values, each in 32 bits, and their places in ⌈log2 n⌉ bits."""

    uncompressed: ClassVar[float] = 1.0
    levels: ClassVar[Sequence[float]] = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
    level: ClassVar[float] = 0.01
    error_feedback: Flag = True

    def check(self, level: float) -> None:
        if not 0 < level <= 1:
            raise InputError(f"must be a fraction, above 0 and at most 1, got {level:g}")

    def bits(self, layout: UpdateLayout) -> int:
        return _count(layout) * (FLOAT_BITS + _place_bits(layout))

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        ranks = self._ranks(updates, layout)
        places = ranks.topk(_count(layout), dim=1, sorted=False).indices
        return [MessagePart(updates.gather(1, places), FLOAT_BITS), MessagePart(places, _place_bits(layout))]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        (values, _), (places, _) = message
        return values.new_zeros(len(values), layout.num_values).scatter_(1, places, values)

    def _ranks(self, updates: Tensor, layout: UpdateLayout) -> Tensor:
        """Return a number for each value; those with the largest numbers are sent."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopK(_Sparse):
    """Sends the values with the largest magnitudes: level is the fraction that is sent.

    Each takes 32 bits, and its place ⌈log2 n⌉ bits. Without error feedback, the others are lost.
    """

    def _ranks(self, updates: Tensor, layout: UpdateLayout) -> Tensor:
        return updates.abs()


@dataclass(frozen=True)
class RandK(_Sparse):
    """Sends values chosen at random: level is the fraction that is sent.

    Each takes 32 bits, and its place ⌈log2 n⌉ bits. Without error feedback, the server multiplies the k values that it
    receives by n / k, so that all are right on average.
    """

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        decoded = super().decode(message, layout)
        return decoded if self.error_feedback else decoded * (layout.num_values / _count(layout))

    def _ranks(self, updates: Tensor, layout: UpdateLayout) -> Tensor:
        coarse, fine = layout.random(2 * layout.num_values).chunk(2, dim=1)
        return coarse + fine * 2.0**-16  # 16 bits alone would repeat in a large model


def _count(layout: UpdateLayout) -> int:
    return max(1, math.ceil(layout.level * layout.num_values * (1 - 1e-12)))


def _place_bits(layout: UpdateLayout) -> int:
    return max(1, (layout.num_values - 1).bit_length())
