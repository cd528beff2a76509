"""Evaluation on a GPU: test scores with one CUDA graph where possible, everything else without a graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lesson.learn.cuda.graphs import Graph, Precision, arithmetic
from lesson.learn.losses import as_floats, correct
from lesson.learn.scores import Known, Score, chunked, joined, judge, make_score
from lesson.learn.task import ACCURACY, Arrays, map_arrays
from lesson.learn.template import prepared
from lesson.learn.workload import Workload

CHUNK_SAMPLES = 2000


class CudaScorer:
    """Evaluates models on the test data with a graph, one after another; not for tasks with their own metrics."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._replica = workload, workload.replica()
        self._vector = workload.initial_vector()
        self._graph = Graph(self._sums, precision)
        self._stream = torch.cuda.Stream()

    def begin(self, vector: Tensor) -> "_PendingGpuScore":
        """Start to evaluate the model with these exchanged values, concurrently with other work on the GPU."""
        stream, sums = self._stream, torch.empty(2, dtype=torch.float64, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._vector.copy_(vector)
            vector.record_stream(stream)
            self._graph.replay()
            sums.copy_(self._graph.out, non_blocking=True)
            return _PendingGpuScore(sums, self._workload, stream.record_event())

    def close(self) -> None:
        """Free the graph."""
        self._graph.close()

    @torch.no_grad()
    def _sums(self) -> Tensor:
        """Return the number of correct predictions and the sum of the losses, shape (2,), in float64.

        The loss is NaN if any value of the model is not finite.
        """
        work = self._workload
        self._replica.load(self._vector)
        sums = torch.zeros(2, dtype=torch.float64, device=self._vector.device)
        for inputs, targets in chunked(work.test_inputs, work.test_targets, CHUNK_SAMPLES):
            outputs = as_floats(self._replica.outputs(prepared(work.task, inputs)))
            if work.task.metric == ACCURACY:
                sums[0] += correct(outputs, targets).sum()
            sums[1] += work.loss.total(outputs, targets)
        sums[1] = torch.where(self._vector.isfinite().all(), sums[1], torch.nan)
        return sums


class EagerScorer:
    """Evaluates models on the test data without a graph, for any model and any metrics."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._precision, self._replica = workload, precision, workload.replica()

    @torch.no_grad()
    def begin(self, vector: Tensor) -> Known[Score]:
        """Evaluate the model with these exchanged values."""
        work, outputs, right, loss = self._workload, list[object](), 0.0, 0.0
        self._replica.load(vector)
        with arithmetic(self._precision):
            for number, (inputs, targets) in enumerate(chunked(work.test_inputs, work.test_targets, CHUNK_SAMPLES)):
                with work.seeded_scores(number):
                    chunk = as_floats(self._replica.outputs(prepared(work.task, inputs)))
                loss += float(work.loss.total(chunk, targets))
                if work.task.metrics is not None:
                    outputs.append(chunk)
                elif work.task.metric == ACCURACY:
                    right += float(correct(chunk, targets).sum())
        whole = joined(outputs) if outputs else None
        return Known(make_score(work.task, right, loss, _on_cpu(whole), map_arrays(Tensor.cpu, work.test_targets)))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True, eq=False)
class _PendingGpuScore:
    """A score that the GPU copies to the host when it has been computed."""

    sums: Tensor
    workload: Workload
    ended: torch.cuda.Event

    def ready(self) -> bool:
        return bool(self.ended.query())

    def result(self) -> Score:
        self.ended.synchronize()
        right, loss = self.sums.tolist()
        return make_score(self.workload.task, right, loss, None, self.workload.test_targets)


def judge_all(workload: Workload, precision: Precision, vector: Tensor, inputs: Arrays, targets: Arrays) -> Tensor:
    """Apply `judge` to any number of samples on the GPU; return shape (num_samples, 2).

    All values are NaN if any value of the model is not finite.
    """
    replica = workload.replica()
    replica.load(vector)
    with arithmetic(precision):
        parts = []
        for number, chunk in enumerate(chunked(inputs, targets, CHUNK_SAMPLES)):
            with workload.seeded_scores(number):
                parts.append(judge(replica, workload, *chunk))
    return torch.where(vector.isfinite().all(), torch.cat(parts), torch.nan)


def _on_cpu(outputs: object) -> object:
    """Return outputs of any structure on the CPU, where metrics are computed."""
    if isinstance(outputs, Tensor):
        return outputs.cpu()
    if isinstance(outputs, dict):
        return {name: _on_cpu(one) for name, one in outputs.items()}
    return tuple(map(_on_cpu, outputs)) if isinstance(outputs, tuple) else outputs
