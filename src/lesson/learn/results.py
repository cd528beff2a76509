"""Results of chunks. Those that a GPU computes are read after the next chunk has been launched."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.learn.divergence import NewestCohort, not_finite
from lesson.learn.scores import ClientScores, Score


class RoundResult(NamedTuple):
    """What was computed in a round."""

    rejections: Sequence[Rejection] = ()
    score: Score | None = None
    """Evaluation of its model on the test data, if it was due."""
    clients: ClientScores | None = None
    """Evaluation of its model on the samples of each client, if it was due."""


class Results(NamedTuple):
    """Results of rounds, in order."""

    rounds: Sequence[RoundResult] = ()
    error: Exception | None = None
    """Why the next round could not be computed; None if there was no error so far."""


@dataclass(eq=False, slots=True)
class LaunchedRound:
    """A round whose results may not have been computed yet."""

    rejections: Sequence[Rejection] = ()
    score: Callable[[], Score] | None = None
    """Waits for the evaluation on the test data; None if it is not due."""
    clients: ClientScores | None = None
    sum: Tensor | None = None
    """Sum of the values of its new model, if it is on a GPU. The model is finite if this sum is. In a lane of another
    process, the number of the operation whose result is the model."""
    newest_cohort: NewestCohort | None = None
    """For the error message if the model is not finite."""


@dataclass(eq=False)
class Launched:
    """A chunk whose results may not have been computed yet."""

    rounds: list[LaunchedRound] = field(default_factory=list)
    error: Exception | None = None
    """Why the last of these rounds failed."""
    _copied: tuple[Tensor, torch.cuda.Event] | None = None
    """Sums on the host, which are complete after the event."""

    def begin_copy(self) -> None:
        """Start to copy the sums of models from the GPU to the host."""
        if sums := [one.sum for one in self.rounds if one.sum is not None]:
            there, copied = torch.empty(len(sums), dtype=torch.float64, pin_memory=True), torch.cuda.Event()
            there.copy_(torch.stack(sums), non_blocking=True)
            copied.record()
            self._copied = there, copied

    def results(self) -> Results:
        """Wait for the results. The first round that failed, or whose model or score is not finite, ends them."""
        done = list[RoundResult]()
        try:
            sums = iter(self._sums())
        except Exception as error:  # the process that computes them may have failed
            return Results(done, error)
        for one in self.rounds:
            try:
                if one.newest_cohort is not None and not math.isfinite(next(sums)):
                    raise not_finite("model", one.newest_cohort)  # why an evaluation failed, if it did
                if self.error is not None and one is self.rounds[-1]:
                    raise self.error
                score = None if one.score is None else one.score()
            except Exception as error:
                return Results(done, error)
            done.append(RoundResult(one.rejections, score, one.clients))
        return Results(done, self.error)

    def _sums(self) -> list[float]:
        if self._copied is None:
            return []
        there, copied = self._copied
        copied.synchronize()
        sums: list[float] = there.tolist()
        return sums
