"""Models that remote clients have trained, behind the interfaces of a trainer and a backend."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.evaluate import ClientScores, PendingScore
from lesson.learn.partition import Holdings
from lesson.learn.reference import sum_by_blocks
from lesson.learn.task import Job, Work


class Received:
    """A trainer that returns the models that clients have uploaded. They are held until they are forgotten."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], npt.NDArray[np.floating]] = {}
        """Models by client and index of the update."""

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the weighted sum of the received models of each cohort."""
        return [sum_by_blocks(work, self._rows) for _, work in jobs]

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the received models of each cohort, shape (len(work), num_parameters)."""
        return [self._rows(work) for _, work in jobs]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _rows(self, work: Work) -> Tensor:
        """Return the model of each row; all rows of a step on several minibatches have the same model."""
        updates = zip(work.client.tolist(), work.index.tolist(), strict=True)
        return torch.stack([torch.from_numpy(self.held[update]) for update in updates])


class ReceivingBackend:
    """A backend that takes received models in place of training, and evaluates with another backend."""

    def __init__(self, received: Received, backend: Backend) -> None:
        self._received, self._backend = received, backend

    def trainer(self, name: TrainerName) -> Trainer:  # noqa: ARG002
        """Return the received models as a trainer; `name` has no effect."""
        return self._received

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Start to evaluate the model with these parameters on the test images."""
        return self._backend.begin_score(vector)

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these parameters on the training samples of each client."""
        return self._backend.client_scores(vector, holdings)

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test images, with the model of these parameters; return shape (num_images, 2)."""
        return self._backend.judge_test(vector)

    def close(self) -> None:
        """Close the other backend."""
        self._backend.close()
