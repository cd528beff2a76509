"""The reference trainer: one client after the other, without optimizations. All other trainers must agree with it."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.device import to_device
from lesson.learn.models import Replica
from lesson.learn.task import Job, Task, Work

BLOCK = 64
STEPS_AT_ONCE, MAX_GATHERED = 64, 1 << 14
"""Largest number of steps whose samples are gathered together, and largest number of these samples."""


def train_client(task: Task, replica: Replica, base: Tensor, work: Work) -> Tensor:
    """Return the model of one client after its local steps of SGD, Eq. (12), with FedProx's term if μ > 0."""
    replica.load(base.clone())
    num_steps, (client, index) = int(work.local_steps[0]), task.ids(work)
    at_once, gathered = task.steps_at_once(work), max(1, MAX_GATHERED // task.sampler.width)
    for begin in range(0, num_steps, at_once):
        samples = task.minibatches(work, min(at_once, num_steps - begin), begin)[:, 0]
        for steps in torch.arange(len(samples), device=base.device).split(min(STEPS_AT_ONCE, gathered)):
            ids = client.expand(len(steps)), index.expand(len(steps))
            for batch in task.batch(replica, ids, samples[steps], steps + begin + int(work.first[0])).split():
                loss = functional.cross_entropy(replica.logits(batch.images, batch.kept), batch.labels)
                replica.descend(loss, float(work.lr[0]), base, task.proximal_mu)
    return replica.vector()


def sum_by_blocks(work: Work, train: Callable[[Work], Tensor]) -> Tensor:
    """Return Σ weight · model of a cohort, shape (num_parameters,); at most BLOCK models are in memory at a time."""
    total: Tensor | None = None
    for begin in range(0, len(work), BLOCK):
        part = work[begin : begin + BLOCK]
        models = train(part)
        block = to_device(part.weight, models.device.type).to(models.dtype) @ models
        total = block if total is None else total + block
    assert total is not None, "a cohort has somebody in it"
    return total


def models_by_blocks(work: Work, num_parameters: int, train: Callable[[Work], Tensor]) -> Tensor:
    """Return the models of a cohort, shape (len(work), num_parameters), trained BLOCK at a time."""
    models = torch.empty(len(work), num_parameters)
    for begin in range(0, len(work), BLOCK):
        models[begin : begin + BLOCK] = train(work[begin : begin + BLOCK])
    return models


class ReferenceTrainer:
    """Trains one client after the other in this process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._replica = task.replica()

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        return [sum_by_blocks(work, partial(self._train, base)) for base, work in jobs]

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (len(work), num_parameters)."""
        return [models_by_blocks(work, len(base), partial(self._train, base)) for base, work in jobs]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _train(self, base: Tensor, work: Work) -> Tensor:
        return torch.stack(
            [train_client(self.task, self._replica, base, work[row : row + 1]) for row in range(len(work))]
        )
