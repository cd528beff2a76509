"""Models that were trained elsewhere, in the place of a trainer."""

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
    """The models that clients have sent, until they are merged or given up: a trainer with nothing left to train."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], npt.NDArray[np.floating]] = {}
        """By client and the index of its update."""

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The weighted sum of the models of each cohort."""
        return [sum_by_blocks(work, self._rows) for _, work in jobs]

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The model of each row of each cohort's work, (len(work), num_parameters)."""
        return [self._rows(work) for _, work in jobs]

    def close(self) -> None:
        """Nothing is held but models."""

    def _rows(self, work: Work) -> Tensor:
        """The models, (len(work), num_parameters); that of several minibatches stands for each of them."""
        updates = zip(work.client.tolist(), work.index.tolist(), strict=True)
        return torch.stack([torch.from_numpy(self.held[update]) for update in updates])


class ReceivingBackend:
    """Merges what was received, and evaluates as another backend does."""

    def __init__(self, received: Received, backend: Backend) -> None:
        self._received, self._backend = received, backend

    def trainer(self, name: TrainerName) -> Trainer:  # noqa: ARG002
        """What was received, whatever it was trained with."""
        return self._received

    def begin_score(self, vector: Tensor) -> PendingScore:
        """How good the model with these parameters is on the test images."""
        return self._backend.begin_score(vector)

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """How good the model with these parameters is on the training samples that each client holds."""
        return self._backend.client_scores(vector, holdings)

    def judge_test(self, vector: Tensor) -> Tensor:
        """What the model with these parameters makes of each test image."""
        return self._backend.judge_test(vector)

    def close(self) -> None:
        """Let the other backend go."""
        self._backend.close()
