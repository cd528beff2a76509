"""Training and evaluation on CPU cores."""

from functools import partial

from torch import Tensor

from lesson.learn.backend import MAX_WINDOW_STEPS, Trainer, TrainerName, WindowRule, why_not_fused
from lesson.learn.batched import BatchedTrainer
from lesson.learn.fused import FusedTrainer
from lesson.learn.partition import Holdings
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.scores import ClientScores, Known, PendingScore, by_client, judge_all, score
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload

FIRST_WINDOW_STEPS = 16
"""Work of the first window, after which the time per step is known."""


class CpuBackend:
    """Uses threads for evaluation and for training of one step, and processes for training of several steps."""

    def __init__(self, workload: Workload, num_threads: int | None = None) -> None:
        self._workload, self._num_threads = workload, num_threads
        self._threads = Threads(workload.template, num_threads)

    @property
    def window(self) -> WindowRule:
        """At most about half a second of work; results do not depend on where a window ends."""
        return WindowRule(MAX_WINDOW_STEPS, first_steps=FIRST_WINDOW_STEPS)

    def why_not(self, name: TrainerName, one_step: bool) -> str:
        """Return why a trainer cannot be used; empty if it can."""
        return why_not_fused(self._workload, one_step) if name == "fused" else ""

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer; raise InputError if it cannot train this task."""
        if name == "fused":
            return FusedTrainer(self._workload, self._threads)
        if name == "batched":
            return BatchedTrainer(self._workload, self._num_threads)
        return ReferenceTrainer(self._workload)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Evaluate the model with these exchanged values on the test data."""
        return Known(score(self._workload, self._threads, vector))

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these exchanged values on the training samples of each client."""
        return by_client(holdings, partial(self.judge_train, vector))

    def judge_train(self, vector: Tensor, samples: Tensor) -> Tensor:
        """Apply `judge` to these training samples, with the model of these exchanged values; return shape (num, 2)."""
        return judge_all(self._workload, self._threads, vector, *self._workload.raw_samples(samples))

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test samples, with the model of these exchanged values; return shape (num, 2)."""
        work = self._workload
        return judge_all(work, self._threads, vector, work.test_inputs, work.test_targets)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()
