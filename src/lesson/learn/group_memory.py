"""Group means that the server keeps by name between merges; `strategies.base.GroupMemory` says what they are for."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.strategies.base import GroupMemory, Merge, Updates


class GroupVectors:
    """What each group holds: models, or differences to them."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self.filled: dict[str, Tensor] = {}
        """Never changed in place: groups that were reset together share a vector."""

    def merge(
        self, model: Tensor, means: Mapping[str, Tensor], groups: GroupMemory, of: Literal["models", "updates"]
    ) -> Tensor:
        """The model that all groups give, after those with a mean in `means` were filled with it.

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
        for name, weight in sorted(groups.weights.items()):  # in the same order after a restart
            if of == "models" or name in self.filled:
                merged += float(weight) * self.filled.get(name, self._initial)
        return merged


def group_of_each(updates: Updates, merge: Merge) -> tuple[list[str], IntArray]:
    """The names of the groups, and the number among them of each update's; a single "" where there are none."""
    if merge.groups is None:
        return [""], np.zeros(len(updates), dtype=np.int64)
    names = list(dict.fromkeys(merge.groups.names))
    numbers = {name: number for number, name in enumerate(names)}
    # The merge's own order need not be that of the updates.
    group_of = dict(zip(merge.updates.tolist(), merge.groups.names, strict=True))
    return names, np.array([numbers[group_of[update]] for update in updates.id.tolist()], dtype=np.int64)
