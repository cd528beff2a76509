"""Group means that the server keeps between aggregations; see `strategies.base.GroupMemory`."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.strategies.base import GroupMemory, Merge, Updates


class GroupVectors:
    """The vector of each group: a mean of models or of updates."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self.filled: dict[str, Tensor] = {}
        """Vectors by group name. They are never changed in place, because groups that were reset together share one."""
        self.total: Tensor | None = None
        """Sum of all vectors, in double precision; None until a merge of updates uses it."""

    def merge(
        self, model: Tensor, means: Mapping[str, Tensor], groups: GroupMemory, of: Literal["models", "updates"]
    ) -> Tensor:
        """Reset groups, fill those in `means`, and return the model that the groups with weights b give.

        models:  w ← (1 − Σb)·w + Σ b·group
        updates: w ← w + Σ b·group + Σ p·previous group + t·sum of all previous groups
        """
        for name in groups.resets:
            self._set(name, model if of == "models" else None)
        merged = model * (1 - math.fsum(groups.weights.values())) if of == "models" else model.clone()
        for name, weight in sorted(groups.previous.items()):
            if name in self.filled:
                merged += float(weight) * self.filled[name]
        if groups.previous_total:
            if self.total is None:
                self.total = torch.zeros_like(self._initial, dtype=torch.float64)
                for _, vector in sorted(self.filled.items()):
                    self.total += vector
            merged += float(groups.previous_total) * self.total
        for name, vector in means.items():
            self._set(name, vector)
        for name, weight in sorted(groups.weights.items()):  # a fixed order, so that a resumed run is bit-identical
            if of == "models" or name in self.filled:
                merged += float(weight) * self.filled.get(name, self._initial)
        return merged

    def _set(self, name: str, vector: Tensor | None) -> None:
        """Set the vector of a group, or remove it, and keep the sum of all vectors up to date."""
        old = self.filled.pop(name, None)
        if vector is not None:
            self.filled[name] = vector
        if self.total is not None:  # not in place, like the vectors
            self.total = self.total + (0.0 if vector is None else vector) - (0.0 if old is None else old)


def group_of_each(updates: Updates, merge: Merge) -> tuple[list[str], IntArray]:
    """Return the group names and the index of each update's group; a single group "" if the merge has none."""
    if merge.groups is None:
        return [""], np.zeros(len(updates), dtype=np.int64)
    names = list(dict.fromkeys(merge.groups.names))
    numbers = {name: number for number, name in enumerate(names)}
    # The updates of the merge may be in another order.
    group_of = dict(zip(merge.updates.tolist(), merge.groups.names, strict=True))
    return names, np.array([numbers[group_of[update]] for update in updates.id.tolist()], dtype=np.int64)
