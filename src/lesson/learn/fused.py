"""One step for a whole cohort at once.

After one step of SGD the weighted sum of the clients' models is
Σ a·(ω − λ·∇f) = (Σ a)·ω − ∇ Σ a·λ·f: one step on one weighted loss, so one forward and backward pass serves everybody.
FedProx's μ·(ω' − ω) is 0 in the first step, where ω' = ω, and therefore not here.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.models import Replica
from lesson.learn.task import Job, Task, Work
from lesson.learn.threads import Threads

CHUNK_SAMPLES = 500
WORTH_HALVING = 160


class FusedTrainer:
    """Trains cohorts whose local work is one step."""

    def __init__(self, task: Task, threads: Threads) -> None:
        self.task, self._threads = task, threads

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The weighted sum of the models of each cohort."""
        return [self._cohort(base, work) for base, work in jobs]

    def close(self) -> None:
        """The threads belong to somebody else."""

    def _cohort(self, base: Tensor, work: Work) -> Tensor:
        (samples,) = self.task.minibatches(work, 1)
        num_chunks = 1 if samples.numel() < WORTH_HALVING else max(2, round(samples.numel() / CHUNK_SAMPLES))
        chunks = [
            self._threads.submit(self._gradient, base, work[rows], samples[rows])
            for rows in np.array_split(np.arange(len(work)), min(num_chunks, len(work)))
        ]
        total = base * float(work.weight.sum())
        for chunk in chunks:
            total -= chunk.result()
        return total

    def _gradient(self, replica: Replica, work: Work, padded: Tensor) -> Tensor:
        batch = self.task.batch(replica, self.task.ids(work), padded, torch.from_numpy(work.first))
        scale = torch.from_numpy(work.weight * work.lr) / batch.counts
        weight = scale.repeat_interleave(batch.counts).to(torch.float32)
        losses = functional.cross_entropy(replica.logits(batch.images, batch.kept), batch.labels, reduction="none")
        return replica.gradient(losses @ weight)
