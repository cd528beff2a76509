"""Cohorts: updates that start from the same model version and are trained together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.learn.chunk import Chunk
from lesson.learn.device import to_device

COLUMNS = ("client", "index", "lr", "local_steps", "weight", "first", "most_samples", "level")


@dataclass(frozen=True, eq=False)
class Cohort:
    """Updates that start from the same model; columns have shape (num_rows,).

    There is one row per update, or one per minibatch if a step has more samples than a minibatch. Rows are sorted by
    client and index.
    """

    base: Tensor
    """Model that all rows start from, shape (num_parameters,)."""
    client: IntArray
    index: IntArray
    lr: FloatArray
    local_steps: IntArray
    weight: FloatArray
    """Weight of each trained model in the sum over the cohort."""
    first: IntArray
    """Index of the minibatch, among those of the update, that the first step uses."""
    most_samples: IntArray
    """Limit of the number of samples in a minibatch, besides [training] batch_size and what the client holds."""
    level: FloatArray
    """Compression level of the upload; NaN without compression."""
    base_version: int = 0
    group: str = ""
    trained: Tensor | None = None
    """The trained model of each row, shape (num_rows, num_parameters); None if only their sum is needed."""

    def __len__(self) -> int:
        return len(self.client)

    def __getitem__(self, rows: slice | IntArray | BoolArray) -> "Cohort":
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        if self.trained is not None:
            columns["trained"] = self.trained[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        return Cohort(self.base, base_version=self.base_version, group=self.group, **columns)

    @property
    def models(self) -> Tensor:
        """The trained model of each row, which must have been computed."""
        assert self.trained is not None, "only the sum of this cohort was computed"
        return self.trained

    def with_models(self, models: Tensor) -> "Cohort":
        """Return the cohort with one row per update, given the trained models of its rows.

        The model of a step on several minibatches is the mean of the models of its rows, weighted by their samples.
        """
        begins = np.flatnonzero(self.first == 0)
        counts = np.diff(np.append(begins, len(self)))
        if np.any(counts > 1):
            owner = np.repeat(np.arange(len(begins)), counts)
            shares = self.most_samples / np.add.reduceat(self.most_samples.astype(np.float64), begins)[owner]
            rows = models * to_device(shares, models.device.type).to(models.dtype)[:, None]
            models = models.new_zeros(len(begins), models.shape[1])
            models = models.index_add_(0, to_device(owner, models.device.type), rows)
        return replace(self[begins], weight=np.add.reduceat(self.weight, begins), trained=models)

    def weighted_sum(self) -> Tensor:
        """Return Σ weight · model, shape (num_parameters,)."""
        models, weights = self.models, to_device(self.weight, self.models.device.type)
        precise = models.double() if models.is_cuda else models  # a float32 product could use TF32 there
        return (weights.to(precise.dtype) @ precise).to(models.dtype)

    def rejections(self, rows: BoolArray, reason: str) -> list[Rejection]:
        """Return a rejection with this reason for each update in these rows."""
        found = zip(self.client[rows].tolist(), self.index[rows].tolist(), strict=True)
        return [Rejection(client, index, reason) for client, index in found]


@dataclass(eq=False, slots=True)
class PlannedCohort:
    """The rows of a cohort, without the base model, which may not exist yet."""

    step: int
    """Number of the step, in its chunk, that aggregates the cohort."""
    base_version: int
    group: str
    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def weight(self) -> FloatArray:
        """Weight of each trained model in the sum over the cohort."""
        weight: FloatArray = self.columns["weight"]
        return weight

    def starting_from(self, base: Tensor) -> Cohort:
        """Return the cohort, given the model of its base version."""
        return Cohort(base, **self.columns, base_version=self.base_version, group=self.group)


def plan_cohorts(chunk: Chunk, lr: FloatArray, batch_size: int) -> list[PlannedCohort]:
    """Return the cohorts of a chunk, in the order of its steps; updates of different groups are separate cohorts.

    `lr` is the step size of each update. A step on more samples than a minibatch has is the weighted mean of one model
    per minibatch, each after a step on that minibatch alone; each of these models is a row of the cohort. That is one
    step along the mean gradient, unless the step is no linear function of it.
    """
    updates, weights, step_of = chunk.updates, chunk.weights, chunk.step_of
    if not len(updates):
        return []
    names, group = chunk.groups
    order = np.lexsort((updates.index, updates.client, group, updates.base_version, step_of))
    samples = np.where(updates.samples > 0, updates.samples, batch_size)[order]
    rows = num_minibatches(samples, batch_size)
    first, order, samples = _counts_up(rows), np.repeat(order, rows), np.repeat(samples, rows)
    most_samples = np.minimum(batch_size, samples - first * batch_size)
    steps, bases, group = step_of[order], updates.base_version[order], group[order]
    columns: dict[str, Any] = {
        "client": updates.client[order],
        "index": updates.index[order],
        "lr": lr[order],
        "local_steps": updates.local_steps[order],
        "weight": weights[order] * (most_samples / samples),
        "first": first,
        "most_samples": most_samples,
        "level": updates.level[order],
    }
    is_new = (bases[1:] != bases[:-1]) | (steps[1:] != steps[:-1]) | (group[1:] != group[:-1])
    cohorts = []
    for begin, end in pairwise([0, *(is_new.nonzero()[0] + 1).tolist(), len(order)]):
        part_of = {name: column[begin:end] for name, column in columns.items()}
        cohorts.append(PlannedCohort(int(steps[begin]), int(bases[begin]), names[order[begin]], part_of))
    return cohorts


def num_minibatches(samples: IntArray, batch_size: int) -> IntArray:
    """Return the number of minibatches of a step on these numbers of samples; 0 stands for the usual minibatch."""
    return np.maximum(1, -(-samples // batch_size))


def _counts_up(lengths: IntArray) -> IntArray:
    """Return the concatenation of 0, …, n − 1 for each length n."""
    numbers: IntArray = np.arange(lengths.sum())
    return numbers - np.repeat(np.cumsum(lengths) - lengths, lengths)
