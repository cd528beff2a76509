"""Half precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.learn.compression.base import Compressor, MessagePart, UpdateLayout

LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Float16(Compressor):
    """Rounds each value to the nearest 16-bit float."""

    levels: ClassVar[Sequence[float]] = (16,)
    level: ClassVar[float] = 16

    def bits(self, layout: UpdateLayout) -> int:
        return 16 * layout.num_values

    def encode(self, updates: Tensor, layout: UpdateLayout) -> list[MessagePart]:
        return [MessagePart(updates.clamp(-LARGEST, LARGEST).half(), 16)]

    def decode(self, message: Sequence[MessagePart], layout: UpdateLayout) -> Tensor:
        return message[0].values.float()
