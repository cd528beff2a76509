"""Training and evaluation on a GPU."""

import torch
from torch import Tensor

from lesson.learn.backend import Trainer, TrainerName
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.evaluate import CudaScorer, judge_all
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Precision
from lesson.learn.evaluate import ClientScores, PendingScore, by_client
from lesson.learn.partition import Holdings
from lesson.learn.task import Task


class CudaBackend:
    """CUDA graphs for everything but a look at single samples, which is rare."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._scorer: CudaScorer | None = None

    def trainer(self, name: TrainerName) -> Trainer:
        """A new trainer."""
        kind = CudaFusedTrainer if name == "fused" else CudaBatchedTrainer
        return kind(self._task, self._precision)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """How good the model with these parameters is on the test images."""
        if self._scorer is None:
            self._scorer = CudaScorer(self._task, self._precision)
        return self._scorer.begin(vector)

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """How good the model with these parameters is on the training samples that each client holds."""
        task, device = self._task, vector.device

        def judged(samples: Tensor) -> Tensor:
            held = samples.to(device)
            return judge_all(task, self._precision, vector, task.train_images[held], task.train_labels[held])

        return by_client(holdings, judged)

    def judge_test(self, vector: Tensor) -> Tensor:
        """What the model with these parameters makes of each test image; see `judge`."""
        return judge_all(self._task, self._precision, vector, self._task.test_images, self._task.test_labels)

    def close(self) -> None:
        """Let the scorer go, and give memory back: other processes may share the GPU."""
        if self._scorer is not None:
            self._scorer.close()
        torch.cuda.empty_cache()
