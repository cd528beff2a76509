"""Training of one local step on a GPU, for a whole cohort at once, by the formula of the CPU's fused.py.

A graph draws the minibatches, gathers them and computes the weighted sum of the clients' models. Cohorts that are
aggregated together run concurrently on several streams. If there are many cohorts of few clients, as in strategies
without rounds, it is faster to train these with separate parameters per client; see batched.py.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import cycle

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.gather import gathered
from lesson.learn.cuda.graphs import Graph, Precision, padded_size
from lesson.learn.minibatch import NO_SAMPLE
from lesson.learn.task import Job, Task, Work

CHUNK_SAMPLES, MAX_GRAPHS, NUM_STREAMS, NUM_LETTERS = 2000, 64, 8, 64
FEW_CLIENTS, MANY_COHORTS = 4, 3


class CudaFusedTrainer:
    """Trains cohorts whose clients take one local step."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self.task, self._precision = task, precision
        self._steps: dict[tuple[int, int], _FusedStep] = {}
        self._chunk = max(1, CHUNK_SAMPLES // task.batch_size)
        self._streams = [torch.cuda.Stream() for _ in range(NUM_STREAMS)]

    def cohorts(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort; valid until the next call of `cohorts`."""
        few = [place for place, (_, work) in enumerate(jobs) if len(work) <= FEW_CLIENTS]
        if len(few) < MANY_COHORTS:
            return self._side_by_side(jobs)
        sums = dict(zip(few, self._one_by_one.cohorts([jobs[place] for place in few]), strict=True))
        rest = [place for place in range(len(jobs)) if place not in sums]
        sums |= zip(rest, self._side_by_side([jobs[place] for place in rest]), strict=True)
        return [sums[place] for place in range(len(jobs))]

    def models(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (len(work), num_parameters)."""
        return self._one_by_one.models(jobs)

    def close(self) -> None:
        """Free the graphs."""
        for step in self._steps.values():
            step.graph.close()
        self._steps.clear()
        if "_one_by_one" in vars(self):
            self._one_by_one.close()

    @cached_property
    def _one_by_one(self) -> CudaBatchedTrainer:
        return CudaBatchedTrainer(self.task, self._precision)

    def _side_by_side(self, jobs: Sequence[Job]) -> list[Tensor]:
        main = torch.cuda.current_stream()
        begun = main.record_event()
        sums, ended, used = [], [], Counter[int]()
        for place, (base, work) in enumerate(jobs):
            size = padded_size(min(len(work), self._chunk))
            step = self._step(size, used[size])
            used[size] += 1
            if place == 0:
                sums.append(self._cohort(step, base, work))
                continue
            stream = self._streams[place % NUM_STREAMS]
            stream.wait_event(begun)
            with torch.cuda.stream(stream):
                sums.append(self._cohort(step, base, work))
            ended.append(stream.record_event())
        for event in ended:
            main.wait_event(event)
        return sums

    def _cohort(self, step: "_FusedStep", base: Tensor, work: Work) -> Tensor:
        if len(work) <= self._chunk:
            return step.run(base, work)
        parts = (work[begin : begin + self._chunk] for begin in range(0, len(work), self._chunk))
        total = step.run(base, next(parts)).clone()
        for part in parts:
            total += step.run(base, part)
        return total

    def _step(self, size: int, number: int) -> "_FusedStep":
        """Return a graph for `size` clients; cohorts of one size that run concurrently get one per `number`."""
        step = self._steps.pop((size, number), None)
        if step is None:
            if len(self._steps) == MAX_GRAPHS:
                self._steps.pop(next(iter(self._steps))).graph.close()  # the least recently used one
            step = _FusedStep(self.task, size, self._precision)
        self._steps[size, number] = step
        return step


class _FusedStep:
    """The graph of one step of `num_clients` clients; in a smaller cohort the remaining rows have weight 0."""

    def __init__(self, task: Task, num_clients: int, precision: Precision) -> None:
        self._task, self._replica = task, task.replica()
        self._base = task.initial_vector()
        self._numbers = torch.zeros(5, num_clients, dtype=torch.int64, device=task.device)
        self._columns = torch.arange(task.sampler.width, device=task.device)
        self.graph = Graph(self._sum, precision)
        self._letters = cycle([_GraphInput(self._numbers.shape) for _ in range(NUM_LETTERS)])

    def run(self, base: Tensor, work: Work) -> Tensor:
        """Return the weighted sum of the trained models; valid until the next run."""
        self._base.copy_(base)
        next(self._letters).send(work, self._numbers)
        self.graph.replay()
        return self.graph.out

    def _sum(self) -> Tensor:
        task, replica = self._task, self._replica
        client, index, first = self._numbers[:3]
        scale, weights = self._numbers[3:].view(torch.float64)
        (padded,) = task.sampler.batches(client, index, 1, first=first)
        there = padded != NO_SAMPLE
        weight = torch.where(there, (scale / there.sum(1))[:, None], 0.0).to(torch.float32).flatten()
        places = first[:, None] * task.batch_size + self._columns
        images, labels, kept = gathered(task, replica, (client, index), padded, places)
        replica.load(self._base)
        losses = functional.cross_entropy(replica.logits(images, kept).float(), labels, reduction="none")
        moved: Tensor = self._base * weights[0].to(torch.float32) - replica.gradient(losses @ weight)
        return moved


class _GraphInput:
    """Input buffer of a graph for one cohort, in pinned memory that is copied to the GPU asynchronously."""

    def __init__(self, shape: torch.Size) -> None:
        self._numbers = torch.zeros(shape, dtype=torch.int64, pin_memory=True)
        self._whole, self._real = self._numbers.numpy(), self._numbers.view(torch.float64).numpy()
        self._fetched = torch.cuda.Event()

    def send(self, work: Work, to: Tensor) -> None:
        """Write client, index, minibatch, step size × weight and the total weight, and start the copy to the GPU."""
        self._fetched.synchronize()  # the last copy of this letter; returns at once unless the GPU is far behind
        count = len(work)
        self._whole[:, count:] = 0
        self._whole[:3, :count] = work.client, work.index, work.first
        np.multiply(work.weight, work.lr, out=self._real[3, :count])
        self._real[4, 0] = work.weight.sum()
        to.copy_(self._numbers, non_blocking=True)
        self._fetched.record()
