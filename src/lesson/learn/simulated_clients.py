"""Simulated clients, whose updates are trained here, in cohorts, by the backend of a device.

Training is lazy: an update is trained only if it is aggregated or a signal needs it, always from the version that it
started from.
"""

from typing import Literal

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.learn.backend import Backend, Trainer, TrainerName, why_not
from lesson.learn.workload import Workload

FASTEST_FIRST: tuple[TrainerName, ...] = ("fused", "batched", "reference")


class SimulatedClients:
    """The clients of a task as a source of updates."""

    def __init__(self, workload: Workload, backend: Backend, trainer: Literal["auto"] | TrainerName = "auto") -> None:
        self.workload, self.trainer, self._backend = workload, trainer, backend
        self._trainers: dict[TrainerName, Trainer] = {}
        self._chosen: dict[bool, TrainerName] = {}
        """The trainer for updates of one step (True) and of several (False)."""
        self._notes: list[str] = []

    def trainer_for(self, local_steps: IntArray) -> Trainer:
        """Return the trainer of the settings; "auto" is the fastest one that can train these updates."""
        one_step = bool(np.all(local_steps == 1))
        if one_step not in self._chosen:
            self._chosen[one_step] = self._choose(one_step)
        return self._trainers[self._chosen[one_step]]

    def _choose(self, one_step: bool) -> TrainerName:
        """Return the name of the first trainer that can be used, after creating it."""
        reasons = list[str]()
        for name in FASTEST_FIRST if self.trainer == "auto" else (self.trainer,):
            reason = why_not(self.workload, name, one_step)
            if not reason and name not in self._trainers:
                try:
                    self._trainers[name] = self._backend.trainer(name)
                except InputError as error:
                    if self.trainer != "auto":
                        raise InputError(f"[run] trainer must not be '{name}' here: {error}; use 'auto'") from error
                    reason = str(error)
            if not reason:
                expected = "fused" if one_step else "batched"
                if self.trainer == "auto" and name != expected:
                    self._notes.append(f"trainer: {name}, not {expected}: {reasons[-1]}")
                return name
            reasons.append(reason)
        raise InputError(f"[run] trainer must not be '{self.trainer}' here: {reasons[-1]}; use 'auto'")

    @property
    def notes(self) -> list[str]:
        """Which trainers "auto" has chosen in place of the usual ones, and why; chooses one if none was needed yet."""
        if not self._chosen:  # the run was resumed after its last aggregation
            one_step = self.workload.training.local_steps == 1 and not self.workload.sampler.epochs
            self._chosen[one_step] = self._choose(one_step)
        return self._notes

    @property
    def trainers(self) -> list[str]:
        """Names of the trainers that have been used."""
        return list(self._trainers)

    def close(self) -> None:
        """Close the trainers; the backend, which others may use, stays open."""
        for trainer in self._trainers.values():
            trainer.close()
