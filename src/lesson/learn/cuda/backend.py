"""Training and evaluation on a GPU."""

import torch
from torch import Tensor

from lesson.learn.backend import Trainer, TrainerName
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.evaluate import CudaScorer, judge_all
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Precision
from lesson.learn.partition import Holdings
from lesson.learn.scores import ClientScores, PendingScore, by_client
from lesson.learn.task import Task


class CudaBackend:
    """Uses CUDA graphs for training and test scores; per-sample evaluation, which is rare, runs without a graph."""

    def __init__(self, task: Task, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._scorer: CudaScorer | None = None

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer."""
        kind = CudaFusedTrainer if name == "fused" else CudaBatchedTrainer
        return kind(self._task, self._precision)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Start to evaluate the model with these parameters on the test images."""
        if self._scorer is None:
            self._scorer = CudaScorer(self._task, self._precision)
        return self._scorer.begin(vector)

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these parameters on the training samples of each client."""
        task, device = self._task, vector.device

        def judged(samples: Tensor) -> Tensor:
            held = samples.to(device)
            return judge_all(task, self._precision, vector, task.train_images[held], task.train_labels[held])

        return by_client(holdings, judged)

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test images, with the model of these parameters; return shape (num_images, 2)."""
        return judge_all(self._task, self._precision, vector, self._task.test_images, self._task.test_labels)

    def close(self) -> None:
        """Release the scorer and all cached GPU memory, which other processes may need."""
        if self._scorer is not None:
            self._scorer.close()
        torch.cuda.empty_cache()
