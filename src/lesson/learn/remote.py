"""Training on remote clients: one local training on a client, and the models that the server has received."""

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.learn.backend import Trainer
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import client_scores
from lesson.learn.partition import Partition
from lesson.learn.reference import ReferenceTrainer, sums_of, trained_parts
from lesson.learn.task import Task
from lesson.learn.template import Template
from lesson.learn.workload import Workload


def first_arrays(task: Task, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return the exchanged values, by name, with which a run of this task starts for this seed."""
    template = Template(task, seed)
    return template.named_arrays(template.initial_vector())


def as_tensor(vector: npt.NDArray[np.floating]) -> Tensor:
    """Wrap a NumPy vector as a tensor, for callers that do not import torch."""
    return torch.from_numpy(vector)


def train_update(
    workload: Workload,
    base: npt.NDArray[np.floating],
    *,
    client: int,
    index: int,
    lr: float,
    local_steps: int = 1,
) -> npt.NDArray[np.float32]:
    """Train one update of a client from `base` and return its model, bit-identical to the reference trainer."""
    cohort = Cohort(
        torch.from_numpy(base),
        client=np.array([client]),
        index=np.array([index]),
        lr=np.array([lr]),
        local_steps=np.array([local_steps]),
        weight=np.ones(1),
        first=np.zeros(1, dtype=np.int64),
        most_samples=np.array([workload.batch_size]),
        level=np.array([np.nan]),
    )
    (model,) = ReferenceTrainer(workload).sums([cohort])
    vector: npt.NDArray[np.float32] = model.numpy()
    return vector


def evaluate_on_client(
    workload: Workload, model: npt.NDArray[np.floating], client: int
) -> tuple[int, dict[str, float]]:
    """Evaluate a model on a client's own samples: those that it holds out, if it does, else those that it trains on.

    Returns their number, and the mean loss and, for tasks that have it, the accuracy.
    """
    samples = (workload.holdings if workload.held_out is None else workload.held_out)[client]
    with contextlib.closing(CpuBackend(workload, num_threads=1)) as backend:
        scores = client_scores(backend, torch.from_numpy(model), Partition.of([samples]))
    values = {"loss": float(scores.loss[0]), "accuracy": float(scores.accuracy[0])}
    return len(samples), {name: value for name, value in values.items() if not np.isnan(value)}


class Received:
    """Models that remote clients have uploaded, as an `UpdateSource` and its own `Trainer`."""

    notes: tuple[str, ...] = ()
    trainers = ("clients",)

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], npt.NDArray[np.floating]] = {}
        """Models by client and index of the update; `Clients.forget` removes them."""

    def trainer_for(self, local_steps: IntArray) -> Trainer:  # noqa: ARG002
        """Return the received models as a trainer."""
        return self

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the received models of each cohort."""
        return sums_of(cohorts, trained_parts(cohorts, self._rows))

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the received models of each cohort, shape (num_rows, num_parameters)."""
        return [self._rows(cohort) for cohort in cohorts]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _rows(self, cohort: Cohort) -> Tensor:
        """Return the model of each row; all rows of a step on several minibatches have the same model."""
        updates = zip(cohort.client.tolist(), cohort.index.tolist(), strict=True)
        return torch.stack([torch.from_numpy(self.held[update]) for update in updates])
