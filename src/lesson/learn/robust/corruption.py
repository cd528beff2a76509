"""Injection of faults into uploads, as set in [faults]."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lesson.clock.faults import CorruptedUploads
from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.backend import Trainer
from lesson.learn.cohort import Cohort


def corrupted_models(cohort: Cohort, faults: CorruptedUploads) -> Tensor:
    """Return the models of a cohort as its clients upload them, as a new tensor of shape (num_rows, num_parameters).

    A model m becomes base + factor · (m − base), and one of its parameters may become infinite or NaN.
    """
    base, models = cohort.base, cohort.models
    factor = torch.from_numpy(faults.factor(cohort.client, cohort.index)).to(models.device, models.dtype)[:, None]
    uploads = torch.where(factor == 1, models, base + factor * (models - base))
    rows, places, values = _added(cohort, faults)
    if len(rows):
        where = torch.from_numpy(rows).to(models.device), places.to(models.device)
        uploads.index_put_(where, values.to(models.device, models.dtype), accumulate=True)
    return uploads


class CorruptingTrainer:
    """A trainer that injects faults into the uploads of another trainer; see `corrupted_models`.

    The weighted sum of a cohort is linear in its models, so it is corrupted without computing them.
    """

    def __init__(self, trainer: Trainer, faults: CorruptedUploads) -> None:
        self._trainer, self._faults = trainer, faults

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the corrupted uploads of each cohort."""
        factors = [self._faults.factor(cohort.client, cohort.index) for cohort in cohorts]
        weighed = zip(cohorts, factors, strict=True)
        sums = self._trainer.sums([replace(cohort, weight=cohort.weight * factor) for cohort, factor in weighed])
        return [self._corrupted(*each) for each in zip(cohorts, sums, factors, strict=True)]

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the corrupted uploads of each cohort, shape (num_rows, num_parameters)."""
        trained = zip(cohorts, self._trainer.models(cohorts), strict=True)
        return [corrupted_models(replace(cohort, trained=models), self._faults) for cohort, models in trained]

    def close(self) -> None:
        """Close the other trainer."""
        self._trainer.close()

    def _corrupted(self, cohort: Cohort, total: Tensor, factor: FloatArray) -> Tensor:
        if rest := float((cohort.weight * (1 - factor)).sum()):
            total = total + rest * cohort.base
        rows, places, values = _added(cohort, self._faults)
        if len(rows):
            total = total.clone()
            total.index_add_(0, places.to(total.device), values.to(total.device, total.dtype))
        return total


def _added(cohort: Cohort, faults: CorruptedUploads) -> tuple[IntArray, Tensor, Tensor]:
    """Return the rows to which a non-finite value is added, the index of the parameter in each, and the value."""
    values = faults.added_value(cohort.client, cohort.index)
    rows = np.flatnonzero(values)
    places = faults.place(cohort.client[rows], cohort.index[rows], len(cohort.base))
    return rows, torch.from_numpy(places), torch.from_numpy(values[rows])
