"""Training of one local step on a CPU, for a whole cohort at once.

After one step of SGD the weighted sum of the clients' models is

    Σ a·(ω − λ·∇f) = (Σ a)·ω − ∇ Σ a·λ·f.

This is one step on one weighted loss, so a single forward and backward pass serves all clients, unless the samples of
a minibatch influence each other or the model is random. If the models are needed, each takes its own pass. FedProx's
term μ·(ω' − ω) is omitted, as it is 0 in the first step, where ω' = ω.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from lesson.learn.cohort import Cohort
from lesson.learn.minibatch import NO_SAMPLE, sample_weights
from lesson.learn.template import Replica
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload

PART_SAMPLES = 500
WORTH_HALVING = 160
ROWS = 2
"""Models that one task of a thread trains: few enough to occupy many threads, and their base is loaded once."""


class FusedTrainer:
    """Trains cohorts whose clients take one local step."""

    def __init__(self, workload: Workload, threads: Threads) -> None:
        self.workload, self._threads = workload, threads

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        begun = deque([self._begin_gradients(cohort) for cohort in cohorts])  # all, to keep every thread busy
        return [self._sum(cohort, begun.popleft()) for cohort in cohorts]

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        models = [torch.empty(len(cohort), len(cohort.base)) for cohort in cohorts]
        begun = [self._begin_models(cohort, rows) for cohort, rows in zip(cohorts, models, strict=True)]
        for part in chain.from_iterable(begun):
            part.result()
        return models

    def close(self) -> None:
        """Do nothing: the threads belong to the backend."""

    def _begin_gradients(self, cohort: Cohort) -> "list[Future[Tensor]]":
        """Start to compute the parts of ∇ Σ a·λ·f, one per group of clients."""
        (samples,) = self.workload.minibatches(cohort, 1)
        num_samples = len(cohort) * self.workload.batch_size
        num_parts = 1 if num_samples < WORTH_HALVING else max(2, round(num_samples / PART_SAMPLES))
        return [
            self._threads.submit(self._gradient, cohort.base, cohort[rows], samples[rows])
            for rows in np.array_split(np.arange(len(cohort)), min(num_parts, len(cohort)))
        ]

    def _sum(self, cohort: Cohort, parts: "list[Future[Tensor]]") -> Tensor:
        """Return (Σ a)·ω minus the parts of the gradient, subtracted in order."""
        total = cohort.base * float(cohort.weight.sum())
        for part in parts:
            total -= part.result()
        return total

    def _gradient(self, replica: Replica, cohort: Cohort, padded: Tensor) -> Tensor:
        workload, scale = self.workload, torch.from_numpy(cohort.weight * cohort.lr)
        batch = workload.batch(workload.ids(cohort), padded, torch.from_numpy(cohort.first))
        outputs, weights = replica.outputs(batch.inputs, training=True), sample_weights(padded, scale)
        loss = workload.loss.weighted(outputs, batch.targets, weights[padded != NO_SAMPLE])
        return replica.gradient(loss)

    def _begin_models(self, cohort: Cohort, models: Tensor) -> "list[Future[None]]":
        """Start to train the clients of a cohort, writing into `models`."""
        (samples,) = self.workload.minibatches(cohort, 1)
        parts = (slice(begin, begin + ROWS) for begin in range(0, len(cohort), ROWS))
        return [
            self._threads.submit(self._descend, cohort.base, cohort[rows], samples[rows], models[rows])
            for rows in parts
        ]

    def _descend(self, replica: Replica, cohort: Cohort, padded: Tensor, models: Tensor) -> None:
        """Write ω − λ·∇f of each client into its row of `models`, Eq. (12)."""
        batch = self.workload.batch(self.workload.ids(cohort), padded, torch.from_numpy(cohort.first))
        for one, lr, model in zip(batch.split(), cohort.lr.tolist(), models, strict=True):
            loss = self.workload.loss.mean(replica.outputs(one.inputs, training=True), one.targets)
            torch.add(cohort.base, replica.gradient(loss), alpha=-lr, out=model)
