"""The signal "update_deviation"; see `ServerView.signals`."""

from collections.abc import Sequence

import numpy as np
import torch

from lesson.core.arrays import FloatArray
from lesson.learn.cohort import Cohort
from lesson.learn.guards import finite_rows
from lesson.strategies.base import Updates


def deviations(fresh: Sequence[Cohort], stale: Sequence[Cohort], updates: Updates) -> FloatArray:
    """Return the deviation Λ_s of each stale update from the fresh ones, as in `ServerView.signals`.

    Both are cohorts with one trained model per update; `updates` are the stale ones, whose order the result has. As
    û − (u_s + n·û) / (n + 1) = (û − u_s) / (n + 1), Λ_s is ‖û − u_s‖² / ((n + 1)²·‖û‖²).
    """
    total, count, squares = torch.zeros(()), 0, dict[tuple[int, int], float]()
    for cohort in fresh:
        finite = finite_rows(cohort.models)
        models = cohort.models if finite.all() else cohort.models[finite]
        moved = models.sum(0, dtype=torch.float64) - len(models) * cohort.base.double()
        total, count = moved + total.to(moved.device), count + len(models)
    mean = total / max(count, 1)
    for cohort in stale:
        for model, client, index in zip(cohort.models, cohort.client.tolist(), cohort.index.tolist(), strict=True):
            squares[client, index] = float((mean - (model.double() - cohort.base.double())).square().sum())
    found, scale = np.array([squares[key] for key in updates.keys]), (count + 1) ** 2 * float(mean.square().sum())
    return np.where(np.isfinite(found), found, np.nan) / (scale if scale > 0 else np.nan)
