"""The slots of all lanes of a machine: one vector of parameters each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lesson.learn.counters import kernels_for

ALIGNMENT = 32
"""Vectors begin at multiples of this number of values."""
MAX_SLOTS = 1 << 20


class Slots:
    """Vectors by number. Graphs find a vector by its address in a table, so that there can be more of them later."""

    def __init__(self, length: int, device: str) -> None:
        self.length = length
        self._stride = -(-length // ALIGNMENT) * ALIGNMENT
        self.addresses = torch.zeros(MAX_SLOTS if device == "cuda" else 0, dtype=torch.int64, device=device)
        self._device = device
        self.vectors: list[Tensor] = []

    @property
    def bytes_each(self) -> int:
        """Bytes of a vector."""
        return self._stride * 4

    def add(self, count: int) -> range:
        """Add slots, and return their numbers."""
        first, block = len(self.vectors), torch.zeros(count, self._stride, device=self._device)
        self.vectors += block[:, : self.length]
        added = range(first, first + count)
        if block.is_cuda:
            places = torch.arange(count, device=block.device) * self.bytes_each
            self.addresses[first : first + count] = block.data_ptr() + places
        return added

    def get(self, slots: Sequence[int]) -> Tensor:
        """Return copies of vectors, shape (num_slots, length)."""
        return torch.stack([self.vectors[slot] for slot in slots])

    def put(self, slots: Sequence[int], values: Sequence[Any]) -> None:
        """Set vectors to these arrays."""
        for slot, vector in zip(slots, values, strict=True):
            self.vectors[slot].copy_(torch.from_numpy(vector))

    def gather(self, slots: Tensor, to: Tensor) -> None:
        """Copy the vectors in slots to rows; a row whose slot is negative stays as it is."""
        kernels = kernels_for(to)
        if kernels is not None:
            kernels.copy_rows(self.addresses, slots, to, True)
            return
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                to[row] = self.vectors[slot]

    def scatter(self, slots: Tensor, rows: Tensor) -> None:
        """Copy rows to the vectors in slots, except those whose slot is negative."""
        kernels = kernels_for(rows)
        if kernels is not None:
            kernels.copy_rows(self.addresses, slots, rows, False)
            return
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                self.vectors[slot].copy_(rows[row])
