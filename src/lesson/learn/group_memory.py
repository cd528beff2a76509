"""Group means that the server keeps between aggregations; see `strategies.base.GroupMemory`."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.strategies.base import GroupMemory, Merge, Updates


class GroupVectors:
    """The vector of each group: a mean of models or of updates."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self.filled: dict[str, Tensor] = {}
        """Vectors by group name. They are never changed in place, because groups that were reset together share one."""

    def merge(
        self, model: Tensor, means: Mapping[str, Tensor], groups: GroupMemory, of: Literal["models", "updates"]
    ) -> Tensor:
        """Reset groups, fill those in `means`, and return the model that the groups with weights b give.

        models:  w ← (1 − Σb)·w + Σ b·group
        updates: w ← w + Σ b·group
        """
        for name in groups.resets:
            if of == "models":
                self.filled[name] = model
            else:
                self.filled.pop(name, None)
        self.filled |= means
        merged = model * (1 - math.fsum(groups.weights.values())) if of == "models" else model.clone()
        for name, weight in sorted(groups.weights.items()):  # a fixed order, so that a resumed run is bit-identical
            if of == "models" or name in self.filled:
                merged += float(weight) * self.filled.get(name, self._initial)
        return merged


def group_of_each(updates: Updates, merge: Merge) -> tuple[list[str], IntArray]:
    """Return the group names and the index of each update's group; a single group "" if the merge has none."""
    if merge.groups is None:
        return [""], np.zeros(len(updates), dtype=np.int64)
    names = list(dict.fromkeys(merge.groups.names))
    numbers = {name: number for number, name in enumerate(names)}
    # The updates of the merge may be in another order.
    group_of = dict(zip(merge.updates.tolist(), merge.groups.names, strict=True))
    return names, np.array([numbers[group_of[update]] for update in updates.id.tolist()], dtype=np.int64)
