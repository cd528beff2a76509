"""Injection of faults into uploads, as set in [faults]."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lesson.clock.faults import CorruptedUploads
from lesson.core.arrays import BoolArray, FloatArray
from lesson.learn.backend import Trainer
from lesson.learn.task import Job, Work


class CorruptingTrainer:
    """A trainer that injects faults into the uploads of another trainer.

    A model m becomes base + factor · (m − base), and one of its values may become infinite or NaN. The weighted sum of
    a cohort is linear in its models, so it is corrupted without computing them.
    """

    def __init__(self, trainer: Trainer, corrupted: CorruptedUploads) -> None:
        self._trainer, self._faults = trainer, corrupted

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the weighted sum of the corrupted uploads of each cohort."""
        factors = [self._faults.factor(work.client, work.index) for _, work in jobs]
        weighed = [
            (base, replace(work, weight=work.weight * factor))
            for (base, work), factor in zip(jobs, factors, strict=True)
        ]
        sums = self._trainer.cohorts(weighed)
        return [self._sent(*job, total, factor) for job, total, factor in zip(jobs, sums, factors, strict=True)]

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the corrupted uploads of each cohort, shape (len(work), num_parameters)."""
        return [self._corrupted(*job, models) for job, models in zip(jobs, self._trainer.models(jobs), strict=True)]

    def close(self) -> None:
        """Close the other trainer."""
        self._trainer.close()

    def _sent(self, base: Tensor, work: Work, total: Tensor, factor: FloatArray) -> Tensor:
        if rest := float((work.weight * (1 - factor)).sum()):
            total = total + rest * base
        rows, values = self._fillings(work)
        if rows.any():
            total = total.clone()
            places = torch.from_numpy(self._faults.place(work.client[rows], work.index[rows], len(base)))
            total.index_add_(0, places.to(total.device), values.to(total.device, total.dtype))
        return total

    def _corrupted(self, base: Tensor, work: Work, models: Tensor) -> Tensor:
        factor = torch.from_numpy(self._faults.factor(work.client, work.index)).to(models.device, models.dtype)[:, None]
        models = torch.where(factor == 1, models, base + factor * (models - base))
        rows, values = self._fillings(work)
        if rows.any():
            places = torch.from_numpy(self._faults.place(work.client[rows], work.index[rows], len(base)))
            where = torch.from_numpy(np.flatnonzero(rows)).to(models.device), places.to(models.device)
            models.index_put_(where, values.to(models.device, models.dtype), accumulate=True)
        return models

    def _fillings(self, work: Work) -> tuple[BoolArray, Tensor]:
        """Return which rows have a value that is not finite, and these values, one per such row."""
        added_value = self._faults.added_value(work.client, work.index)
        rows = added_value != 0
        return rows, torch.from_numpy(added_value[rows])
