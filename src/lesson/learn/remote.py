"""A client's part of training where clients are elsewhere: vectors in, vectors out."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lesson.learn.models import FACTORIES, initial_vector, make_model
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Task, Work


def initial_arrays(dataset: str, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """The parameters by name that a run on a data set begins with."""
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
    """The model a client makes of another in one piece of local work, with the bits of the reference trainer.

    A step of several minibatches is the mean of as many models, each after a step of one of them.
    """
    same: dict[str, Any] = {"client": client, "index": index, "local_steps": local_steps}
    columns = {name: np.full(batches, value) for name, value in same.items()}
    shares, rates = np.full(batches, 1 / batches), np.full(batches, lr)
    work = Work(**columns, lr=rates, weight=shares, first=np.arange(batches))
    (model,) = ReferenceTrainer(task).cohorts([(torch.from_numpy(base), work)])
    vector: npt.NDArray[np.float32] = model.numpy()
    return vector
