"""Training and evaluation on a GPU."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from lesson.core.errors import InputError
from lesson.learn.backend import MAX_CHUNK_STEPS, ChunkRule, Trainer, TrainerName, why_not
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.evaluate import PART_SAMPLES, CudaScorer
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Precision, arithmetic
from lesson.learn.memory import TensorMemory
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.scores import Score, make_score, part_sums, part_tasks, sample_scores
from lesson.learn.task import Arrays
from lesson.learn.template import Replica
from lesson.learn.workload import Workload

Result = TypeVar("Result")
MAX_STEPS_ONE_BY_ONE = 64
"""Maximum work of a chunk if clients are trained one by one, see `ChunkRule.local_steps`."""


class CudaBackend:
    """Uses CUDA graphs for training and test scores; per-sample evaluation, which is rare, runs without a graph."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._precision = workload, precision

    @property
    def rule(self) -> ChunkRule:
        """Chunks of fixed size, because the composition of a batch can affect rounding on a GPU."""
        one_by_one = bool(why_not(self._workload, "batched", one_step=False))
        return ChunkRule(MAX_STEPS_ONE_BY_ONE if one_by_one else MAX_CHUNK_STEPS, ends_anywhere=False)

    @property
    def memory(self) -> TensorMemory:
        return TensorMemory("cuda")

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer; raise InputError if it cannot be recorded for this task."""
        if name == "fused":
            return CudaFusedTrainer(self._workload, self._precision)
        if name == "batched":
            return CudaBatchedTrainer(self._workload, self._precision)
        return ReferenceTrainer(self._workload, partial(arithmetic, self._precision))

    @cached_property
    def _scorer(self) -> CudaScorer | None:
        """The graph for test scores; None if the task has its own metrics or its model cannot be recorded."""
        if self._workload.task.metrics is not None or self._workload.template.traits.random_scores:
            return None
        try:
            return CudaScorer(self._workload, self._precision)
        except InputError:
            return None

    @cached_property
    def _replica(self) -> Replica:
        """For evaluations without a graph."""
        return self._workload.replica()

    def begin_score(self, vector: Tensor) -> Callable[[], Score]:
        if self._scorer is not None:
            return self._scorer.begin(vector)
        work = self._workload
        parts = self._evaluate(part_sums, vector, work.test_inputs, work.test_targets)
        score = make_score(work, parts)
        return lambda: score

    def sample_scores(self, vector: Tensor, samples: Tensor | None) -> Tensor:
        """Return the scores of training samples, or of the test data, for a model, shape (num, 2).

        All of them are NaN if any value of the model is not finite.
        """
        scores = torch.cat(self._evaluate(sample_scores, vector, *self._workload.raw_samples(samples)))
        return torch.where(vector.isfinite().all(), scores, torch.nan)

    def close(self) -> None:
        """Release the scorer and all cached GPU memory, which other processes may need."""
        scorer: CudaScorer | None = vars(self).get("_scorer")  # without recording it
        if scorer is not None:
            scorer.close()
        torch.cuda.empty_cache()

    def _evaluate(
        self, evaluate: Callable[..., Result], vector: Tensor, inputs: Arrays, targets: Arrays
    ) -> list[Result]:
        self._replica.load(vector)
        with arithmetic(self._precision):
            tasks = part_tasks(evaluate, self._workload, inputs, targets, PART_SAMPLES)
            return [task(self._replica) for task in tasks]
