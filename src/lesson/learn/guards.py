"""Checks of updates: of a client's arrays when they arrive, and of trained models before they are aggregated."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import NOT_FINITE, TOO_FAR, WRONG_ARRAYS, WRONG_SHAPE, WRONG_TYPE, Rejection
from lesson.core.arrays import FloatArray
from lesson.core.errors import printable
from lesson.core.state import Arrays
from lesson.learn.cohort import Cohort
from lesson.settings.sections import GuardSettings


class InvalidUpdateError(Exception):
    """An upload cannot be aggregated. `reason` is the kind of fault, `detail` says what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, printable(detail)  # includes names and types that the client chose
        super().__init__(f"{reason}: {self.detail}")


def check_names(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise InvalidUpdateError unless an upload has exactly the arrays of the model, in any order."""
    if set(names) != set(wanted):
        (other, *_) = sorted(set(names) ^ set(wanted))
        raise InvalidUpdateError(WRONG_ARRAYS, f"{'unexpected' if other in names else 'missing'} array '{other}'")


def check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise InvalidUpdateError unless an array of an upload has the shape of the model's array."""
    if shape != wanted:
        raise InvalidUpdateError(WRONG_SHAPE, f"'{name}' has {shape}, not {wanted}")


def check_values(name: str, values: npt.NDArray[Any], kind: type[np.floating]) -> npt.NDArray[np.floating]:
    """Return the values of an array as a vector of type `kind`; raise InvalidUpdateError unless all are finite."""
    if values.dtype.kind not in "fiub":
        raise InvalidUpdateError(WRONG_TYPE, f"'{name}' has {values.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):  # a client may send 64-bit values that do not fit into 32 bits
        numbers = values.reshape(-1).astype(kind)
    if not np.isfinite(numbers).all():
        raise InvalidUpdateError(NOT_FINITE, f"'{name}' has NaN or infinite values")
    return numbers


class Transform(Protocol):
    """Checks or changes the trained models of a step before they are aggregated."""

    may_reject: bool
    """Whether it may reject updates."""
    note: str
    """A note for the summary of a run; may be empty."""

    @property
    def arrays(self) -> Arrays:
        """State that persists between steps, by names that no other transform uses."""
        ...

    def restore(self, arrays: Arrays, device: torch.device) -> None:
        """Continue with what `arrays` returned, possibly among arrays of other transforms."""
        ...

    def __call__(self, cohorts: Sequence[Cohort]) -> tuple[list[Cohort], list[Rejection]]:
        """Return the accepted updates of each cohort, and all rejections. All trained models are finite."""
        ...


class NormGuard:
    """Rejects updates whose norm is too large, compared with the median of recent norms."""

    may_reject, note = True, ""

    def __init__(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._recent: FloatArray = np.empty(0)
        """Norms of the most recent updates, each divided by lr × local_steps; the newest is last."""

    @property
    def arrays(self) -> Arrays:
        """The recent norms."""
        return {"norms": self._recent}

    def restore(self, arrays: Arrays, device: torch.device) -> None:  # noqa: ARG002
        """Continue with these recent norms."""
        self._recent = arrays["norms"]

    def __call__(self, cohorts: Sequence[Cohort]) -> tuple[list[Cohort], list[Rejection]]:
        """Return the accepted updates of each cohort, and all rejections."""
        norms, window = [_norms(cohort) for cohort in cohorts], self._settings.norm_window
        recent = np.concatenate([self._recent, *norms])[-max(window, sum(map(len, norms))) :]
        self._recent = recent[-window:]
        limit = self._settings.norm_limit * float(np.median(recent)) if len(recent) else np.inf
        accepted, rejections = list[Cohort](), list[Rejection]()
        for cohort, norm in zip(cohorts, norms, strict=True):
            accepted.append(cohort[norm <= limit])
            rejections += cohort.rejections(norm > limit, TOO_FAR)
        return accepted, rejections


def finite_rows(models: Tensor) -> Tensor:
    """Return whether all values of each row of models (n, p) are finite, shape (n,)."""
    return torch.stack(models.aminmax(dim=1)).isfinite().all(0)


def _norms(cohort: Cohort) -> FloatArray:
    """Return the norm of each update divided by lr × local_steps, its displacement under unit gradients."""
    norms = torch.stack([(model - cohort.base).double().norm() for model in cohort.models])
    return np.asarray(norms.cpu().numpy() / (cohort.lr * cohort.local_steps))
