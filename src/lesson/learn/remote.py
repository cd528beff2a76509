"""Local training on a remote client, with models as NumPy arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lesson.learn.models import FACTORIES, initial_vector, make_model
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Task, Work


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
