"""The reference trainer: one client after the other, without optimizations. All other trainers must agree with it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.cohort import Cohort
from lesson.learn.models import Replica
from lesson.learn.task import Task

BLOCK = 64
STEPS_AT_ONCE, MAX_GATHERED = 64, 1 << 14
"""Largest number of steps whose samples are gathered together, and largest number of these samples."""


def train_client(task: Task, replica: Replica, cohort: Cohort) -> Tensor:
    """Return the model of a cohort's only row after its local steps of SGD, Eq. (12), with FedProx's term if μ > 0."""
    base = cohort.base
    replica.load(base.clone())
    num_steps, (client, index) = int(cohort.local_steps[0]), task.ids(cohort)
    at_once, gathered = task.steps_at_once(cohort), max(1, MAX_GATHERED // task.sampler.width)
    for begin in range(0, num_steps, at_once):
        samples = task.minibatches(cohort, min(at_once, num_steps - begin), begin)[:, 0]
        for steps in torch.arange(len(samples), device=base.device).split(min(STEPS_AT_ONCE, gathered)):
            ids = client.expand(len(steps)), index.expand(len(steps))
            for batch in task.batch(replica, ids, samples[steps], steps + begin + int(cohort.first[0])).split():
                loss = functional.cross_entropy(replica.logits(batch.images, batch.kept), batch.labels)
                replica.descend(loss, float(cohort.lr[0]), base, task.proximal_mu)
    return replica.vector()


def sum_by_blocks(cohort: Cohort, train: Callable[[Cohort], Tensor]) -> Tensor:
    """Return Σ weight · model of a cohort, shape (num_parameters,); at most BLOCK models are in memory at a time."""
    total: Tensor | None = None
    for begin in range(0, len(cohort), BLOCK):
        part = cohort[begin : begin + BLOCK]
        block = replace(part, trained=train(part)).weighted_sum()
        total = block if total is None else total + block
    assert total is not None, "a cohort has at least one row"
    return total


def models_by_blocks(cohort: Cohort, train: Callable[[Cohort], Tensor]) -> Tensor:
    """Return the models of a cohort, shape (num_rows, num_parameters), trained BLOCK at a time."""
    models = torch.empty(len(cohort), len(cohort.base))
    for begin in range(0, len(cohort), BLOCK):
        models[begin : begin + BLOCK] = train(cohort[begin : begin + BLOCK])
    return models


class ReferenceTrainer:
    """Trains one client after the other in this process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._replica = task.replica()

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        return [sum_by_blocks(cohort, self._train) for cohort in cohorts]

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (num_rows, num_parameters)."""
        return [models_by_blocks(cohort, self._train) for cohort in cohorts]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _train(self, cohort: Cohort) -> Tensor:
        rows = (cohort[row : row + 1] for row in range(len(cohort)))
        return torch.stack([train_client(self.task, self._replica, row) for row in rows])
