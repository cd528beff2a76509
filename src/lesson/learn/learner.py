"""The server's models: which versions are in use, and what a merge makes of the newest.

Training is lazy: a cohort is trained when it is merged, from the version it started with; a version is kept while any
client still works from it.
"""

import math
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.arrays import FloatArray, IntArray
from lesson.errors import InputError, RunStoppedError
from lesson.learn.batched import BatchedTrainer
from lesson.learn.evaluate import Score, score
from lesson.learn.fused import FusedTrainer
from lesson.learn.models import make_model
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Task, Work
from lesson.learn.threads import Threads
from lesson.strategies.base import Merge, Updates


class Trainer(Protocol):
    """A way to train cohorts."""

    def cohort(self, base: Tensor, work: Work) -> Tensor:
        """The weighted sum of the models of a cohort that started from `base`."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


TrainerName = Literal["auto", "reference", "fused", "batched"]


class Learner:
    """Trains what is merged and keeps the model versions in use."""

    def __init__(
        self,
        task: Task,
        learning_rate: float,
        lr_cap: float,
        trainer: TrainerName = "auto",
        num_threads: int | None = None,
    ) -> None:
        self.task, self.learning_rate, self.lr_cap, self.trainer = task, learning_rate, lr_cap, trainer
        self.versions: dict[int, Tensor] = {0: task.initial_vector()}
        self._newest_cohort = "before the first merge"
        self._num_threads = num_threads
        self._threads = Threads(task.factory, num_threads)
        self._trainers: dict[str, Trainer] = {}

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> None:
        """Make version + 1 out of the merged updates, which are in the order of `weights`."""
        if merge.slots is not None:
            raise InputError("slots must be left out of a merge: this learner keeps no group means")
        model = self.versions[version]
        total = float(weights.sum()) if merge.of == "models" else 0.0
        new = model * (1 - total)
        for base_version in np.unique(updates.base_version).tolist():
            rows = np.flatnonzero(updates.base_version == base_version)
            work = self._work(updates[rows], weights[rows])
            base = self.versions[base_version]
            new += self._trainer(work.local_steps).cohort(base, work)
            if merge.of == "updates":
                new -= float(work.weight.sum()) * base
            self._newest_cohort = (
                f"after round {round}, with {len(work)} clients that started from version {base_version} at step size "
                f"{work.lr.max():g}; take a smaller learning_rate or lr_cap"
            )
            if not torch.isfinite(new).all():
                raise RunStoppedError(f"the model is no longer finite {self._newest_cohort}")
        self.versions[version + 1] = new

    def forget(self, version: int) -> None:
        """Free a version that nobody works from any more."""
        del self.versions[version]

    def state(self) -> dict[str, npt.NDArray[np.float32]]:
        """The versions in use by number, for `restore`."""
        return {str(version): vector.numpy() for version, vector in self.versions.items()}

    def restore(self, state: dict[str, npt.NDArray[np.float32]]) -> None:
        """Go on from what `state` returned."""
        self.versions = {int(version): torch.from_numpy(np.array(vector)) for version, vector in state.items()}

    def parameters(self, version: int) -> dict[str, npt.NDArray[np.float32]]:
        """A version's parameters by name, as the model itself has them."""
        model = make_model(self.task.factory)
        torch.nn.utils.vector_to_parameters(self.versions[version].clone(), model.parameters())
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def score(self, version: int) -> Score:
        """How good a version is on the test images."""
        result = score(self.task, self._threads, self.versions[version])
        if not math.isfinite(result.loss):
            raise RunStoppedError(f"the loss is no longer finite {self._newest_cohort}")
        return result

    def close(self) -> None:
        """Let threads and workers go."""
        self._threads.close()
        for trainer in self._trainers.values():
            trainer.close()

    def _work(self, updates: Updates, weights: FloatArray) -> Work:
        order = np.lexsort((updates.index, updates.client))
        chosen = updates[order]
        lr = np.minimum(self.learning_rate * chosen.lr_scale, self.lr_cap)
        return Work(chosen.client, chosen.index, lr, chosen.local_steps, weights[order])

    def _trainer(self, local_steps: IntArray) -> Trainer:
        """One step: fused. More: batched. Unless another was asked for."""
        one_step = bool(np.all(local_steps == 1))
        name = ("fused" if one_step else "batched") if self.trainer == "auto" else self.trainer
        if name == "fused" and not one_step:
            raise InputError("trainer must be 'batched' or 'reference' for more than one local step, got 'fused'")
        if name not in self._trainers:
            make: dict[str, Callable[[], Trainer]] = {
                "fused": lambda: FusedTrainer(self.task, self._threads),
                "batched": lambda: BatchedTrainer(self.task, self._num_threads),
                "reference": lambda: ReferenceTrainer(self.task),
            }
            self._trainers[name] = make[name]()
        return self._trainers[name]
