"""Interfaces of trainers and backends."""

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor

from lesson.learn.cohort import Cohort
from lesson.learn.partition import Holdings
from lesson.learn.scores import ClientScores, PendingScore

TrainerName = Literal["reference", "fused", "batched"]


class Trainer(Protocol):
    """Trains cohorts, or provides models that were trained elsewhere."""

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort; valid until the next call of `sums`."""
        ...

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort as new tensors, shape (num_rows, num_parameters)."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class Backend(Protocol):
    """Training and evaluation on one device."""

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer."""
        ...

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Start to evaluate the model with these parameters on the test images, without waiting for the result."""
        ...

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these parameters on the training samples of each client."""
        ...

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test images, with the model of these parameters; return shape (num_images, 2)."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
