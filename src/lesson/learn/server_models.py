"""The server's models: which versions are in use, and what a merge makes of the newest.

A version is kept while any client still works from it. Group means and the moments of the server's optimizer persist
between merges. Trainers provide the models that are merged, whether trained here or by remote clients.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.arrays import FloatArray, IntArray, with_prefix
from lesson.core.errors import DivergedError, InputError
from lesson.learn.backend import Trainer
from lesson.learn.group_memory import GroupVectors, group_of_each
from lesson.learn.optimizers import OPTIMISERS, Moments
from lesson.learn.robust.guard import MergeGuard, Uploads, finite_only, uploads_of
from lesson.learn.task import Work, to_device
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Merge, Updates


class Signals(Mapping[str, Any]):
    """Values by name, each worked out when it is looked at: most rounds look at none."""

    def __init__(self, functions: Mapping[str, Callable[[], Any]]) -> None:
        self._functions = functions

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


class Confirmation:
    """How far updates from older versions go the way the model has gone since; see `ServerView.signals`."""

    def __init__(self, device: str) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, way: Tensor, moved: Tensor, weight: float) -> None:
        """Take in a cohort that counts for `weight` in all and, weighted, `moved` its models."""
        products = torch.stack([moved * way, weight * way**2])
        self.sums = self.sums + products.sum(1, dtype=torch.float64)

    def look(self) -> tuple[float, ...]:
        """The two sums, waited for."""
        return tuple(self.sums.tolist())


def cohorts_of(updates: Updates, weights: FloatArray, lr: FloatArray, merge: Merge) -> Iterator[tuple[int, str, Work]]:
    """The version each cohort started from, its group, and its work; a cohort whose groups differ is divided by them.

    `weights` and `lr`, the step size, are those of each update. A step of several minibatches is the mean of as many
    models, each after a step of one of them.
    """
    names, group = group_of_each(updates, merge)
    order = np.lexsort((updates.index, updates.client, group, updates.base_version))
    batches = updates.batches[order]
    shares, nothing = weights / updates.batches, np.zeros_like(updates.batches)
    everything = Work(updates.client, updates.index, lr, updates.local_steps, shares, nothing)
    order = np.repeat(order, batches)
    everything = replace(everything[order], first=_counts_up(batches))
    bases, group = updates.base_version[order], group[order]
    begins = [0, *(np.flatnonzero(np.diff(bases) | np.diff(group)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(bases)], strict=True):
        if begin < end:
            yield int(bases[begin]), names[group[begin]], everything[begin:end]


def _counts_up(lengths: IntArray) -> IntArray:
    """0 … n − 1 for every length n, one after the other."""
    numbers: IntArray = np.arange(lengths.sum())
    return numbers - np.repeat(np.cumsum(lengths) - lengths, lengths)


MAX_STEP = float(np.finfo(np.float32).max)
Of = Literal["models", "updates"]
Jobs = Sequence[tuple[int, str, Work]]
"""Cohorts: the version each started from, its group, and its work."""


@dataclass(frozen=True, eq=False)
class _Cohort:
    """What is taken of a cohort."""

    total: Tensor
    """The weighted sum of its models."""
    weight: float
    uploads: Uploads | None = None
    """Its models one by one, where they were looked at."""

    @classmethod
    def of(cls, uploads: Uploads) -> "_Cohort":
        """Of models that were looked at one by one."""
        models, weights = uploads.models, to_device(uploads.weight, uploads.models.device.type)
        precise = models.double() if models.is_cuda else models  # a product of floats may be rounded to TF32 there
        total = (weights.to(precise.dtype) @ precise).to(models.dtype)
        return cls(total, float(uploads.weight.sum()), uploads)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is taken."""
        return self.uploads is not None and not len(self.uploads)


class ServerModels:
    """The model versions in use, and how merges make new ones.

    Updates are looked at before they are merged, unless they can be `trusted`: those that were trained here.
    """

    def __init__(
        self,
        initial: Tensor,
        learning_rate: float,
        lr_cap: float,
        trainer: Callable[[Updates], Trainer],
        server: ServerSettings | None = None,
        watched: frozenset[str] = frozenset(),
        guards: GuardSettings | None = None,
        trusted: bool = False,
    ) -> None:
        self.learning_rate, self.lr_cap = learning_rate, lr_cap
        self.server = server or ServerSettings()
        self.versions: dict[int, Tensor] = {0: initial}
        self.newest_cohort = "before the first merge"
        """What was merged last, for whoever finds that the model is not finite."""
        self._trainer, self._device = trainer, initial.device
        self._groups = GroupVectors(initial)
        self._moments: Moments = {}
        self._guard = MergeGuard(guards or GuardSettings())
        self._looks = self._guard.settings.finite and not trusted
        self._confirmation = Confirmation(initial.device.type) if "confirmation" in watched else None
        plain = self.server.optimizer == "none"
        rates = "learning_rate or lr_cap" if plain else "server.learning_rate or settings.training.learning_rate"
        self._remedy = f"take a smaller {rates}"

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        """Make version + 1 out of the merged updates, which are in the order of `weights`; what of them is rejected.

        What is left counts for all: it is merged as if the others had not come. If nothing is, and no groups count,
        there is no new version.
        """
        model, (merged, rejections) = self.versions[version], self._merged(updates, weights, merge, version, round)
        if len(rejections) == len(updates) and not (merge.groups is not None and merge.groups.weights):
            return rejections
        new = merged
        if self.server.optimizer != "none":
            new, self._moments = OPTIMISERS[self.server.optimizer](model, model - merged, self._moments, self.server)
        if merge.groups is not None or new is not merged:
            self._check_model(new)
        self.versions[version + 1] = new
        return rejections

    def forget(self, version: int) -> None:
        """Free a version that nobody works from any more."""
        del self.versions[version]

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Versions in use by number, groups by name, the optimizer's moments and what was watched, for `restore`."""
        kept = {f"version.{version}": vector for version, vector in self.versions.items()}
        kept |= {f"group.{json.dumps(name)}": vector for name, vector in self._groups.filled.items()}
        kept |= {f"moment.{name}": vector for name, vector in self._moments.items()}
        kept |= {"signal.confirmation": self._confirmation.sums} if self._confirmation is not None else {}
        vectors = {name: vector.cpu().numpy() for name, vector in kept.items()}
        check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self.newest_cohort)
        return vectors | self._guard.state()

    def restore(self, state: dict[str, npt.NDArray[np.floating]]) -> None:
        """Go on from what `state` returned."""
        kinds = ("version.", "group.", "moment.", "signal.")
        versions, groups, moments, signals = (self._vectors(state, kind) for kind in kinds)
        self.versions = {int(version): vector for version, vector in versions.items()}
        self._groups.filled = {json.loads(name): vector for name, vector in groups.items()}
        self._moments = moments
        self._guard.restore(state)
        if self._confirmation is not None:
            self._confirmation.sums = signals.get("confirmation", self._confirmation.sums)

    def signals(self, names: frozenset[str], version: int) -> Signals:
        """Those of these signals that it can tell of a version, worked out when they are looked at."""
        told = self._extend_record(version)
        return Signals({name: told[name] for name in names if name in told})

    def step_sizes(self, lr_scale: FloatArray) -> FloatArray:
        """The step size of clients whose plan scales it so; at most what 32 bits hold, with which all diverge."""
        return np.minimum(self.learning_rate * lr_scale, min(self.lr_cap, MAX_STEP))

    def _extend_record(self, version: int) -> dict[str, Callable[[], Any]]:  # noqa: ARG002
        """How to work out each signal."""
        return {} if self._confirmation is None else {"confirmation": self._confirmation.look}

    def _merged(
        self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int
    ) -> tuple[Tensor, list[Rejection]]:
        """The model that a merge gives by its formula, its groups filled on the way; and what is rejected."""
        model, of, groups = self.versions[version], self._of(merge, weights), merge.groups
        jobs: Jobs = list(cohorts_of(updates, weights, self.step_sizes(updates.lr_scale), merge))
        cohorts, rejections = self._taken(updates, jobs, round)
        stands_for = _stands_for(jobs, cohorts) if rejections else {}
        planned = float(weights.sum()) if stands_for or not rejections else 0.0
        kept = 1 - planned if of == "models" else 1.0
        names = [""] if groups is None else groups.names if not rejections else stands_for
        sums = {name: model * kept if groups is None else torch.zeros_like(model) for name in names}
        for (base, group, work), cohort in zip(jobs, cohorts, strict=True):
            if cohort.is_empty or group not in sums:
                continue
            start, weight, factor = self.versions[base], cohort.weight, stands_for.get(group, 1.0)
            self._note(base, work, round)
            if self._confirmation is not None and base != version:
                self._confirmation.add(model - start, factor * (cohort.total - weight * start), factor * weight)
            if self._guard.settings.aggregation == "mean":
                sums[group] += cohort.total if factor == 1 else factor * cohort.total
                if of == "updates":
                    sums[group] -= factor * weight * start
                self._check_model(sums[group])
        if self._guard.settings.aggregation != "mean":
            self._add_middles({name: sums[name] for name in (stands_for if rejections else sums)}, jobs, cohorts, of)
        return (sums[""] if groups is None else self._groups.merge(model, sums, groups, of)), rejections

    def _add_middles(self, sums: dict[str, Tensor], jobs: Jobs, cohorts: Sequence[_Cohort], of: Of) -> None:
        """Add to each sum what a robust merge makes of its updates, with the weight that was planned for them."""
        for name in sums:
            planned, moved = 0.0, list[Tensor]()
            for (base, group, work), cohort in zip(jobs, cohorts, strict=True):
                if group == name and cohort.uploads is not None:
                    models, planned = cohort.uploads.models, planned + float(work.weight.sum())
                    moved.append(models if of == "models" else models.sub_(self.versions[base]))
            if moved:
                sums[name] += planned * self._guard.middle(moved[0] if len(moved) == 1 else torch.cat(moved))
                self._check_model(sums[name])

    def _taken(self, updates: Updates, jobs: Jobs, round: int) -> tuple[list[_Cohort], list[Rejection]]:
        """What is taken of each cohort, and what is rejected."""
        if not jobs:
            return [], []
        trainer = self._trainer(updates)
        pairs = [(self.versions[base], work) for base, _, work in jobs]
        if self._guard.needs_each:
            self._guard.check_room(sum(len(work) for *_, work in jobs), len(pairs[0][0]))
            each = [uploads_of(*job, models) for job, models in zip(jobs, trainer.models(pairs), strict=True)]
            taken, rejections = self._guard.judge(each, [base for base, _ in pairs])
            self._check_honest(rejections, jobs, round)
            return [_Cohort.of(uploads) for uploads in taken], rejections
        sums = zip(trainer.cohorts(pairs), pairs, strict=True)
        cohorts, rejections = [_Cohort(total, float(work.weight.sum())) for total, (_, work) in sums], []
        for place, job in enumerate(jobs if self._looks else ()):
            if not torch.isfinite(cohorts[place].total).all():
                (models,) = trainer.models([pairs[place]])
                finite, rejected = finite_only(uploads_of(*job, models))
                self._check_honest(rejected, [job], round)
                cohorts[place], rejections = _Cohort.of(finite), rejections + rejected
        return cohorts, rejections

    def _check_honest(self, rejections: Sequence[Rejection], jobs: Jobs, round: int) -> None:
        """Raise if an update was rejected although no fault was injected: then training has diverged."""

    def _note(self, base: int, work: Work, round: int) -> None:
        """Note what is merged, for whoever finds that the model is not finite."""
        self.newest_cohort = (
            f"after round {round}, with {np.count_nonzero(work.first == 0)} clients that started from version "
            f"{base} at step size {work.lr.max():g}; {self._remedy}"
        )

    def _of(self, merge: Merge, weights: FloatArray) -> Of:
        """Whether models or updates are merged: as the strategy says, unless the settings do."""
        if self.server.aggregate == "strategy":
            return merge.of
        if merge.groups is not None and self.server.aggregate != merge.of:
            raise InputError(
                f"[server] stale must be 'strategy' or '{merge.of}' for this strategy, which keeps {merge.of} between "
                f"merges, got '{self.server.aggregate}'"
            )
        if self.server.aggregate == "models" and weights.sum() > 1 + 1e-9:
            raise InputError(
                f"[server] stale must be 'strategy' or 'updates' for this strategy, got 'models': weights of models "
                f"must sum to at most 1, its sum to {weights.sum():g}"
            )
        return self.server.aggregate

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


def _stands_for(jobs: Jobs, cohorts: Sequence[_Cohort]) -> dict[str, float]:
    """Return by group the factor by which accepted updates make up for rejected ones; omit groups without any."""
    planned, taken = defaultdict[str, float](float), defaultdict[str, float](float)
    for (_, group, work), cohort in zip(jobs, cohorts, strict=True):
        planned[group] += float(work.weight.sum())
        taken[group] += cohort.weight
    return {group: planned[group] / weight for group, weight in taken.items() if weight > 0}


def as_tensor(vector: npt.NDArray[np.floating]) -> Tensor:
    """A vector as models here are, for who does without torch."""
    return torch.from_numpy(vector)
