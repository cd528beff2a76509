"""The server's models: which versions are in use, and what a merge makes of the newest.

Training is lazy: a cohort is trained when it is merged, from the version it started with; a version is kept while any
client still works from it. Slots and the moments of the server's optimiser are kept from merge to merge.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.arrays import FloatArray, with_prefix
from lesson.errors import DivergedError, InputError
from lesson.learn.backend import Backend, Trainer, TrainerName
from lesson.learn.evaluate import ClientScores, PendingScore, Score
from lesson.learn.holdings import Holdings
from lesson.learn.jobs import cohorts_of
from lesson.learn.models import make_model
from lesson.learn.optimisers import OPTIMISERS, Moments
from lesson.learn.signals import Confirmation, Signals
from lesson.learn.slots import SlotVectors
from lesson.learn.task import Task
from lesson.settings import ServerSettings
from lesson.strategies.base import Merge, Updates

Of = Literal["models", "updates"]


class Learner:
    """Trains what is merged and keeps the model versions in use."""

    def __init__(
        self,
        task: Task,
        learning_rate: float,
        lr_cap: float,
        backend: Backend,
        trainer: Literal["auto"] | TrainerName = "auto",
        server: ServerSettings | None = None,
        watched: frozenset[str] = frozenset(),
    ) -> None:
        self.task, self.learning_rate, self.lr_cap, self.trainer = task, learning_rate, lr_cap, trainer
        self.server = server or ServerSettings()
        self.versions: dict[int, Tensor] = {0: task.initial_vector()}
        self._slots = SlotVectors(self.versions[0])
        self._moments: Moments = {}
        self._confirmation = Confirmation(task.device) if "confirmation" in watched else None
        self._newest_cohort = "before the first merge"
        plain = self.server.optimizer == "none"
        self._too_large = "learning_rate or lr_cap" if plain else "server.learning_rate or scenario.learning_rate"
        self._backend = backend
        self._trainers: dict[str, Trainer] = {}

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> None:
        """Make version + 1 out of the merged updates, which are in the order of `weights`."""
        model, merged = self.versions[version], self._merged(updates, weights, merge, version, round)
        new = merged
        if self.server.optimizer != "none":
            new, self._moments = OPTIMISERS[self.server.optimizer](model, model - merged, self._moments, self.server)
        if merge.slots is not None or new is not merged:
            self._check_model(new)
        self.versions[version + 1] = new

    def forget(self, version: int) -> None:
        """Free a version that nobody works from any more."""
        del self.versions[version]

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Versions in use by number, slots by name, the optimiser's moments and what was watched, for `restore`."""
        kept = {f"version.{version}": vector for version, vector in self.versions.items()}
        kept |= {f"slot.{json.dumps(name)}": vector for name, vector in self._slots.filled.items()}
        kept |= {f"moment.{name}": vector for name, vector in self._moments.items()}
        kept |= {"signal.confirmation": self._confirmation.sums} if self._confirmation is not None else {}
        vectors = {name: vector.cpu().numpy() for name, vector in kept.items()}
        _check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self._newest_cohort)
        return vectors

    def restore(self, state: dict[str, npt.NDArray[np.floating]]) -> None:
        """Go on from what `state` returned."""
        kinds = ("version.", "slot.", "moment.", "signal.")
        versions, slots, moments, signals = (self._vectors(state, kind) for kind in kinds)
        self.versions = {int(version): vector for version, vector in versions.items()}
        self._slots.filled = {json.loads(name): vector for name, vector in slots.items()}
        self._moments = moments
        if self._confirmation is not None:
            self._confirmation.sums = signals.get("confirmation", self._confirmation.sums)

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
        """How good a version is on the samples each client trains on, waited for."""
        return self._client_scores(version, self.task.holdings)

    def signals(self, names: frozenset[str], version: int) -> Signals:
        """Those of these signals that it can tell of a version, worked out when they are looked at."""
        held_out, told = self.task.held_out, dict[str, Callable[[], Any]]()
        if self._confirmation is not None:
            told["confirmation"] = self._confirmation.look
        if held_out is not None:
            told["client_accuracy"] = lambda: self._client_scores(version, held_out).accuracy
        return Signals({name: told[name] for name in names if name in told})

    def close(self) -> None:
        """Let trainers and backend go."""
        for trainer in self._trainers.values():
            trainer.close()
        self._backend.close()

    def _client_scores(self, version: int, holdings: Holdings) -> ClientScores:
        scores = self._backend.client_scores(self.versions[version], holdings)
        losses = scores.loss[holdings.num_samples > 0]
        _check_finite("loss", bool(np.isfinite(losses).all()), self._newest_cohort)
        return scores

    def _merged(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> Tensor:
        """The model that a merge gives by its formula, its slots filled on the way."""
        model, of, slots = self.versions[version], self._of(merge, weights), merge.slots
        kept = 1 - float(weights.sum()) if of == "models" else 1.0
        lr = np.minimum(self.learning_rate * updates.lr_scale, self.lr_cap)
        jobs = list(cohorts_of(updates, weights, lr, merge))
        sums = {"": model * kept} if slots is None else {name: torch.zeros_like(model) for name in slots.names}
        trainer = self._trainer(updates) if jobs else None
        trained = trainer.cohorts([(self.versions[base], work) for base, _, work in jobs]) if trainer else []
        for (base, slot, work), models in zip(jobs, trained, strict=True):
            weight = float(work.weight.sum())
            sums[slot] += models
            if of == "updates":
                sums[slot] -= weight * self.versions[base]
            if self._confirmation is not None and base != version:
                self._confirmation.add(model - self.versions[base], models - weight * self.versions[base], weight)
            self._newest_cohort = (
                f"after round {round}, with {np.count_nonzero(work.first == 0)} clients that started from version "
                f"{base} at step size {work.lr.max():g}; take a smaller {self._too_large}"
            )
            self._check_model(sums[slot])
        return sums[""] if slots is None else self._slots.merge(model, sums, slots, of)

    def _of(self, merge: Merge, weights: FloatArray) -> Of:
        """Whether models or updates are merged: as the strategy says, unless the settings do."""
        if self.server.stale == "strategy":
            return merge.of
        if merge.slots is not None and self.server.stale != merge.of:
            raise InputError(
                f"stale must be 'strategy' or '{merge.of}' for this strategy, which keeps {merge.of} between merges, "
                f"got '{self.server.stale}'"
            )
        if self.server.stale == "models" and weights.sum() > 1 + 1e-9:
            raise InputError(
                f"stale must be 'strategy' or 'updates' for this strategy, got 'models': weights of models must sum to "
                f"at most 1, its sum to {weights.sum():g}"
            )
        return self.server.stale

    def _vectors(self, state: dict[str, npt.NDArray[np.floating]], prefix: str) -> dict[str, Tensor]:
        """The vectors of a state whose name begins so, on the device."""
        return {
            name: torch.tensor(vector, device=self.task.device) for name, vector in with_prefix(state, prefix).items()
        }

    def _trainer(self, updates: Updates) -> Trainer:
        """One step: fused. More: batched. Unless another was asked for."""
        one_step = bool(np.all(updates.local_steps == 1))
        if (not one_step or self.task.sampler.epochs) and np.any(updates.batches > 1):
            raise InputError("local_steps must be 1 and local_epochs 0 for steps of several minibatches")
        name: TrainerName = ("fused" if one_step else "batched") if self.trainer == "auto" else self.trainer
        if name == "fused" and not one_step:
            raise InputError("trainer must be 'batched' or 'reference' for more than one local step, got 'fused'")
        if name not in self._trainers:
            self._trainers[name] = self._backend.trainer(name)
        return self._trainers[name]

    def _check_model(self, vector: Tensor) -> None:
        """Stop the run if a model is not finite. A GPU would have to be waited for: its models are checked later."""
        if not vector.is_cuda:
            _check_finite("model", bool(torch.isfinite(vector).all()), self._newest_cohort)


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
