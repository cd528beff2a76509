"""The server's models: which versions are in use, and what a merge makes of the newest.

A version is kept while any client still works from it. Slots and the moments of the server's optimiser are kept from
merge to merge. Who has trained the models that are merged, here or elsewhere, is a trainer's business.
"""

import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.arrays import FloatArray, with_prefix
from lesson.errors import DivergedError, InputError
from lesson.learn.backend import Trainer
from lesson.learn.jobs import cohorts_of
from lesson.learn.optimisers import OPTIMISERS, Moments
from lesson.learn.signals import Confirmation, Signals
from lesson.learn.slots import SlotVectors
from lesson.settings import ServerSettings
from lesson.strategies.base import Merge, Updates

Of = Literal["models", "updates"]


class ServerModels:
    """The model versions in use, and how merges make new ones."""

    def __init__(
        self,
        initial: Tensor,
        learning_rate: float,
        lr_cap: float,
        trainer: Callable[[Updates], Trainer],
        server: ServerSettings | None = None,
        watched: frozenset[str] = frozenset(),
    ) -> None:
        self.learning_rate, self.lr_cap = learning_rate, lr_cap
        self.server = server or ServerSettings()
        self.versions: dict[int, Tensor] = {0: initial}
        self.newest_cohort = "before the first merge"
        """What was merged last, for whoever finds that the model is not finite."""
        self._trainer, self._device = trainer, initial.device
        self._slots = SlotVectors(initial)
        self._moments: Moments = {}
        self._confirmation = Confirmation(initial.device.type) if "confirmation" in watched else None
        plain = self.server.optimizer == "none"
        self._too_large = "learning_rate or lr_cap" if plain else "server.learning_rate or scenario.learning_rate"

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
        check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self.newest_cohort)
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

    def signals(self, names: frozenset[str], version: int) -> Signals:
        """Those of these signals that it can tell of a version, worked out when they are looked at."""
        told = self._told(version)
        return Signals({name: told[name] for name in names if name in told})

    def step_sizes(self, lr_scale: FloatArray) -> FloatArray:
        """The step size of clients whose plan scales it so."""
        return np.minimum(self.learning_rate * lr_scale, self.lr_cap)

    def _told(self, version: int) -> dict[str, Callable[[], Any]]:  # noqa: ARG002
        """How to work out each signal."""
        return {} if self._confirmation is None else {"confirmation": self._confirmation.look}

    def _merged(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> Tensor:
        """The model that a merge gives by its formula, its slots filled on the way."""
        model, of, slots = self.versions[version], self._of(merge, weights), merge.slots
        kept = 1 - float(weights.sum()) if of == "models" else 1.0
        jobs = list(cohorts_of(updates, weights, self.step_sizes(updates.lr_scale), merge))
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
            self.newest_cohort = (
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
        return {name: torch.tensor(vector, device=self._device) for name, vector in with_prefix(state, prefix).items()}

    def _check_model(self, vector: Tensor) -> None:
        """Stop the run if a model is not finite. A GPU would have to be waited for: its models are checked later."""
        if not vector.is_cuda:
            check_finite("model", bool(torch.isfinite(vector).all()), self.newest_cohort)


def check_finite(what: str, finite: bool, newest_cohort: str) -> None:
    """Stop the run if what was just worked out is not finite."""
    if not finite:
        raise DivergedError(f"the {what} is no longer finite {newest_cohort}")


def as_tensor(vector: npt.NDArray[np.floating]) -> Tensor:
    """A vector as models here are, for who does without torch."""
    return torch.from_numpy(vector)
