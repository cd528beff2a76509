"""Local training on a remote client, with models as NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.evaluate import ClientScores, PendingScore
from lesson.learn.models import FACTORIES, initial_vector, make_model
from lesson.learn.partition import Holdings
from lesson.learn.reference import ReferenceTrainer, sum_by_blocks
from lesson.learn.task import Job, Task, Work


def initial_arrays(dataset: str, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return the initial parameters of a run on a data set by name."""
    model = make_model(FACTORIES[dataset])
    torch.nn.utils.vector_to_parameters(initial_vector(FACTORIES[dataset], seed), model.parameters())
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def train_update(
    task: Task,
    base: npt.NDArray[np.floating],
    *,
    client: int,
    index: int,
    lr: float,
    local_steps: int = 1,
    batches: int = 1,
) -> npt.NDArray[np.float32]:
    """Train one update of a client from `base` and return its model, bit-identical to the reference trainer.

    A step on several minibatches is the mean of `batches` models, each after one step on one of the minibatches.
    """
    same: dict[str, Any] = {"client": client, "index": index, "local_steps": local_steps}
    columns = {name: np.full(batches, value) for name, value in same.items()}
    shares, rates = np.full(batches, 1 / batches), np.full(batches, lr)
    work = Work(**columns, lr=rates, weight=shares, first=np.arange(batches))
    (model,) = ReferenceTrainer(task).cohorts([(torch.from_numpy(base), work)])
    vector: npt.NDArray[np.float32] = model.numpy()
    return vector


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
