"""The plain trainer: one client after the other, as one would write it down. The others must agree with it."""

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.dropout import draw_kept
from lesson.learn.models import Replica
from lesson.learn.task import Task, Work, valid


def train_client(task: Task, replica: Replica, base: Tensor, work: Work) -> Tensor:
    """The model of a single client after its local steps of SGD, Eq. (12)."""
    vector = base.clone()
    for step in range(int(work.local_steps[0])):
        samples, _ = valid(task.sampler.batches(work.client, work.index, step))
        images, labels = task.batch(samples)
        kept = None
        if replica.num_dropout_units:
            places = step * task.batch_size + torch.arange(len(samples)).numpy()
            clients, index = work.client.repeat(len(samples)), work.index.repeat(len(samples))
            kept = draw_kept(task.seed, replica.num_dropout_units, clients, index, places)
        replica.load(vector)
        loss = functional.cross_entropy(replica.logits(images, kept), labels)
        vector = vector - float(work.lr[0]) * replica.gradient(loss)
    return vector


def weighted_sum(models: Tensor, work: Work) -> Tensor:
    """Σ weight · model over a cohort's trained models, (num_parameters,)."""
    return torch.from_numpy(work.weight).to(models.dtype) @ models


class ReferenceTrainer:
    """Trains in this process, one client after the other."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._replica = task.replica()

    def cohort(self, base: Tensor, work: Work) -> Tensor:
        """The weighted sum of the models of a cohort that started from `base`."""
        models = [train_client(self.task, self._replica, base, work[row : row + 1]) for row in range(len(work))]
        return weighted_sum(torch.stack(models), work)

    def close(self) -> None:
        """Nothing is held."""
