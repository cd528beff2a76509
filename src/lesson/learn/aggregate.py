"""Formulas that combine trained models into a new one: Eq. (10), sums of updates, and groups, see `GroupMemory`.

executor.py trains and checks the models; lane.py holds them. They are tensors or, if another process computes them, the
vectors of lanes/vectors.py.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lesson.learn.cohort import Cohort, PlannedCohort
from lesson.strategies.base import GroupMemory

Of = Literal["models", "updates"]


def begin_sums(
    model: Tensor, of: Of, weight: float, groups: GroupMemory | None, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the initial sum of each group; `weight` is the sum of the weights of all updates.

    Without groups, there is one sum, "", which begins with the share of the model that stays: (1 − Σa)·w for models, w
    for updates.
    """
    if groups is not None:
        return {name: model.new_zeros(model.shape) for name in names}
    return {"": model * (1 - weight if of == "models" else 1.0)}


def add_cohort(
    total: Tensor, models: Tensor, cohort: Cohort | PlannedCohort, base: Tensor, of: Of, factor: float
) -> None:
    """Add a cohort to the sum of its group in place: Σ a·m, Eq. (10), for models, or Σ a·(m − base) for updates.

    `models` is the Σ a·m of the cohort. `factor` scales its weights to make up for rejected updates.
    """
    total += models if factor == 1 else factor * models
    if of == "updates":
        total -= factor * float(cohort.weight.sum()) * base


def weight_factors(planned: Sequence[PlannedCohort], accepted: Sequence[PlannedCohort | Cohort]) -> dict[str, float]:
    """Return the planned weight of each group divided by its accepted weight; omit groups without accepted updates.

    With this factor, the accepted updates of a group share the weight that was planned for all of its updates.
    """
    before, after = defaultdict[str, float](float), defaultdict[str, float](float)
    for cohort, taken in zip(planned, accepted, strict=True):
        before[cohort.group] += float(cohort.weight.sum())
        after[cohort.group] += float(taken.weight.sum())
    return {group: before[group] / weight for group, weight in after.items() if weight > 0}


class GroupVectors:
    """The vector of each group: a mean of models or of updates."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self.filled: dict[str, Tensor] = {}
        """Vectors by group name. They are never changed in place, because groups that were reset together share one."""
        self.total: Tensor | None = None
        """Sum of all vectors, in double precision; None until a merge of updates uses it."""

    def merge(self, model: Tensor, means: Mapping[str, Tensor], groups: GroupMemory, of: Of) -> Tensor:
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
                self.total = self._initial.new_zeros(self._initial.shape, dtype=torch.float64)
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
        if isinstance(self.total, Tensor):  # not in place, like the vectors
            self.total = self.total + (0.0 if vector is None else vector) - (0.0 if old is None else old)
        else:  # of vectors that stand for others: added up again in a fixed order, whenever the run was resumed
            self.total = None
