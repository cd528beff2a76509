"""Training and evaluation on CPU cores."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from lesson.learn.backend import MAX_CHUNK_STEPS, ChunkRule, Trainer, TrainerName
from lesson.learn.batched import BatchedTrainer
from lesson.learn.fused import FusedTrainer
from lesson.learn.memory import TensorMemory
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.scores import Score, make_score, part_sums, part_tasks, sample_scores
from lesson.learn.task import Arrays
from lesson.learn.threads import Threads
from lesson.learn.workload import Workload

Result = TypeVar("Result")
PART_SAMPLES = 500
FIRST_CHUNK_STEPS = 16
"""Work of the first chunk, which shows how long a step takes."""


class CpuBackend:
    """Uses threads for evaluation and for training of one step, and processes for training of several steps."""

    def __init__(self, workload: Workload, num_threads: int | None = None) -> None:
        self._workload, self._num_threads = workload, num_threads
        self._threads = Threads(workload.template, num_threads)

    @property
    def rule(self) -> ChunkRule:
        """Chunks of about half a second of work, which may end after any round."""
        return ChunkRule(MAX_CHUNK_STEPS, first_steps=FIRST_CHUNK_STEPS)

    @property
    def memory(self) -> TensorMemory:
        return TensorMemory("cpu")

    def trainer(self, name: TrainerName) -> Trainer:
        if name == "fused":
            return FusedTrainer(self._workload, self._threads)
        if name == "batched":
            return BatchedTrainer(self._workload, self._num_threads)
        return ReferenceTrainer(self._workload)

    def begin_score(self, vector: Tensor) -> Callable[[], Score]:
        """Evaluate the model with these exchanged values on the test data; return a function that returns its score."""
        work = self._workload
        parts = self._evaluate(part_sums, vector, work.test_inputs, work.test_targets)
        score = make_score(work, parts)
        return lambda: score

    def sample_scores(self, vector: Tensor, samples: Tensor | None) -> Tensor:
        return torch.cat(self._evaluate(sample_scores, vector, *self._workload.raw_samples(samples)))

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    def _evaluate(
        self, evaluate: Callable[..., Result], vector: Tensor, inputs: Arrays, targets: Arrays
    ) -> list[Result]:
        tasks = part_tasks(evaluate, self._workload, inputs, targets, PART_SAMPLES)
        parts = [self._threads.submit(task, vector) for task in tasks]
        return [part.result() for part in parts]
