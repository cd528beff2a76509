"""The server's models: the versions in use, and how updates are aggregated into a new one.

A version is kept while a client still trains from it. Group means and the moments of the server's optimizer persist
between aggregations. A trainer provides the models to aggregate, whether they are trained here or by remote clients.
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
from lesson.learn.device import to_device
from lesson.learn.group_memory import GroupVectors, group_of_each
from lesson.learn.optimizers import OPTIMIZERS, Moments
from lesson.learn.robust.guard import MergeGuard, Uploads, finite_only, uploads_of
from lesson.learn.task import Work
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Merge, Updates


class Signals(Mapping[str, Any]):
    """Values by name, each computed when it is accessed: most rounds access none."""

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
    """Sums that show whether older updates agree with how the model has moved since; see `ServerView.signals`."""

    def __init__(self, device: str) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def add(self, way: Tensor, moved: Tensor, weight: float) -> None:
        """Add a cohort: `weight` is Σ a, `moved` is Σ a·v and `way` is d, as in `ServerView.signals`."""
        products = torch.stack([moved * way, weight * way**2])
        self.sums = self.sums + products.sum(1, dtype=torch.float64)

    def look(self) -> tuple[float, ...]:
        """Return the two sums; waits for the GPU if they are on one."""
        return tuple(self.sums.tolist())


def cohorts_of(updates: Updates, weights: FloatArray, lr: FloatArray, merge: Merge) -> Iterator[tuple[int, str, Work]]:
    """Yield the base version, the group and the work of each cohort; updates of different groups are separate cohorts.

    `weights` and the step sizes `lr` have shape (num_updates,). A step on several minibatches is the mean of as many
    models, each after one step on one of the minibatches; each of them is a row of the work.
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
    """Return the concatenation of 0, …, n − 1 for each length n."""
    numbers: IntArray = np.arange(lengths.sum())
    return numbers - np.repeat(np.cumsum(lengths) - lengths, lengths)


MAX_STEP = float(np.finfo(np.float32).max)
Of = Literal["models", "updates"]
Jobs = Sequence[tuple[int, str, Work]]
"""Cohorts: the version each started from, its group and its work."""


@dataclass(frozen=True, eq=False)
class _Cohort:
    """The accepted updates of a cohort."""

    total: Tensor
    """Weighted sum of their models."""
    weight: float
    uploads: Uploads | None = None
    """Their individual models; None if only the sum was computed."""

    @classmethod
    def of(cls, uploads: Uploads) -> "_Cohort":
        """Return the cohort with these accepted updates."""
        models, weights = uploads.models, to_device(uploads.weight, uploads.models.device.type)
        precise = models.double() if models.is_cuda else models  # a float32 product could use TF32 there
        total = (weights.to(precise.dtype) @ precise).to(models.dtype)
        return cls(total, float(uploads.weight.sum()), uploads)

    @property
    def is_empty(self) -> bool:
        """Whether all updates were rejected."""
        return self.uploads is not None and not len(self.uploads)


class ServerModels:
    """The model versions in use, and how updates are aggregated into new ones.

    Updates are checked for values that are not finite, if guards.finite is set, unless they are `trusted` because they
    are trained here.
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
        """Description of the last aggregated cohort, for the error message if the model is no longer finite."""
        self._trainer, self._device = trainer, initial.device
        self._groups = GroupVectors(initial)
        self._moments: Moments = {}
        self._guard = MergeGuard(guards or GuardSettings())
        self._looks = self._guard.settings.finite and not trusted
        self._confirmation = Confirmation(initial.device.type) if "confirmation" in watched else None
        plain = self.server.optimizer == "none"
        rates = "learning_rate or lr_cap" if plain else "server.learning_rate or training.learning_rate"
        self._remedy = f"take a smaller {rates}"

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        """Aggregate updates into version + 1 and return the rejected ones; `weights` has one weight per update.

        Accepted updates take over the weight of rejected ones in their group. If no update is left and no group has a
        weight, there is no new version.
        """
        model, (merged, rejections) = self.versions[version], self._merged(updates, weights, merge, version, round)
        if len(rejections) == len(updates) and not (merge.groups is not None and merge.groups.weights):
            return rejections
        new = merged
        if self.server.optimizer != "none":
            new, self._moments = OPTIMIZERS[self.server.optimizer](model, model - merged, self._moments, self.server)
        if merge.groups is not None or new is not merged:
            self._check_model(new)
        self.versions[version + 1] = new
        return rejections

    def forget(self, version: int) -> None:
        """Free a version that no client trains from anymore."""
        del self.versions[version]

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Return versions, groups, moments, signals and recent norms as arrays by name, for `restore`.

        Raises DivergedError if one of the vectors is not finite.
        """
        kept = {f"version.{version}": vector for version, vector in self.versions.items()}
        kept |= {f"group.{json.dumps(name)}": vector for name, vector in self._groups.filled.items()}
        kept |= {f"moment.{name}": vector for name, vector in self._moments.items()}
        kept |= {"signal.confirmation": self._confirmation.sums} if self._confirmation is not None else {}
        vectors = {name: vector.cpu().numpy() for name, vector in kept.items()}
        check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self.newest_cohort)
        return vectors | self._guard.state()

    def restore(self, state: dict[str, npt.NDArray[np.floating]]) -> None:
        """Continue from what `state` returned."""
        kinds = ("version.", "group.", "moment.", "signal.")
        versions, groups, moments, signals = (self._vectors(state, kind) for kind in kinds)
        self.versions = {int(version): vector for version, vector in versions.items()}
        self._groups.filled = {json.loads(name): vector for name, vector in groups.items()}
        self._moments = moments
        self._guard.restore(state)
        if self._confirmation is not None:
            self._confirmation.sums = signals.get("confirmation", self._confirmation.sums)

    def signals(self, names: frozenset[str], version: int) -> Signals:
        """Return those of the named signals that are available for a version, each computed when it is accessed."""
        told = self._signal_functions(version)
        return Signals({name: told[name] for name in names if name in told})

    def step_sizes(self, lr_scale: FloatArray) -> FloatArray:
        """Return the learning rate times `lr_scale`, at most lr_cap and at most the largest float32."""
        return np.minimum(self.learning_rate * lr_scale, min(self.lr_cap, MAX_STEP))

    def _signal_functions(self, version: int) -> dict[str, Callable[[], Any]]:  # noqa: ARG002
        """Return the functions that compute the available signals, by name."""
        return {} if self._confirmation is None else {"confirmation": self._confirmation.look}

    def _merged(
        self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int
    ) -> tuple[Tensor, list[Rejection]]:
        """Return the aggregated model, before the server optimizer, and the rejected updates; fills the groups."""
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
        """Add the median or trimmed mean of each group's updates to its sum, with their planned total weight."""
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
        """Return the accepted updates of each cohort, and all rejected ones."""
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
        """Raise DivergedError if training itself gave values that are not finite; only `Learner` can know."""

    def _note(self, base: int, work: Work, round: int) -> None:
        """Record which cohort is aggregated, for the error message if the model is no longer finite."""
        self.newest_cohort = (
            f"after round {round}, with {np.count_nonzero(work.first == 0)} clients that started from version "
            f"{base} at step size {work.lr.max():g}; {self._remedy}"
        )

    def _of(self, merge: Merge, weights: FloatArray) -> Of:
        """Return whether models or updates are aggregated: as set in [server], or else as the strategy prescribes."""
        if self.server.aggregate == "strategy":
            return merge.of
        if merge.groups is not None and self.server.aggregate != merge.of:
            raise InputError(
                f"[server] aggregate must be 'strategy' or '{merge.of}' for this strategy, which stores {merge.of} "
                f"between aggregations, got '{self.server.aggregate}'"
            )
        if self.server.aggregate == "models" and weights.sum() > 1 + 1e-9:
            raise InputError(
                f"[server] aggregate must be 'strategy' or 'updates' for this strategy, got 'models': weights of "
                f"models must sum to at most 1, got {weights.sum():g}"
            )
        return self.server.aggregate

    def _vectors(self, state: dict[str, npt.NDArray[np.floating]], prefix: str) -> dict[str, Tensor]:
        """Return the vectors whose names start with `prefix`, without the prefix, on the device."""
        return {name: torch.tensor(vector, device=self._device) for name, vector in with_prefix(state, prefix).items()}

    def _check_model(self, vector: Tensor) -> None:
        """Raise DivergedError if a model is not finite. On a GPU this is checked later, so as not to wait for it."""
        if not vector.is_cuda:
            check_finite("model", bool(torch.isfinite(vector).all()), self.newest_cohort)


def check_finite(what: str, finite: bool, newest_cohort: str) -> None:
    """Raise DivergedError unless `finite`."""
    if not finite:
        raise DivergedError(f"the {what} is no longer finite {newest_cohort}")


def _stands_for(jobs: Jobs, cohorts: Sequence[_Cohort]) -> dict[str, float]:
    """Return the planned weight of each group divided by its accepted weight; omit groups without accepted updates."""
    planned, taken = defaultdict[str, float](float), defaultdict[str, float](float)
    for (_, group, work), cohort in zip(jobs, cohorts, strict=True):
        planned[group] += float(work.weight.sum())
        taken[group] += cohort.weight
    return {group: planned[group] / weight for group, weight in taken.items() if weight > 0}


def as_tensor(vector: npt.NDArray[np.floating]) -> Tensor:
    """Wrap a NumPy vector as a tensor, for callers that do not import torch."""
    return torch.from_numpy(vector)
