"""Detection of models that are no longer finite: at once on a CPU, some rounds later on a GPU."""

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from lesson.core.errors import DivergedError


def check_finite(what: str, finite: bool, newest_cohort: str) -> None:
    """Raise DivergedError unless `finite`."""
    if not finite:
        raise DivergedError(f"the {what} is no longer finite {newest_cohort}")


class DeferredChecks:
    """Finds the first round whose model is not finite, without waiting for the GPU after each round.

    The sum of each model's values is computed on the GPU; the sums of a window are read after the next window has been
    launched.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[int, str, Tensor]] = []
        self._launched: deque[_Check] = deque()

    @property
    def first_round(self) -> float:
        """First round that has not been checked; inf if all have been."""
        if self._launched:
            return self._launched[0].rounds[0]
        return self._sums[0][0] if self._sums else math.inf

    def add(self, model: Tensor, round: int, newest_cohort: str) -> None:
        """Schedule the check of a model that is on a GPU; `newest_cohort` is for the error message."""
        self._sums.append((round, newest_cohort, model.sum(dtype=torch.float64)))

    def end_window(self) -> None:
        """Start to copy the sums to the host; raise DivergedError if a model of an earlier window is not finite."""
        if self._sums:
            rounds, cohorts, sums = zip(*self._sums, strict=True)
            there = torch.empty(len(sums), dtype=torch.float64, pin_memory=True)
            there.copy_(torch.stack(sums), non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            self._launched.append(_Check(rounds, cohorts, there, copied))
            self._sums.clear()
        while len(self._launched) > 1:
            self._launched.popleft().wait()

    def settle(self) -> None:
        """Wait for all checks; raise DivergedError if a model is not finite."""
        self.end_window()
        while self._launched:
            self._launched.popleft().wait()


@dataclass(frozen=True, eq=False)
class _Check:
    """The sums of the models of a window, on their way to the host."""

    rounds: tuple[int, ...]
    cohorts: tuple[str, ...]
    sums: Tensor
    copied: torch.cuda.Event

    def wait(self) -> None:
        """Wait for the sums; raise DivergedError for the first one that is not finite."""
        self.copied.synchronize()
        for number, cohort, total in zip(self.rounds, self.cohorts, self.sums.tolist(), strict=True):
            try:
                check_finite("model", math.isfinite(total), cohort)
            except DivergedError as error:
                error.round = number
                raise
