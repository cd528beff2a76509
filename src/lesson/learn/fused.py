"""One step for a whole cohort at once.

After one step of SGD the weighted sum of the clients' models is
Σ a·(ω − λ·∇f) = (Σ a)·ω − ∇ Σ a·λ·f: one step on one weighted loss, so one forward and backward pass serves everybody.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.arrays import IntArray
from lesson.learn.models import Replica
from lesson.learn.task import Task, Work, valid
from lesson.learn.threads import Threads

CHUNK_SAMPLES = 500
WORTH_HALVING = 160


class FusedTrainer:
    """Trains cohorts whose local work is one step."""

    def __init__(self, task: Task, threads: Threads) -> None:
        self.task, self._threads = task, threads

    def cohort(self, base: Tensor, work: Work) -> Tensor:
        """The weighted sum of the models of a cohort that started from `base`."""
        samples = self.task.sampler.batches(work.client, work.index, 0)
        num_chunks = 1 if samples.size < WORTH_HALVING else max(2, round(samples.size / CHUNK_SAMPLES))
        chunks = [
            self._threads.submit(self._gradient, base, work[rows], samples[rows])
            for rows in np.array_split(np.arange(len(work)), min(num_chunks, len(work)))
        ]
        total = base * float(work.weight.sum())
        for chunk in chunks:
            total -= chunk.result()
        return total

    def close(self) -> None:
        """The threads belong to somebody else."""

    def _gradient(self, replica: Replica, work: Work, padded: IntArray) -> Tensor:
        samples, counts = valid(padded)
        images, labels = self.task.batch(samples)
        kept = self.task.kept(replica, work, padded, step=0)
        weight = torch.from_numpy(np.repeat(work.weight * work.lr / counts, counts)).to(torch.float32)
        losses = functional.cross_entropy(replica.logits(images, kept), labels, reduction="none")
        return replica.gradient(losses @ weight)
