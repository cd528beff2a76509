"""Test scores on a GPU by one CUDA graph, for models that can be recorded."""

from collections.abc import Callable

import torch
from torch import Tensor

from lesson.learn.cuda.graphs import Graph, Precision
from lesson.learn.scores import Score, add_parts, make_score, part_sums, part_tasks
from lesson.learn.workload import Workload

PART_SAMPLES = 2000


class CudaScorer:
    """Evaluates models on the test data with a graph, one after another; not for tasks with their own metrics."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._replica = workload, workload.replica()
        self._vector = workload.initial_vector()
        self._graph = Graph(self._sums, precision)
        self._stream = torch.cuda.Stream()

    def begin(self, vector: Tensor) -> Callable[[], Score]:
        """Start to evaluate the model with these exchanged values, concurrently with other work on the GPU.

        Returns a function that waits for the score.
        """
        stream, sums = self._stream, torch.empty(2, dtype=torch.float64, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._vector.copy_(vector)
            vector.record_stream(stream)
            self._graph.replay()
            sums.copy_(self._graph.out, non_blocking=True)
            ended = stream.record_event()

        def score() -> Score:
            ended.synchronize()
            return make_score(self._workload, [(sums, None)])

        return score

    def close(self) -> None:
        """Free the graph."""
        self._graph.close()

    def _sums(self) -> Tensor:
        """Return the sums of correct predictions and of losses, shape (2,).

        The loss is NaN if any value of the model is not finite.
        """
        work = self._workload
        self._replica.load(self._vector)
        tasks = part_tasks(part_sums, work, work.test_inputs, work.test_targets, PART_SAMPLES)
        sums = add_parts([task(self._replica) for task in tasks])
        sums[1] = torch.where(self._vector.isfinite().all(), sums[1], torch.nan)
        return sums
