"""Checks of updates before they are aggregated: whether their values are finite, and whether their norm is too large.

A norm guard or robust aggregation needs the model of every client. Otherwise the sum of a cohort shows whether any
value in it is not finite, and only then are its models computed one by one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import NOT_FINITE, TOO_FAR, Rejection
from lesson.core.arrays import BoolArray, FloatArray
from lesson.core.errors import InputError
from lesson.learn.cohort import Cohort
from lesson.learn.robust.aggregation import coordinate_median, finite_rows, norms, trimmed_mean
from lesson.settings.guards import GuardSettings

MAX_BYTES = 8 * 2**30
"""Largest size of the models that are checked together, including a copy of them."""
ROWS = 16
"""Number of models whose norms are computed together."""


class MergeGuard:
    """Checks updates before they are aggregated, and computes robust aggregates."""

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.norms: FloatArray = np.empty(0)
        """Norms of the most recent updates, each divided by its unit displacement; the newest is last."""

    @property
    def needs_each(self) -> bool:
        """Whether the model of every client is needed."""
        return self.settings.norm != "none" or self.settings.aggregation != "mean"

    def check_room(
        self, num_updates: int, num_parameters: int, who: str = "guards.norm and guards.aggregation keep"
    ) -> None:
        """Raise InputError if this many models, and a copy of them, exceed MAX_BYTES."""
        if 2 * num_updates * num_parameters * 4 > MAX_BYTES:
            raise InputError(
                f"{who} all models of a merge in memory; 2 × {num_updates} models of {num_parameters} values exceed "
                f"{MAX_BYTES >> 30} GB; use fewer clients"
            )

    def check_calibration(self) -> None:
        """Raise InputError for robust aggregation: calibrated updates of single clients have no median."""
        if self.settings.aggregation != "mean":
            raise InputError(
                "[guards] aggregation must be 'mean' for a strategy that calibrates updates by earlier ones, such as "
                f"ca2fl, got '{self.settings.aggregation}'; use guards.norm instead"
            )

    def judge(self, cohorts: Sequence[Cohort]) -> tuple[list[Cohort], list[Rejection]]:
        """Return the accepted updates of each cohort, which must hold its trained models, and all rejections.

        With guards.norm = "clip", models that are too far from their base are moved toward it, in place.
        """
        taken, rejections = list[Cohort](), list[Rejection]()
        for cohort in cohorts:
            finite, rejected = finite_only(cohort)
            taken.append(finite)
            rejections += rejected
        if self.settings.norm == "none":
            return taken, rejections
        lengths = [_lengths(cohort) for cohort in taken]
        window = self.settings.norm_window
        seen = np.concatenate([self.norms, *lengths])[-max(window, sum(map(len, lengths))) :]
        self.norms = seen[-window:]
        limit = self.settings.norm_limit * float(np.median(seen)) if len(seen) else np.inf
        for place, (cohort, length) in enumerate(zip(taken, lengths, strict=True)):
            far: BoolArray = length > limit
            if self.settings.norm == "reject":
                rejections += cohort.rejections(far, TOO_FAR)
                taken[place] = cohort[~far]
            for row in np.flatnonzero(far).tolist() if self.settings.norm == "clip" else ():
                cohort.models[row] = cohort.base + (limit / length[row]) * (cohort.models[row] - cohort.base)
        return taken, rejections

    def middle(self, models: Tensor) -> Tensor:
        """Return the median or trimmed mean of models or displacements (n, num_parameters), shape (num_parameters,)."""
        return (
            coordinate_median(models)
            if self.settings.aggregation == "median"
            else trimmed_mean(models, self.settings.trim)
        )

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Return the norms as arrays by name, for `restore`; nothing without a norm guard."""
        return {"guard.norms": self.norms} if self.settings.norm != "none" else {}

    def restore(self, state: dict[str, npt.NDArray[np.floating]]) -> None:
        """Continue from what `state` returned."""
        self.norms = state.get("guard.norms", self.norms).astype(np.float64)


def finite_only(cohort: Cohort) -> tuple[Cohort, list[Rejection]]:
    """Return the updates whose values are all finite, and rejections of the others."""
    finite = finite_rows(cohort.models).cpu().numpy()
    return (cohort, []) if finite.all() else (cohort[finite], cohort.rejections(~finite, NOT_FINITE))


def _lengths(cohort: Cohort) -> FloatArray:
    """Return the norm of each update divided by its unit displacement, shape (num_updates,)."""
    lengths = [norms(some - cohort.base) for some in cohort.models.split(ROWS)]
    return np.asarray(torch.cat(lengths).cpu().numpy() / cohort.unit_displacement) if lengths else np.empty(0)
