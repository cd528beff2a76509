"""Training and evaluation on a GPU."""

from functools import partial

import torch
from torch import Tensor

from lesson.core.errors import InputError
from lesson.learn.backend import MAX_WINDOW_STEPS, Trainer, TrainerName, WindowRule, why_not_fused
from lesson.learn.cuda.batched import CudaBatchedTrainer
from lesson.learn.cuda.evaluate import CudaScorer, EagerScorer, judge_all
from lesson.learn.cuda.fused import CudaFusedTrainer
from lesson.learn.cuda.graphs import Precision
from lesson.learn.cuda.reference import CudaReferenceTrainer
from lesson.learn.partition import Holdings
from lesson.learn.scores import ClientScores, PendingScore, by_client
from lesson.learn.workload import Workload

MAX_STEPS_ONE_BY_ONE = 64
"""Largest work of a window if clients are trained one by one, as in `WindowRule.local_steps`."""


class CudaBackend:
    """Uses CUDA graphs for training and test scores; per-sample evaluation, which is rare, runs without a graph."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self._workload, self._precision = workload, precision
        self._scorer: CudaScorer | EagerScorer | None = None

    @property
    def window(self) -> WindowRule:
        """Windows of fixed size, because the composition of a batch can affect rounding on a GPU."""
        one_by_one = bool(self.why_not("batched", one_step=False))
        return WindowRule(MAX_STEPS_ONE_BY_ONE if one_by_one else MAX_WINDOW_STEPS, ends_anywhere=False)

    def why_not(self, name: TrainerName, one_step: bool) -> str:
        """Return why a trainer cannot be used; empty if it can."""
        if name == "reference":
            return ""
        work = self._workload
        if work.loss.each is None and not work.has_full_minibatches:
            return "the loss of each sample is unknown, and minibatches differ in size"
        if work.template.traits.needs_own_pass and name == "batched":
            return work.template.traits.needs_own_pass
        return why_not_fused(work, one_step) if name == "fused" else ""

    def trainer(self, name: TrainerName) -> Trainer:
        """Return a new trainer; raise InputError if it cannot be recorded for this task."""
        if name == "fused":
            return CudaFusedTrainer(self._workload, self._precision)
        if name == "batched":
            return CudaBatchedTrainer(self._workload, self._precision)
        return CudaReferenceTrainer(self._workload, self._precision)

    def begin_score(self, vector: Tensor) -> PendingScore:
        """Start to evaluate the model with these exchanged values on the test data."""
        if self._scorer is None:
            try:
                is_own = self._workload.task.metrics is not None
                kind = EagerScorer if is_own or self._workload.template.traits.random_scores else CudaScorer
                self._scorer = kind(self._workload, self._precision)
            except InputError:  # the model cannot be recorded
                self._scorer = EagerScorer(self._workload, self._precision)
        return self._scorer.begin(vector)

    def client_scores(self, vector: Tensor, holdings: Holdings) -> ClientScores:
        """Evaluate the model with these exchanged values on the training samples of each client."""
        return by_client(holdings, partial(self.judge_train, vector))

    def judge_train(self, vector: Tensor, samples: Tensor) -> Tensor:
        """Apply `judge` to these training samples, with the model of these exchanged values; return shape (num, 2)."""
        work = self._workload
        return judge_all(work, self._precision, vector, *work.raw_samples(samples.to(vector.device)))

    def judge_test(self, vector: Tensor) -> Tensor:
        """Apply `judge` to all test samples, with the model of these exchanged values; return shape (num, 2)."""
        work = self._workload
        return judge_all(work, self._precision, vector, work.test_inputs, work.test_targets)

    def close(self) -> None:
        """Release the scorer and all cached GPU memory, which other processes may need."""
        if self._scorer is not None:
            self._scorer.close()
        torch.cuda.empty_cache()
