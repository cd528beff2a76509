"""Half precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lesson.learn.compression.base import Compressor, Layout, Sent

LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Float16(Compressor):
    """Rounds each value to the nearest 16-bit float."""

    levels: ClassVar[Sequence[float]] = (16,)
    level: ClassVar[float] = 16

    def bits(self, layout: Layout) -> int:
        return 16 * layout.num_values

    def encode(self, updates: Tensor, layout: Layout) -> list[Sent]:
        return [Sent(updates.clamp(-LARGEST, LARGEST).half(), 16)]

    def decode(self, fields: Sequence[Sent], layout: Layout) -> Tensor:
        return fields[0].values.float()
