"""Training and evaluation on a GPU."""

from functools import cached_property

from torch import Tensor

from lesson.learn.backend import Trainer, TrainerName
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.evaluate import CudaScorer
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Precision
from lesson.learn.evaluate import PendingScore
from lesson.learn.task import Task


class CudaBackend:
    """CUDA graphs for everything."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision = task, precision

    def trainer(self, name: TrainerName) -> Trainer:
        """A new trainer."""
        kind = CudaFusedTrainer if name == "fused" else CudaBatchedTrainer
        return kind(self._task, self._precision)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """How good the model with these parameters is on the test images."""
        return self._scorer.begin(vector)

    def close(self) -> None:
        """Graphs go with whoever holds them."""

    @cached_property
    def _scorer(self) -> CudaScorer:
        return CudaScorer(self._task, self._precision)
