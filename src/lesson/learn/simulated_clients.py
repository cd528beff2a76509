"""Simulated clients, whose updates are trained here, in cohorts, by the backend of a device.

Training is lazy: a cohort is trained when it is aggregated, from the version it started from.
"""

from typing import Literal

import numpy as np

from lesson.clock.faults import CorruptedUploads
from lesson.core.errors import InputError
from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.robust.corruption import CorruptingTrainer
from lesson.learn.task import Task
from lesson.strategies.base import Updates


class SimulatedClients:
    """The clients of a task as a source of updates; `faults` are injected into their uploads."""

    def __init__(
        self,
        task: Task,
        backend: Backend,
        trainer: Literal["auto"] | TrainerName = "auto",
        faults: CorruptedUploads | None = None,
    ) -> None:
        self.task, self.trainer = task, trainer
        self._backend, self._faults = backend, faults
        self._trainers: dict[TrainerName, Trainer] = {}
        self.trusted = faults is None or not faults.may_be_infinite
        self.remedy = (
            ""
            if self.trusted
            else "injected faults corrupt uploads; set guards.finite = true or guards.norm = 'reject' to reject them"
        )

    def trainer_for(self, updates: Updates) -> Trainer:
        """Return the trainer of the settings; "auto" is fused for one local step and batched for more."""
        one_step = bool(np.all(updates.local_steps == 1))
        if (not one_step or self.task.sampler.epochs) and np.any(updates.batches > 1):
            raise InputError("[training] local_steps must be 1 and local_epochs 0 for steps of several minibatches")
        name: TrainerName = ("fused" if one_step else "batched") if self.trainer == "auto" else self.trainer
        if name == "fused" and not one_step:
            raise InputError("[run] trainer must be 'batched' or 'reference' for more than one local step, got 'fused'")
        if name not in self._trainers:
            trainer = self._backend.trainer(name)
            self._trainers[name] = trainer if self._faults is None else CorruptingTrainer(trainer, self._faults)
        return self._trainers[name]

    def is_fault(self, client: int, index: int) -> bool:
        """Return whether a fault is injected into this upload."""
        return self._faults is not None and not self._faults.is_intact(client, index)

    def close(self) -> None:
        """Close the trainers; the backend, which others may use, stays open."""
        for trainer in self._trainers.values():
            trainer.close()
