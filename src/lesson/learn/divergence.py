"""Detection of models that are no longer finite: at once on a CPU, some rounds later on a GPU."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lesson.core.errors import DivergedError
from lesson.learn.cohort import PlannedCohort


@dataclass(frozen=True, eq=False)
class NewestCohort:
    """The last aggregated cohort, for the error message if the model is no longer finite."""

    cohort: PlannedCohort | None
    """None before the first aggregation."""
    round: int
    remedy: str

    def __str__(self) -> str:
        if self.cohort is None:
            return "before the first merge"
        columns = self.cohort.columns
        num_clients = np.count_nonzero(columns["first"] == 0)
        return (
            f"after round {self.round}, with {num_clients} client{'s' if num_clients > 1 else ''} that started from "
            f"version {self.cohort.base_version} at step size {columns['lr'].max():g}; {self.remedy}"
        )


def not_finite(what: str, newest_cohort: NewestCohort) -> DivergedError:
    """Return the error about a model, or a score of it, that is no longer finite."""
    return DivergedError(f"the {what} is no longer finite {newest_cohort}")


def check_finite(what: str, finite: bool, newest_cohort: NewestCohort) -> None:
    """Raise DivergedError unless `finite`."""
    if not finite:
        raise not_finite(what, newest_cohort)


class DeferredChecks:
    """Finds the first round whose model is not finite, without waiting for the GPU after each round.

    The sum of each model's values is computed on the GPU; the sums of a window are read after the next window has been
    launched.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, NewestCohort, Tensor]] = []
        self._launched: deque[_Check] = deque()
        self._failure: tuple[int, DivergedError] | None = None
        """First round whose model is not finite, and the error about it."""

    @property
    def first_round(self) -> float:
        """First round that has not been checked, or whose model is not finite; inf if there is none."""
        if self._failure is not None:
            return self._failure[0]
        first_launched = self._launched[0].rounds[0] if self._launched else math.inf
        return min(first_launched, self._sums[0][0] if self._sums else math.inf)

    def add(self, model: Tensor, round: int, newest_cohort: NewestCohort) -> None:
        """Schedule the check of a model that is on a GPU; `newest_cohort` is for the error message."""
        self._sums.append((round, newest_cohort, model.sum(dtype=torch.float64)))

    def end_window(self) -> None:
        """Start to copy the sums to the host; raise DivergedError if a model of an earlier window is not finite.

        Later calls raise the same error.
        """
        if self._sums:
            rounds, cohorts, sums = zip(*self._sums, strict=True)
            there = torch.empty(len(sums), dtype=torch.float64, pin_memory=True)
            there.copy_(torch.stack(sums), non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            self._launched.append(_Check(rounds, cohorts, there, copied))
            self._sums.clear()
            self._wait(keep=1)
        else:
            self._wait()

    def synchronize(self) -> None:
        """Wait for all checks; raise DivergedError if a model is not finite."""
        self.end_window()
        self._wait()

    def _wait(self, keep: int = 0) -> None:
        """Wait for all checks but the last `keep` ones."""
        while self._failure is None and len(self._launched) > keep:
            check = self._launched.popleft()
            check.copied.synchronize()
            for number, cohort, total in zip(check.rounds, check.cohorts, check.sums.tolist(), strict=True):
                if not math.isfinite(total):
                    self._failure = number, not_finite("model", cohort)
                    break
        if self._failure is not None:
            raise self._failure[1]


@dataclass(frozen=True, eq=False)
class _Check:
    """The sums of the models of a window, on their way to the host."""

    rounds: tuple[int, ...]
    cohorts: tuple[NewestCohort, ...]
    sums: Tensor
    copied: torch.cuda.Event
