"""Training on a GPU with separate parameters per client: all clients take a step at once, whatever their base model.

A graph is one step of a fixed number of clients. It draws its own minibatches, so that a step needs no data from the
host; only if clients train for epochs are they drawn outside. Clients are sorted by number of local steps, the largest
first, so that those that have finished are at the end and later steps run on smaller graphs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.learn.cohort import COLUMNS, Cohort
from lesson.learn.counters import gpu_kernels, kernels_for
from lesson.learn.cuda.graphs import Graph, GraphInputs, Precision, padded_size
from lesson.learn.device import to_device
from lesson.learn.lanes.tables import LaneTables
from lesson.learn.local_optimizer import clip_factor, moments_of, take_step
from lesson.learn.losses import as_floats
from lesson.learn.minibatch import sample_weights
from lesson.learn.reference import BLOCK
from lesson.learn.template import arguments_of
from lesson.learn.trees import map_tensors
from lesson.learn.workload import Workload


class CudaBatchedTrainer:
    """Trains cohorts, BLOCK clients at a time; a block may have clients of several cohorts."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._block = workload, ClientBlock(workload, precision)

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        sums = torch.zeros(len(cohorts), self._block.models.shape[1], device=self._workload.device)
        places = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
        for rows, models in self._blocks(cohorts):
            order = np.argsort(places[rows], kind="stable")
            bounds = np.searchsorted(places[rows][order], np.arange(len(cohorts) + 1))
            _add_weighted(sums, models, self._block.weight, order, bounds)
        return list(sums)

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        everybody = torch.empty(sum(map(len, cohorts)), self._block.models.shape[1], device=self._workload.device)
        for rows, models in self._blocks(cohorts):
            everybody[to_device(rows, self._workload.device)] = models
        return list(everybody.split([len(cohort) for cohort in cohorts]))

    def close(self) -> None:
        """Free the graphs."""
        self._block.close()

    def _blocks(self, cohorts: Sequence[Cohort]) -> Iterator[tuple[IntArray, Tensor]]:
        """Yield blocks of rows, most local steps first: their numbers among the rows of all cohorts, and their models.

        The models are valid until the next block.
        """
        bases, everybody = torch.stack([cohort.base for cohort in cohorts]), joined(cohorts)
        place = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
        order = np.argsort(-everybody.local_steps, kind="stable")
        work = self._workload

        def fill(place: Tensor, models: Tensor) -> None:
            torch.index_select(bases, 0, place, out=models)

        for begin in range(0, len(everybody), BLOCK):
            rows = order[begin : begin + BLOCK]
            block = everybody[rows]
            minibatches = MinibatchesInTurn(work, block) if work.sampler.epochs else None
            yield rows, self._block.train(block, place[rows], fill, minibatches)


class MinibatchesInTurn:
    """The minibatches of a block of clients, for one step after the other, drawn many at a time."""

    def __init__(self, workload: Workload, block: Cohort) -> None:
        self._workload, self._block = workload, block
        self._at_once, self._drawn = workload.steps_at_once(block), torch.empty(0)
        self.width, self.num_steps = workload.sampler.width, int(block.local_steps.max())

    def __call__(self, step: int) -> Tensor:
        """Return the samples of a step, shape (num_rows, width); steps must be requested in order."""
        if step % self._at_once == 0:
            count = min(self._at_once, self.num_steps - step)
            self._drawn = self._workload.minibatches(self._block, count, step)
        return self._drawn[step % self._at_once]


class ClientBlock:
    """A block of clients that take local steps at once, each with parameters of its own.

    With `tables`, clients belong to several runs, and a step always computes the whole block, so that a client's model
    does not depend on who else is in it.
    """

    def __init__(
        self, workload: Workload, precision: Precision, size: int = BLOCK, tables: LaneTables | None = None
    ) -> None:
        self._workload, self._precision, self._tables = workload, precision, tables
        device, base = workload.device, workload.initial_vector()
        self._starts, self.models = base.repeat(size, 1), base.repeat(size, 1)
        self._moments = {name: torch.zeros_like(self.models) for name in moments_of(workload.training)}
        self.width = workload.sampler.width if tables is None else workload.batch_size
        self._samples = torch.zeros(size, self.width, dtype=torch.int64, device=device)
        """Samples of the current step; used only if clients train for epochs."""
        numbers = torch.zeros(9, size, dtype=torch.int64, device=device)
        self._inputs = GraphInputs(numbers)
        self._client, self._index, self._first, self._most, self._num_steps, self._lane, self.place = numbers[:7]
        self._lr, self.weight = numbers[7:].view(torch.float64)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._graphs: dict[int, Graph[None]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
        self._gradients: Gradients
        with_gradients(workload, precision, self._record)

    def train(
        self,
        block: Cohort,
        place: IntArray,
        fill: Callable[[Tensor, Tensor], object],
        minibatches: Callable[[int], Tensor] | None = None,
        lane: IntArray | int = 0,
    ) -> Tensor:
        """Return the trained models, shape (num_rows, num_parameters); they are valid until the next call.

        Rows are sorted by number of local steps, the largest first. `fill` is called with `place`, on the device, and
        the models, to write those that rows start from. `minibatches` returns the samples of each step if clients train
        for epochs.
        """
        count, steps = len(block), block.local_steps
        self._inputs.send(partial(_write, block, place, lane))
        fill(self.place[:count], self.models[:count])
        if self._workload.training.proximal_mu:
            self._starts[:count] = self.models[:count]
        for moment in self._moments.values():
            moment.zero_()
        self._step.zero_()
        for step in range(int(steps[0])):
            if minibatches is not None:
                self._samples[:count] = minibatches(step)
            going = int(np.count_nonzero(steps > step))
            self._graph(padded_size(going) if self._tables is None else len(self.models)).replay()
        return self.models[:count]

    def close(self) -> None:
        """Free the graphs."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def _record(self, gradients: "Gradients") -> None:
        self._gradients = gradients
        self._graph(1 if self._tables is None else len(self.models))

    def _graph(self, size: int) -> Graph[None]:
        if size not in self._graphs:
            state = [self.models, self._step, *self._moments.values()]
            before = [one.clone() for one in state]  # recording a graph also takes steps
            step = partial(self._take_step, size)
            self._graphs[size] = Graph(step, self._precision, self._pool, self._workload.device)
            for one, values in zip(state, before, strict=True):
                one.copy_(values)
        return self._graphs[size]

    def _take_step(self, size: int) -> None:
        """Take one step, Eq. (12), with the first `size` models, except those that have finished."""
        work, ids = self._workload, (self._client[:size], self._index[:size])
        training, replica = work.training, self._gradients.replica
        sampler = work.sampler if self._tables is None else self._tables.sampler(self._lane[:size])
        minibatch = self._first[:size] + self._step
        if work.sampler.epochs:
            padded = self._samples[:size]
        else:
            (padded,) = sampler.batches(*ids, 1, first=minibatch, most_samples=self._most[:size])
        going = self._step < self._num_steps[:size]
        samples = work.padded_batch(ids, padded, minibatch, sampler.keys.dropout)
        weights = sample_weights(padded, going.to(torch.float32))
        parameters = replica.named_views(self.models[:size])
        gradients = self._gradients(parameters, samples, weights)
        if training.proximal_mu:
            starts = replica.named_views(self._starts[:size])
            pulls = {name: (one - starts[name]) * _column(going, one) for name, one in parameters.items()}
            gradients = {name: one.add(pulls[name], alpha=training.proximal_mu) for name, one in gradients.items()}
        if training.clip_norm < math.inf:
            squares = torch.stack([one.flatten(1).double().square().sum(1) for one in gradients.values()]).sum(0)
            factor = clip_factor(training.clip_norm, squares).to(torch.float32)
            gradients = {name: one * _column(factor, one) for name, one in gradients.items()}
        moments = {name: replica.named_views(one[:size]) for name, one in self._moments.items()}
        lr = self._lr[:size].to(torch.float32)
        lr = lr if training.is_plain and not moments else lr * going
        kernels = kernels_for(lr) if training.is_plain and not moments else None
        descend = None if kernels is None else kernels.descend
        for name, gradient in gradients.items():
            mine = {moment: views[name] for moment, views in moments.items()}
            if descend is not None and gradient.is_contiguous():
                descend(parameters[name], gradient, lr)
                continue
            take_step(training, parameters[name], gradient, mine, _column(lr, gradient), self._step + 1)
        self._step += 1


class Gradients:
    """Computes the gradients of several models at once, each on samples of its own."""

    def __init__(self, workload: Workload) -> None:
        self._workload, self.replica = workload, workload.replica()
        self.replica.model.train()

    def __call__(self, parameters: dict[str, Tensor], samples: tuple[Any, Any], weights: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the weighted sums of losses.

        `weights` has shape (num_models, num_samples); `samples` are inputs and targets, in that order.
        """
        batch: list[Any] = [map_tensors(lambda part: part.unflatten(0, weights.shape), one) for one in samples]
        gradients: dict[str, Tensor] = vmap(grad(self._loss))(parameters, *[*batch, weights])
        return gradients

    def _loss(self, parameters: dict[str, Tensor], inputs: Any, targets: Any, weights: Tensor) -> Tensor:
        outputs = as_floats(functional_call(self.replica.model, parameters, *arguments_of(inputs)))
        return self._workload.loss.weighted(outputs, targets, weights)


def with_gradients(workload: Workload, precision: Precision, record: Callable[[Gradients], None]) -> None:
    """Call `record` with gradients that use our convolutions, or others if these cannot be recorded for this task."""
    gradients = Gradients(workload)
    model, convolutions = gradients.replica.model, _own_convolutions() if workload.device == "cuda" else None
    if convolutions is not None:
        convolutions.use_kernels(model, precision)
    try:
        record(gradients)
    except InputError:
        if convolutions is None or not convolutions.use_cudnn(model):
            raise
        record(gradients)


def _add_weighted(sums: Tensor, models: Tensor, weights: Tensor, rows: IntArray, bounds: IntArray) -> None:
    """Add Σ weight · model to each sum i, over the rows[bounds[i] : bounds[i + 1]], in double precision."""
    kernels = kernels_for(models)
    if kernels is not None:
        kernels.add_weighted(sums, models, weights, *(to_device(one, "cuda") for one in (rows, bounds)))
        return
    for total, (begin, end) in zip(sums, pairwise(bounds.tolist()), strict=True):
        mine = torch.from_numpy(rows[begin:end]).to(models.device)
        total += (weights[mine] @ models[mine].double()).float()


def _own_convolutions() -> ModuleType | None:
    """Return the module of convolutions with separate weights; None if Triton is unavailable."""
    if gpu_kernels() is None:
        return None
    from lesson.learn.cuda import convolution

    return convolution


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per model in a shape that can be multiplied with a parameter of all models."""
    return values.view(-1, *[1] * (like.dim() - 1))


def joined(cohorts: Sequence[Cohort]) -> Cohort:
    """Return the rows of all cohorts as one; only its columns are meaningful, as base models differ."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(cohort, name) for cohort in cohorts]) for name in COLUMNS}
    return replace(cohorts[0], **columns)


def _write(block: Cohort, place: IntArray, lane: IntArray | int, whole: IntArray, real: FloatArray) -> None:
    """Write the inputs of a block's graphs; rows without a client take no steps."""
    count = len(block)
    whole[4, count:] = 0
    whole[:5, :count] = block.client, block.index, block.first, block.most_samples, block.local_steps
    whole[5, :count], whole[6, :count] = lane, place
    real[7:, :count] = block.lr, block.weight
