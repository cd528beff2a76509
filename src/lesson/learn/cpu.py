"""Training and evaluation on CPU cores."""

from torch import Tensor

from lesson.learn.backend import Trainer, TrainerName
from lesson.learn.batched import BatchedTrainer
from lesson.learn.fused import FusedTrainer
from lesson.learn.partition import Holdings
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.scores import ClientScores, KnownScore, PendingScore, by_client, judge_all, score
from lesson.learn.task import Task
from lesson.learn.threads import Threads


class CpuBackend:
    """Uses threads for evaluation and for training of one step, and processes for training of several steps."""

    def __init__(self, task: Task, num_threads: int | None = None) -> None:
        self._task, self._num_threads = task, num_threads
        self._threads = Threads(task.factory, num_threads)

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer."""
        if name == "fused":
            return FusedTrainer(self._task, self._threads)
        return BatchedTrainer(self._task, self._num_threads) if name == "batched" else ReferenceTrainer(self._task)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Evaluate the model with these parameters on the test images."""
        return KnownScore(score(self._task, self._threads, vector))

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these parameters on the training samples of each client."""
        images, labels = self._task.train_images, self._task.train_labels
        return by_client(holdings, lambda held: judge_all(self._threads, vector, images[held], labels[held]))

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test images, with the model of these parameters; return shape (num_images, 2)."""
        return judge_all(self._threads, vector, self._task.test_images, self._task.test_labels)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()
