"""Training on a GPU with separate parameters per client: all clients take a step at once, whatever their base model.

A graph is one step of a fixed number of clients. Clients are sorted by number of local steps, the largest first, so
that those that have finished are at the end and later steps run on smaller graphs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lesson.core.arrays import IntArray
from lesson.learn.cohort import COLUMNS, Cohort
from lesson.learn.cuda.gather import gathered
from lesson.learn.cuda.graphs import Graph, Precision, padded_size
from lesson.learn.device import to_device
from lesson.learn.minibatch import sample_weights
from lesson.learn.reference import BLOCK
from lesson.learn.task import Task


class CudaBatchedTrainer:
    """Trains cohorts, BLOCK clients at a time; a block may have clients of several cohorts."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._replica = task.replica()
        device, base = task.device, task.initial_vector()
        self._starts, self._models = base.repeat(BLOCK, 1), base.repeat(BLOCK, 1)
        self._samples = torch.zeros(BLOCK, task.sampler.width, dtype=torch.int64, device=device)
        numbers = torch.zeros(4, BLOCK, dtype=torch.int64, device=device)
        self._client, self._index, self._first, self._num_steps = numbers
        self._lr = torch.zeros(BLOCK, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._columns = torch.arange(task.sampler.width, device=device)
        self._graphs: dict[int, Graph[None]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        weight, place = np.concatenate([cohort.weight for cohort in cohorts]), _place_of_each(cohorts)
        sums = torch.zeros(len(cohorts), self._models.shape[1], device=self._task.device)
        for rows, models in self._blocks(cohorts):
            weights = np.zeros((len(cohorts), len(rows)))
            weights[place[rows], np.arange(len(rows))] = weight[rows]
            sums += to_device(weights, self._task.device) @ models.double()  # a float32 product could use TF32
        return list(sums)

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (num_rows, num_parameters)."""
        sizes = [len(cohort) for cohort in cohorts]
        everybody = torch.empty(sum(sizes), self._models.shape[1], device=self._task.device)
        for rows, models in self._blocks(cohorts):
            everybody[to_device(rows, self._task.device)] = models
        return list(everybody.split(sizes))

    def close(self) -> None:
        """Free the graphs."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def _blocks(self, cohorts: Sequence[Cohort]) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield blocks of rows, most local steps first: their numbers among the rows of all cohorts, and their models.

        The models are valid until the next block.
        """
        bases, everybody = torch.stack([cohort.base for cohort in cohorts]), _joined(cohorts)
        place, order = _place_of_each(cohorts), np.argsort(-everybody.local_steps, kind="stable")
        for begin in range(0, len(everybody), BLOCK):
            rows = order[begin : begin + BLOCK]
            yield rows, self._train(bases[to_device(place[rows], self._task.device)], everybody[rows])

    def _train(self, starts: Tensor, block: Cohort) -> Tensor:
        """Return the trained models, shape (num_rows, num_parameters); row i starts from `starts[i]`."""
        count, steps = len(block), block.local_steps
        at_once = self._task.steps_at_once(block)
        self._starts[:count] = self._models[:count] = starts
        self._client[:count], self._index[:count] = self._task.ids(block)
        self._num_steps.zero_()
        self._num_steps[:count] = to_device(steps, self._task.device)
        self._first[:count] = to_device(block.first, self._task.device)
        self._lr[:count] = to_device(block.lr, self._task.device)
        for step in range(int(steps[0])):
            if step % at_once == 0:
                samples = self._task.minibatches(block, min(at_once, int(steps[0]) - step), step)
            graph = self._graph(padded_size(int(np.count_nonzero(steps > step))))
            self._samples[:count] = samples[step % at_once]
            self._step.fill_(step)
            graph.replay()
        return self._models[:count]

    def _graph(self, size: int) -> Graph[None]:
        if size not in self._graphs:
            before = self._models.clone()  # recording a graph also takes steps
            self._graphs[size] = Graph(partial(self._take_step, size), self._precision, self._pool)
            self._models.copy_(before)
        return self._graphs[size]

    def _take_step(self, size: int) -> None:
        """Take one step of SGD, Eq. (12), on the first `size` models, except those that have finished."""
        task, replica, shape = self._task, self._replica, (size, self._task.sampler.width)
        padded = self._samples[:size]
        going = self._step < self._num_steps[:size]
        weight = sample_weights(padded, going.to(torch.float32))
        ids = self._client[:size], self._index[:size]
        places = (self._first[:size, None] + self._step) * task.batch_size + self._columns
        batch = gathered(task, replica, ids, padded, places)
        images, labels, *kept = (part.unflatten(0, shape) for part in batch if part is not None)
        parameters, starts = replica.named_views(self._models[:size]), replica.named_views(self._starts[:size])
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


def _joined(cohorts: Sequence[Cohort]) -> Cohort:
    """Return the rows of all cohorts as one; only its columns are meaningful, as base models differ."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(cohort, name) for cohort in cohorts]) for name in COLUMNS}
    return replace(cohorts[0], **columns)


def _place_of_each(cohorts: Sequence[Cohort]) -> IntArray:
    """Return the place of each row's cohort in `cohorts`, for the rows of all cohorts one after the other."""
    return np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
