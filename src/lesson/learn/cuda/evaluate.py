"""Evaluation on a GPU: test scores by one CUDA graph, everything else without a graph."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lesson.learn.cuda.graphs import Graph, Precision, arithmetic
from lesson.learn.scores import Score, chunks, judge
from lesson.learn.task import Task, scaled

CHUNK_SAMPLES = 2000


class CudaScorer:
    """Evaluates models on the test images, one after the other."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._replica = task, task.replica()
        self._vector = task.initial_vector()
        self._graph = Graph(self._sums, precision)
        self._stream = torch.cuda.Stream()

    def begin(self, vector: Tensor) -> "_PendingGpuScore":
        """Start to evaluate the model with these parameters, concurrently with other work on the GPU."""
        stream, sums = self._stream, torch.empty(2, dtype=torch.float64, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._vector.copy_(vector)
            vector.record_stream(stream)
            self._graph.replay()
            sums.copy_(self._graph.out, non_blocking=True)
            return _PendingGpuScore(sums, len(self._task.test_labels), stream.record_event())

    def close(self) -> None:
        """Free the graph."""
        self._graph.close()

    @torch.no_grad()
    def _sums(self) -> Tensor:
        """Return the number of correct predictions and the sum of the losses, shape (2,), in float64.

        The loss is NaN if any parameter of the model is not finite.
        """
        self._replica.load(self._vector)
        sums = torch.zeros(2, dtype=torch.float64, device=self._vector.device)
        for images, labels in chunks(self._task.test_images, self._task.test_labels, CHUNK_SAMPLES):
            logits = self._replica.logits(scaled(images)).float()
            sums[0] += (logits.argmax(1) == labels).sum()
            sums[1] += functional.cross_entropy(logits, labels, reduction="sum")
        sums[1] = torch.where(self._vector.isfinite().all(), sums[1], torch.nan)
        return sums


@dataclass(frozen=True, eq=False)
class _PendingGpuScore:
    """A score that the GPU copies to the host when it has been computed."""

    sums: Tensor
    num_images: int
    ended: torch.cuda.Event

    def ready(self) -> bool:
        return bool(self.ended.query())

    def result(self) -> Score:
        self.ended.synchronize()
        right, loss = self.sums.tolist()
        return Score({"accuracy": right / self.num_images}, loss / self.num_images)


def judge_all(task: Task, precision: Precision, vector: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Apply `judge` to any number of images on the GPU; return shape (num_images, 2).

    All values are NaN if any parameter of the model is not finite.
    """
    replica = task.replica()
    replica.load(vector)
    with arithmetic(precision):
        parts = [judge(replica, *chunk) for chunk in chunks(images, labels, CHUNK_SAMPLES)]
    return torch.where(vector.isfinite().all(), torch.cat(parts), torch.nan)
