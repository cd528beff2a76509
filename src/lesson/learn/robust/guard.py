"""Checks of updates before they are aggregated: whether their values are finite, and whether their norm is too large.

A norm guard or robust aggregation needs the model of every client. Otherwise the sum of a cohort shows whether any
value in it is not finite, and only then are its models computed one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import NOT_FINITE, TOO_FAR, Rejection
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.learn.robust.aggregation import coordinate_median, finite_rows, norms, trimmed_mean
from lesson.learn.task import Work
from lesson.settings.guards import GuardSettings

MAX_BYTES = 8 * 2**30
"""Largest size of the models that are checked together, including a copy of them."""
ROWS = 16
"""Number of models whose norms are computed together."""


@dataclass(frozen=True, eq=False)
class Uploads:
    """The models of a cohort, one row per update."""

    base: int
    """Version that the cohort started from."""
    group: str
    client: IntArray
    index: IntArray
    weight: FloatArray
    unit_displacement: FloatArray
    """lr × local_steps of each update: its displacement under unit gradients."""
    models: Tensor
    """Shape (num_updates, num_parameters)."""

    def __len__(self) -> int:
        return len(self.client)

    def only(self, rows: BoolArray) -> "Uploads":
        """Return the updates in these rows."""
        kept = {name: getattr(self, name)[rows] for name in ("client", "index", "weight", "unit_displacement")}
        return replace(self, models=self.models[torch.from_numpy(rows)], **kept)

    def rejections(self, rows: BoolArray, reason: str) -> list[Rejection]:
        """Return the updates in these rows as rejected for this reason."""
        found = zip(self.client[rows].tolist(), self.index[rows].tolist(), strict=True)
        return [Rejection(client, index, reason) for client, index in found]


def uploads_of(base: int, group: str, work: Work, models: Tensor) -> Uploads:
    """Return the updates of a cohort, given the models of its rows of work.

    The rows of a step on several minibatches become one update, the mean of their models.
    """
    begins = np.flatnonzero(work.first == 0)
    counts = np.diff(np.append(begins, len(work)))
    if np.any(counts > 1):
        owner = torch.from_numpy(np.repeat(np.arange(len(begins)), counts)).to(models.device)
        sizes = torch.from_numpy(counts).to(models.device, models.dtype)[:, None]
        models = models.new_zeros(len(begins), models.shape[1]).index_add_(0, owner, models) / sizes
    return Uploads(
        base=base,
        group=group,
        client=work.client[begins],
        index=work.index[begins],
        weight=np.add.reduceat(work.weight, begins),
        unit_displacement=(work.lr * work.local_steps)[begins],
        models=models,
    )


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

    def check_room(self, num_updates: int, num_parameters: int) -> None:
        """Raise InputError if this many models, and a copy of them, exceed MAX_BYTES."""
        if 2 * num_updates * num_parameters * 4 > MAX_BYTES:
            raise InputError(
                f"guards.norm and guards.aggregation keep all models of a merge in memory; 2 × {num_updates} models of "
                f"{num_parameters} values exceed {MAX_BYTES >> 30} GB; let fewer clients participate"
            )

    def judge(self, cohorts: Sequence[Uploads], bases: Sequence[Tensor]) -> tuple[list[Uploads], list[Rejection]]:
        """Return the accepted updates of each cohort, and all rejected ones.

        `bases` has the model that each cohort started from. With guards.norm = "clip", models that are too far from
        their base are moved toward it, in place.
        """
        taken, rejections = list[Uploads](), list[Rejection]()
        for cohort in cohorts:
            finite, rejected = finite_only(cohort)
            taken.append(finite)
            rejections += rejected
        if self.settings.norm == "none":
            return taken, rejections
        lengths = [_lengths(cohort, base) for cohort, base in zip(taken, bases, strict=True)]
        window = self.settings.norm_window
        seen = np.concatenate([self.norms, *lengths])[-max(window, sum(map(len, lengths))) :]
        self.norms = seen[-window:]
        limit = self.settings.norm_limit * float(np.median(seen)) if len(seen) else np.inf
        for place, (cohort, length) in enumerate(zip(taken, lengths, strict=True)):
            far: BoolArray = length > limit
            if self.settings.norm == "reject":
                rejections += cohort.rejections(far, TOO_FAR)
                taken[place] = cohort.only(~far)
            for row in np.flatnonzero(far).tolist() if self.settings.norm == "clip" else ():
                cohort.models[row] = bases[place] + (limit / length[row]) * (cohort.models[row] - bases[place])
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


def finite_only(cohort: Uploads) -> tuple[Uploads, list[Rejection]]:
    """Return the updates whose values are all finite, and the others as rejected."""
    finite = finite_rows(cohort.models).cpu().numpy()
    return (cohort, []) if finite.all() else (cohort.only(finite), cohort.rejections(~finite, NOT_FINITE))


def _lengths(cohort: Uploads, base: Tensor) -> FloatArray:
    """Return the norm of each update divided by its unit displacement, shape (num_updates,)."""
    lengths = [norms(some - base) for some in cohort.models.split(ROWS)]
    return np.asarray(torch.cat(lengths).cpu().numpy() / cohort.unit_displacement) if lengths else np.empty(0)
