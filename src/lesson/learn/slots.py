"""Group means that the server keeps by name between merges; `strategies.base.Slots` says what they are for."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.strategies.base import Merge, Slots, Updates


class SlotVectors:
    """What each slot holds: models, or differences to them."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self.filled: dict[str, Tensor] = {}
        """Never changed in place: slots that were reset together share a vector."""

    def merge(
        self, model: Tensor, means: Mapping[str, Tensor], slots: Slots, of: Literal["models", "updates"]
    ) -> Tensor:
        """The model that all slots give, after those with a mean in `means` were filled with it.

        models:  w ← (1 − Σb)·w + Σ b·slot
        updates: w ← w + Σ b·slot
        """
        for name in slots.resets:
            if of == "models":
                self.filled[name] = model
            else:
                self.filled.pop(name, None)
        self.filled |= means
        merged = model * (1 - math.fsum(slots.weights.values())) if of == "models" else model.clone()
        for name, weight in sorted(slots.weights.items()):  # in the same order after a restart
            if of == "models" or name in self.filled:
                merged += float(weight) * self.filled.get(name, self._initial)
        return merged


def slot_of_each(updates: Updates, merge: Merge) -> tuple[list[str], IntArray]:
    """The names of the slots, and the number among them of each update's; a single "" where there are none."""
    if merge.slots is None:
        return [""], np.zeros(len(updates), dtype=np.int64)
    names = list(dict.fromkeys(merge.slots.names))
    numbers = {name: number for number, name in enumerate(names)}
    # The merge's own order need not be that of the updates.
    slot_of = dict(zip(merge.updates.tolist(), merge.slots.names, strict=True))
    return names, np.array([numbers[slot_of[update]] for update in updates.id.tolist()], dtype=np.int64)
