"""A model server that trains its clients itself: updates are trained in cohorts, by the backend of a device.

Training is lazy: a cohort is trained when it is aggregated, from the version it started from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from lesson.clock.faults import CorruptedUploads
from lesson.clock.rejections import NOT_FINITE, Rejection
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.evaluate import ClientScores, PendingScore, Score
from lesson.learn.models import make_model
from lesson.learn.partition import Holdings
from lesson.learn.robust.corruption import CorruptingTrainer
from lesson.learn.server_models import Jobs, ServerModels, check_finite
from lesson.learn.task import Task
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Updates


class Learner(ServerModels):
    """Trains the updates that are aggregated, keeps the model versions in use and evaluates them.

    The faults of `corrupted` are injected into uploads. With `elsewhere`, remote clients train, and the backend has the
    models they have uploaded.
    """

    def __init__(
        self,
        task: Task,
        learning_rate: float,
        lr_cap: float,
        backend: Backend,
        trainer: Literal["auto"] | TrainerName = "auto",
        server: ServerSettings | None = None,
        watched: frozenset[str] = frozenset(),
        guards: GuardSettings | None = None,
        corrupted: CorruptedUploads | None = None,
        elsewhere: bool = False,
    ) -> None:
        trusted = not elsewhere and (corrupted is None or not corrupted.may_be_infinite)
        initial = task.initial_vector()
        super().__init__(initial, learning_rate, lr_cap, self._trainer_for, server, watched, guards, trusted)
        self.task, self.trainer = task, trainer
        self._corrupted, self._elsewhere = corrupted, elsewhere
        if corrupted is not None and corrupted.may_be_infinite:
            self._remedy = (
                "faults are injected into uploads; set guards.finite = true or guards.norm = 'reject' to reject them"
            )
        elif task.proximal_mu and self.server.optimizer == "none":
            self._remedy = "take a smaller learning_rate, lr_cap or proximal_mu"
        elif task.proximal_mu:
            self._remedy += " or proximal_mu"
        self._backend = backend
        self._trainers: dict[str, Trainer] = {}

    def parameters(self, version: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the parameters of a version by name, in the model's own shapes."""
        model = make_model(self.task.factory)
        torch.nn.utils.vector_to_parameters(self.versions[version].cpu().clone(), model.parameters())
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def score(self, version: int) -> Score:
        """Evaluate a version on the test images."""
        return self.begin_score(version).result()

    def begin_score(self, version: int) -> PendingScore:
        """Start to evaluate a version on the test images; a GPU can continue training meanwhile."""
        return _Checked(self._backend.begin_score(self.versions[version]), self.newest_cohort)

    def client_scores(self, version: int) -> ClientScores:
        """Evaluate a version on the samples that each client trains on; waits for the result."""
        return self._client_scores(version, self.task.holdings)

    def class_accuracy(self, version: int) -> FloatArray:
        """Return a version's test accuracy per class, shape (num_classes,); NaN for a class without test images."""
        right = self._backend.judge_test(self.versions[version])[:, 0].cpu().numpy().astype(np.float64)
        labels = self.task.test_labels.cpu().numpy()
        num_classes = int(max(labels.max(), self.task.train_labels.max().item())) + 1
        totals = np.bincount(labels, minlength=num_classes)
        return np.asarray(np.bincount(labels, right, num_classes) / np.where(totals, totals, np.nan))

    def class_shares(self, clients: IntArray, num_classes: int) -> FloatArray:
        """Return the share of each class in the samples of these clients, shape (len(clients), num_classes)."""
        labels, holdings = self.task.train_labels.cpu().numpy(), self.task.holdings
        counts = np.array([np.bincount(labels[holdings[client]], minlength=num_classes) for client in clients.tolist()])
        return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))

    def close(self) -> None:
        """Close trainers and backend."""
        for trainer in self._trainers.values():
            trainer.close()
        self._backend.close()

    def _signal_functions(self, version: int) -> dict[str, Callable[[], Any]]:
        held_out = self.task.held_out
        if held_out is None:
            return super()._signal_functions(version)
        return super()._signal_functions(version) | {
            "client_accuracy": lambda: self._client_scores(version, held_out).accuracy
        }

    def _client_scores(self, version: int, holdings: Holdings) -> ClientScores:
        scores = self._backend.client_scores(self.versions[version], holdings)
        losses = scores.loss[holdings.num_samples > 0]
        check_finite("loss", bool(np.isfinite(losses).all()), self.newest_cohort)
        return scores

    def _trainer_for(self, updates: Updates) -> Trainer:
        """Return the trainer of the settings; "auto" is fused for one local step and batched for more."""
        one_step = bool(np.all(updates.local_steps == 1))
        if (not one_step or self.task.sampler.epochs) and np.any(updates.batches > 1):
            raise InputError("[training] local_steps must be 1 and local_epochs 0 for steps of several minibatches")
        name: TrainerName = ("fused" if one_step else "batched") if self.trainer == "auto" else self.trainer
        if name == "fused" and not one_step:
            raise InputError("[run] trainer must be 'batched' or 'reference' for more than one local step, got 'fused'")
        if name not in self._trainers:
            trainer = self._backend.trainer(name)
            self._trainers[name] = trainer if self._corrupted is None else CorruptingTrainer(trainer, self._corrupted)
        return self._trainers[name]

    def _check_honest(self, rejections: Sequence[Rejection], jobs: Jobs, round: int) -> None:
        for one in rejections if not self._elsewhere else ():
            if one.reason == NOT_FINITE and (
                self._corrupted is None or self._corrupted.is_intact(one.client, one.index)
            ):
                base, _, work = next(job for job in jobs if one.client in job[2].client)
                self._note(base, work, round)
                check_finite("model", False, self.newest_cohort)


@dataclass(frozen=True)
class _Checked:
    """A score whose `result` raises DivergedError if the loss is not finite."""

    score: PendingScore
    newest_cohort: str

    def ready(self) -> bool:
        return self.score.ready()

    def result(self) -> Score:
        result = self.score.result()
        check_finite("loss", math.isfinite(result.loss), self.newest_cohort)
        return result
