"""Training of one local step on a GPU, for a whole cohort at once, by the formula of the CPU's fused.py.

A graph draws the minibatches, gathers them and computes the weighted sum of the clients' models. Cohorts of a wave run
concurrently on several streams. If many cohorts have few clients, as in asynchronous strategies, it is faster to train
these with separate parameters per client; see batched.py.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.cohort import Cohort
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.graphs import Graph, GraphInputs, Precision, padded_size
from lesson.learn.losses import as_floats
from lesson.learn.minibatch import sample_weights
from lesson.learn.workload import Workload

PART_SAMPLES, MAX_GRAPHS, NUM_STREAMS = 2000, 64, 8
MAX_CONCURRENT = 4
"""Largest number of cohorts of one size that run concurrently, each with a graph of its own."""
FEW_CLIENTS, MANY_COHORTS = 4, 3


class CudaFusedTrainer:
    """Trains cohorts whose clients take one local step."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self.workload, self._precision = workload, precision
        self._steps: dict[tuple[int, int], _FusedStep] = {}
        self._part = max(1, PART_SAMPLES // workload.batch_size)
        self._streams = [torch.cuda.Stream() for _ in range(NUM_STREAMS)]
        self._step(1, 0)  # raises InputError if this task cannot be recorded

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        few = [place for place, cohort in enumerate(cohorts) if len(cohort) <= FEW_CLIENTS]
        if len(few) < MANY_COHORTS:
            return self._side_by_side(cohorts)
        sums = dict(zip(few, self._one_by_one.sums([cohorts[place] for place in few]), strict=True))
        rest = [place for place in range(len(cohorts)) if place not in sums]
        sums |= zip(rest, self._side_by_side([cohorts[place] for place in rest]), strict=True)
        return [sums[place] for place in range(len(cohorts))]

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        return self._one_by_one.models(cohorts)

    def close(self) -> None:
        """Free the graphs."""
        for step in self._steps.values():
            step.graph.close()
        self._steps.clear()
        if "_one_by_one" in vars(self):
            self._one_by_one.close()

    @cached_property
    def _one_by_one(self) -> CudaBatchedTrainer:
        return CudaBatchedTrainer(self.workload, self._precision)

    def _side_by_side(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        sums = torch.empty(len(cohorts), self.workload.template.num_values, device=self.workload.device)
        main, used = torch.cuda.current_stream(), Counter[int]()
        begun, streams = main.record_event(), dict[tuple[int, int], torch.cuda.Stream]()
        for cohort, total in zip(cohorts, sums, strict=True):
            size = padded_size(min(len(cohort), self._part))
            key = size, used[size] % MAX_CONCURRENT
            used[size] += 1
            step = self._step(*key)
            if key not in streams:  # a step that is used again continues on its stream
                place = len(streams)
                streams[key] = self._streams[place % NUM_STREAMS] if place else main
                if place:
                    streams[key].wait_event(begun)
            if streams[key] is main:
                self._sum(step, cohort, total)
                continue
            with torch.cuda.stream(streams[key]):
                self._sum(step, cohort, total)
        for stream in streams.values():
            if stream is not main:
                main.wait_stream(stream)
        return list(sums)

    def _sum(self, step: "_FusedStep", cohort: Cohort, total: Tensor) -> None:
        """Write the weighted sum of the trained models into `total`."""
        total.copy_(step.run(cohort if len(cohort) <= self._part else cohort[: self._part]))
        for begin in range(self._part, len(cohort), self._part):
            total += step.run(cohort[begin : begin + self._part])

    def _step(self, size: int, number: int) -> "_FusedStep":
        """Return a graph for `size` clients; cohorts of one size that run concurrently get one per `number`."""
        step = self._steps.pop((size, number), None)
        if step is None:
            if len(self._steps) == MAX_GRAPHS:
                self._steps.pop(next(iter(self._steps))).graph.close()  # the least recently used one
            step = _FusedStep(self.workload, size, self._precision)
        self._steps[size, number] = step
        return step


class _FusedStep:
    """The graph of one step of `num_clients` clients; in a smaller cohort the remaining rows have weight 0."""

    def __init__(self, workload: Workload, num_clients: int, precision: Precision) -> None:
        self._workload, self._replica = workload, workload.replica()
        self._base = workload.initial_vector()
        self._numbers = torch.zeros(6, num_clients, dtype=torch.int64, device=workload.device)
        self.graph = Graph(self._sum, precision)
        self._inputs = GraphInputs(self._numbers)

    def run(self, cohort: Cohort) -> Tensor:
        """Return the weighted sum of the trained models; valid until the next run."""
        self._base.copy_(cohort.base)
        self._inputs.send(partial(_write, cohort))
        self.graph.replay()
        return self.graph.out

    def _sum(self) -> Tensor:
        work, replica = self._workload, self._replica
        client, index, first, most_samples = self._numbers[:4]
        scale, weights = self._numbers[4:].view(torch.float64)
        (padded,) = work.sampler.batches(client, index, 1, first=first, most_samples=most_samples)
        inputs, targets = work.padded_batch((client, index), padded, first)
        replica.load(self._base)
        outputs = as_floats(replica.outputs(inputs, training=True))
        weighted = work.loss.weighted(outputs, targets, sample_weights(padded, scale).flatten())
        moved: Tensor = self._base * weights[0].to(torch.float32) - replica.gradient(weighted)
        return moved


def _write(cohort: Cohort, whole: IntArray, real: FloatArray) -> None:
    """Write client, index, minibatch, its samples, step size × weight and, in the first column, the total weight."""
    count = len(cohort)
    whole[:, count:] = 0
    whole[:4, :count] = cohort.client, cohort.index, cohort.first, cohort.most_samples
    np.multiply(cohort.weight, cohort.lr, out=real[4, :count])
    real[5, 0] = cohort.weight.sum()
