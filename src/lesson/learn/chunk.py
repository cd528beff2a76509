"""Chunks: consecutive rounds of a run whose models are computed together.

A strategy never touches a model, so the clock can run ahead of training. A cohort can be trained as soon as its base
model exists, whatever the round in which it is aggregated. Asynchronous strategies, which aggregate one client at a
time, are thus trained in large batches.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.strategies.base import Merge, Updates


class Step(NamedTuple):
    """What the executor does for one round: aggregate updates, evaluate the newest version, free old versions."""

    round: int
    merge: Merge | None = None
    """How updates are aggregated; None if nothing is aggregated."""
    evaluates: bool = False
    """Whether the newest version is evaluated on the test data."""
    evaluates_clients: bool = False
    """Whether it is evaluated on the samples of each client."""
    unused: Sequence[int] = ()
    """Versions that are not used in later rounds."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rounds, with all their updates in one table: steps[i] aggregates rows[offsets[i]:offsets[i + 1]]."""

    steps: Sequence[Step]
    updates: Updates
    weights: FloatArray
    """Weight of each update."""
    offsets: IntArray

    @classmethod
    def of(cls, parts: Sequence[tuple[Step, Updates, FloatArray]]) -> "Chunk":
        """Return the chunk of these steps, each with the updates that it aggregates and their weights."""
        steps, updates, weights = zip(*parts, strict=True)
        offsets = np.array([0, *itertools.accumulate(map(len, updates))])
        return cls(steps, Updates.join(*updates), np.concatenate(weights), offsets)

    def rows(self, number: int) -> slice:
        """Return the rows of the updates that a step aggregates."""
        return slice(int(self.offsets[number]), int(self.offsets[number + 1]))

    @property
    def step_of(self) -> IntArray:
        """Number of the step that aggregates each update."""
        return np.repeat(np.arange(len(self.steps)), self.offsets[1:] - self.offsets[:-1])

    @property
    def groups(self) -> tuple[list[str], IntArray]:
        """Name of each update's group, "" without groups, and the number of this group within its step."""
        names, numbers = [""] * len(self.updates), np.zeros(len(self.updates), dtype=np.int64)
        for number, step in enumerate(self.steps):
            if step.merge is None or step.merge.groups is None:
                continue
            rows = self.rows(number)
            order = {name: place for place, name in enumerate(dict.fromkeys(step.merge.groups.names))}
            # The merge may list its updates in another order.
            group_of = dict(zip(step.merge.updates.tolist(), step.merge.groups.names, strict=True))
            names[rows] = [group_of[update] for update in self.updates.id[rows].tolist()]
            numbers[rows] = [order[name] for name in names[rows]]
        return names, numbers
