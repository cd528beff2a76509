"""The server's models: which versions are in use, and what a merge makes of the newest.

Training is lazy: a cohort is trained when it is merged, from the version it started with; a version is kept while any
client still works from it.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.arrays import FloatArray, IntArray
from lesson.errors import DivergedError, InputError
from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.evaluate import ClientScores, PendingScore, Score
from lesson.learn.models import make_model
from lesson.learn.task import Task, Work
from lesson.strategies.base import Merge, Updates


class Learner:
    """Trains what is merged and keeps the model versions in use."""

    def __init__(
        self,
        task: Task,
        learning_rate: float,
        lr_cap: float,
        backend: Backend,
        trainer: Literal["auto"] | TrainerName = "auto",
    ) -> None:
        self.task, self.learning_rate, self.lr_cap, self.trainer = task, learning_rate, lr_cap, trainer
        self.versions: dict[int, Tensor] = {0: task.initial_vector()}
        self._newest_cohort = "before the first merge"
        self._backend = backend
        self._trainers: dict[str, Trainer] = {}

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> None:
        """Make version + 1 out of the merged updates, which are in the order of `weights`."""
        if merge.slots is not None:
            raise InputError("slots must be left out of a merge: this learner keeps no group means")
        model = self.versions[version]
        total = float(weights.sum()) if merge.of == "models" else 0.0
        new = model * (1 - total)
        jobs = self._jobs(updates, weights)
        sums = self._trainer(updates.local_steps).cohorts([(self.versions[base], work) for base, work in jobs])
        for (base, work), trained in zip(jobs, sums, strict=True):
            new += trained
            if merge.of == "updates":
                new -= float(work.weight.sum()) * self.versions[base]
            self._newest_cohort = (
                f"after round {round}, with {len(work)} clients that started from version {base} "
                f"at step size {work.lr.max():g}; take a smaller learning_rate or lr_cap"
            )
            if not new.is_cuda:  # a GPU would have to be waited for
                _check_finite("model", bool(torch.isfinite(new).all()), self._newest_cohort)
        self.versions[version + 1] = new

    def forget(self, version: int) -> None:
        """Free a version that nobody works from any more."""
        del self.versions[version]

    def state(self) -> dict[str, npt.NDArray[np.float32]]:
        """The versions in use by number, for `restore`."""
        vectors = {str(version): vector.cpu().numpy() for version, vector in self.versions.items()}
        _check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self._newest_cohort)
        return vectors

    def restore(self, state: dict[str, npt.NDArray[np.float32]]) -> None:
        """Go on from what `state` returned."""
        self.versions = {
            int(version): torch.tensor(vector, device=self.task.device) for version, vector in state.items()
        }

    def parameters(self, version: int) -> dict[str, npt.NDArray[np.float32]]:
        """A version's parameters by name, as the model itself has them."""
        model = make_model(self.task.factory)
        torch.nn.utils.vector_to_parameters(self.versions[version].cpu().clone(), model.parameters())
        return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def score(self, version: int) -> Score:
        """How good a version is on the test images."""
        return self.begin_score(version).result()

    def begin_score(self, version: int) -> PendingScore:
        """The score of a version, which a GPU works out while it goes on training."""
        return _Checked(self._backend.begin_score(self.versions[version]), self._newest_cohort)

    def client_scores(self, version: int) -> ClientScores:
        """How good a version is on each client's own samples, waited for."""
        scores = self._backend.client_scores(self.versions[version])
        losses = scores.loss[self.task.holdings.num_samples > 0]
        _check_finite("loss", bool(np.isfinite(losses).all()), self._newest_cohort)
        return scores

    def close(self) -> None:
        """Let trainers and backend go."""
        for trainer in self._trainers.values():
            trainer.close()
        self._backend.close()

    def _jobs(self, updates: Updates, weights: FloatArray) -> list[tuple[int, Work]]:
        """The work of each cohort, with the version it started from."""
        order = np.lexsort((updates.index, updates.client, updates.base_version))
        lr = np.minimum(self.learning_rate * updates.lr_scale, self.lr_cap)
        everything = Work(updates.client, updates.index, lr, updates.local_steps, weights)[order]
        bases = updates.base_version[order]
        begins = [0, *(np.flatnonzero(np.diff(bases)) + 1).tolist()]
        spans = zip(begins, [*begins[1:], len(bases)], strict=True)
        return [(int(bases[begin]), everything[begin:end]) for begin, end in spans if begin < end]

    def _trainer(self, local_steps: IntArray) -> Trainer:
        """One step: fused. More: batched. Unless another was asked for."""
        one_step = bool(np.all(local_steps == 1))
        name: TrainerName = ("fused" if one_step else "batched") if self.trainer == "auto" else self.trainer
        if name == "fused" and not one_step:
            raise InputError("trainer must be 'batched' or 'reference' for more than one local step, got 'fused'")
        if name not in self._trainers:
            self._trainers[name] = self._backend.trainer(name)
        return self._trainers[name]


@dataclass(frozen=True)
class _Checked:
    """A score that stops the run if it is not a number."""

    score: PendingScore
    newest_cohort: str

    def ready(self) -> bool:
        return self.score.ready()

    def result(self) -> Score:
        result = self.score.result()
        _check_finite("loss", math.isfinite(result.loss), self.newest_cohort)
        return result


def _check_finite(what: str, finite: bool, newest_cohort: str) -> None:
    if not finite:
        raise DivergedError(f"the {what} is no longer finite {newest_cohort}")
