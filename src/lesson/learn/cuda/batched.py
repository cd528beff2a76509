"""Several local steps for a whole cohort, on a GPU: every client has parameters of its own, all take a step at once.

A graph is one step of so many clients. Clients are ordered by the length of their work, so that those who are done drop
out at the end and the steps that are left are done for fewer.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson.learn.cuda.gather import gathered
from lesson.learn.cuda.graphs import Graph, Precision, padded_size
from lesson.learn.minibatch import NO_SAMPLE
from lesson.learn.reference import BLOCK, sum_by_blocks
from lesson.learn.task import Job, Task, Work, sent


class CudaBatchedTrainer:
    """Trains cohorts, at most BLOCK clients at a time."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._replica = task.replica()
        device, base = task.device, task.initial_vector()
        self._base, self._models = base, base.repeat(BLOCK, 1)
        self._samples = torch.zeros(BLOCK, task.batch_size, dtype=torch.int64, device=device)
        numbers = torch.zeros(4, BLOCK, dtype=torch.int64, device=device)
        self._client, self._index, self._first, self._num_steps = numbers
        self._lr = torch.zeros(BLOCK, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._columns = torch.arange(task.batch_size, device=device)
        self._graphs: dict[int, Graph[None]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """The weighted sum of the models of each cohort."""
        return [
            sum_by_blocks(work[np.argsort(-work.local_steps, kind="stable")], partial(self._train, base))
            for base, work in jobs
        ]

    def close(self) -> None:
        """Let the graphs go."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def _train(self, base: Tensor, work: Work) -> Tensor:
        count, steps = len(work), work.local_steps
        samples = self._task.minibatches(work, int(steps[0]))
        self._base.copy_(base)
        self._models.copy_(base)
        self._client[:count], self._index[:count] = self._task.ids(work)
        self._num_steps.zero_()
        self._num_steps[:count] = sent(steps, base.device.type)
        self._first[:count] = sent(work.first, base.device.type)
        self._lr[:count] = sent(work.lr, base.device.type)
        for step in range(int(steps[0])):
            graph = self._graph(padded_size(int(np.count_nonzero(steps > step))))
            self._samples[:count] = samples[step]
            self._step.fill_(step)
            graph.replay()
        return self._models[:count]

    def _graph(self, size: int) -> Graph[None]:
        if size not in self._graphs:
            before = self._models.clone()  # recording takes steps, too
            self._graphs[size] = Graph(partial(self._take_step, size), self._precision, self._pool)
            self._models.copy_(before)
        return self._graphs[size]

    def _take_step(self, size: int) -> None:
        """Move the models of the first clients by one step of SGD, Eq. (12), unless they are done."""
        task, replica, shape = self._task, self._replica, (size, self._task.batch_size)
        padded = self._samples[:size]
        going = self._step < self._num_steps[:size]
        there = (padded != NO_SAMPLE) & going[:, None]
        weight = (there / there.sum(1, keepdim=True).clamp(min=1)).to(torch.float32)
        ids = self._client[:size], self._index[:size]
        places = (self._first[:size, None] + self._step) * task.batch_size + self._columns
        batch = gathered(task, replica, ids, padded, places)
        images, labels, *kept = (part.unflatten(0, shape) for part in batch if part is not None)
        parameters, starts = replica.named_views(self._models[:size]), replica.named_views(self._base[None])
        for name, gradient in vmap(grad(self._loss))(parameters, images, labels, weight, *kept).items():
            column = (-1, *[1] * (gradient.dim() - 1))
            if task.proximal_mu:
                pull = (parameters[name] - starts[name]) * going.view(column)
                gradient = gradient.add(pull, alpha=task.proximal_mu)
            parameters[name].addcmul_(gradient, self._lr[:size].view(column), value=-1)

    def _loss(
        self, parameters: dict[str, Tensor], images: Tensor, labels: Tensor, weight: Tensor, *kept: Tensor
    ) -> Tensor:
        logits: Tensor = functional_call(self._replica.model, parameters, (images, *kept))
        return functional.cross_entropy(logits.float(), labels, reduction="none") @ weight
