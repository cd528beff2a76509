"""The model server: the model versions in use, and how updates are aggregated into a new one.

The round loop says when a version is no longer in use. Group means, moments of the server optimizer and recent norms
persist between aggregations. Unless a rejection can depend on the values of an update, aggregations are queued and
executed later, as window.py describes; reading a model, a signal or the state executes the queue.
"""

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.arrays import FloatArray, IntArray, with_prefix
from lesson.core.errors import InputError
from lesson.learn.backend import Trainer, WindowRule
from lesson.learn.cohort import Cohort, PlannedCohort, plan_cohorts
from lesson.learn.divergence import DeferredChecks, NewestCohort, check_finite
from lesson.learn.group_memory import GroupVectors
from lesson.learn.guards import NormGuard, finite_rows
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.scores import Pending
from lesson.learn.signals import Signals, deviations
from lesson.learn.window import Aggregation, Deferred, Window
from lesson.settings.sections import ServerSettings, TrainingSettings
from lesson.strategies.base import Merge, Updates

Result = TypeVar("Result")
MAX_STEP = float(np.finfo(np.float32).max)
Of = Literal["models", "updates"]
AnyCohort = Cohort | PlannedCohort
State = dict[str, npt.NDArray[np.floating]]


class UpdateSource(Protocol):
    """Provides the models of updates: from simulated clients, which are trained here, or from remote ones."""

    may_wait: bool
    """Whether updates can be trained later than they arrive."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the summary of a run, such as why a slower trainer was used."""
        ...

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that have been used."""
        ...

    def trainer_for(self, updates: Updates) -> Trainer:
        """Return the trainer that provides the models of these updates."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """A version of the global model, to be evaluated."""

    vector: Tensor
    """Its parameters, shape (num_parameters,)."""
    newest_cohort: NewestCohort


Signal = Callable[[GlobalModel], Any]


@final
class ModelServer:
    """The model versions in use, and how updates are aggregated into new ones.

    `source` provides the models of updates, `guard` checks them and `optimizer` applies their aggregate to the newest
    model. The server itself provides the signal "update_deviation"; `signals` holds functions that compute others.
    `window` says how much work is queued before it is executed.
    """

    def __init__(
        self,
        initial: Tensor,
        source: UpdateSource,
        training: TrainingSettings,
        optimizer: ServerOptimizer,
        guard: NormGuard,
        *,
        signals: Mapping[str, Signal] | None = None,
        window: WindowRule | None = None,
    ) -> None:
        self.versions: dict[int, Tensor] = {0: initial}
        self.source = source
        self._device = initial.device
        self._training, self._server = training, optimizer.settings
        self._optimizer, self._guard, self._groups = optimizer, guard, GroupVectors(initial)
        self._signals = dict(signals or {})
        self._remedy = _smaller_steps(training, optimizer.settings)
        self._newest_cohort = NewestCohort(None, 0, self._remedy)
        self._window, self._checks = Window(window or WindowRule()), DeferredChecks()
        self._may_queue = source.may_wait and not guard.rejects and self._window.rule.local_steps > 1
        """Whether aggregations may be executed later: not if they may reject updates, which changes later rounds."""

    @property
    def notes(self) -> list[str]:
        """Notes for the summary of a run."""
        return [*([self._optimizer.note] if self._optimizer.note else []), *self.source.notes]

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Rejection]:
        """Aggregate updates into version + 1, or queue this; return the rejected ones, none of those that are queued.

        `weights` has one weight per update.

        The weight of rejected updates is shared among the accepted ones of their group, in proportion to their weights.
        If no update is accepted and no group has a weight, there is no new version.
        """
        of = self._of(merge, weights)
        cohorts = plan_cohorts(updates, weights, self.step_sizes(updates), merge)
        trainer = self.source.trainer_for(updates) if cohorts else None
        aggregation = Aggregation(updates, weights, merge, version, round, of, cohorts, trainer)
        if not self._may_queue:
            rejections = self._execute(aggregation)
            self._checks.synchronize()
            return rejections
        if merge.groups is not None:  # a strategy may change its own objects before the aggregation is executed
            aggregation.merge = replace(merge, groups=copy.deepcopy(merge.groups))
        self._window.add_aggregation(aggregation, self.versions, self._execute_ahead)
        if self._window.is_full:
            self.flush()
        return []

    def forget(self, version: int) -> None:
        """Free a version that is no longer in use."""
        if self._window:
            self._window.add(lambda: self.versions.pop(version))
        else:
            del self.versions[version]

    def flush(self) -> None:
        """Execute the queued aggregations and evaluations."""
        self._window.execute()
        self._checks.end_window()

    def synchronize(self) -> None:
        """Execute what is queued and wait for all checks; raise DivergedError if a model is not finite."""
        self.flush()
        self._checks.synchronize()

    def end_window(self) -> bool:
        """End the window if it may end after any round; return whether the queue is empty, so that it can be saved."""
        if self._window.rule.ends_anywhere:
            self.flush()
        return not self._window

    @property
    def first_open_round(self) -> float:
        """First round whose model is queued or not known to be finite; inf if all results are final."""
        return min(self._window.first_round, self._checks.first_round)

    def model(self, version: int) -> GlobalModel:
        """Return a version, to be evaluated."""
        self.flush()
        return self._model(version)

    def evaluate(
        self, version: int, evaluate: Callable[[GlobalModel], Pending[Result]], cost: float = 0.0
    ) -> Pending[Result]:
        """Evaluate a version as soon as it exists, and return the pending result; `cost` is in local steps."""
        if not self._window:
            return evaluate(self._model(version))
        deferred = Deferred[Result](self.flush)
        self._window.add(lambda: deferred.begin(lambda: evaluate(self._model(version))), cost)
        return deferred

    def _model(self, version: int) -> GlobalModel:
        return GlobalModel(self.versions[version], self._newest_cohort)

    def signals(self, names: frozenset[str], version: int) -> Signals:
        """Return those of the named signals that are available for a version, each computed when it is accessed."""
        functions: dict[str, Callable[[], Any]] = {
            name: partial(self._signal, compute, version) for name, compute in self._signals.items()
        }
        functions["update_deviation"] = self._deviations
        return Signals({name: compute for name, compute in functions.items() if name in names})

    def _signal(self, compute: Signal, version: int) -> Any:
        self._synchronize_for_signal()
        return compute(self._model(version))

    def _synchronize_for_signal(self) -> None:
        """Execute what is queued; this round's aggregation will be executed at once, too, so a window ends with it."""
        self.synchronize()
        self._window.end_soon()

    def _deviations(self) -> Callable[[Updates, Updates], FloatArray]:
        self._synchronize_for_signal()
        return lambda fresh, stale: deviations(self._trained(fresh), self._trained(stale), stale)

    def _trained(self, updates: Updates) -> list[Cohort]:
        """Return the cohorts of updates that wait at the server, with the model of each update."""
        weights = np.ones(len(updates))
        planned = plan_cohorts(updates, weights, self.step_sizes(updates), Merge(updates.id, weights))
        if not planned:
            return []
        cohorts = [cohort.starting_from(self.versions[cohort.base_version]) for cohort in planned]
        models = self.source.trainer_for(updates).models(cohorts)
        return [cohort.with_models(some) for cohort, some in zip(cohorts, models, strict=True)]

    def step_sizes(self, updates: Updates) -> FloatArray:
        """Return the step size of each update: learning rate × schedule × `lr_scale`, at most lr_cap and float32."""
        return np.minimum(self.uncapped_step_sizes(updates), min(self._training.lr_cap, MAX_STEP))

    def uncapped_step_sizes(self, updates: Updates) -> FloatArray:
        """Return the step sizes without the bound lr_cap."""
        factor = schedule_factor(self._training, updates.started_round, updates.started_s)
        return np.asarray(self._training.learning_rate * updates.lr_scale * factor)

    def state(self) -> State:
        """Return versions, groups, moments, signals and recent norms as arrays by name, for `restore`.

        Raises DivergedError if one of the vectors is not finite.
        """
        self.synchronize()
        saved = {f"version.{version}": vector for version, vector in self.versions.items()}
        saved |= {f"group.{json.dumps(name)}": vector for name, vector in self._groups.filled.items()}
        saved |= {"groups.total": self._groups.total} if self._groups.total is not None else {}
        saved |= {f"moment.{name}": vector for name, vector in self._optimizer.moments.items()}
        vectors = {name: vector.cpu().numpy() for name, vector in saved.items()}
        check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self._newest_cohort)
        return vectors | {"guard.norms": self._guard.norms.copy()}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""

        def vectors(kind: str) -> dict[str, Tensor]:
            return {
                name: torch.tensor(vector, device=self._device) for name, vector in with_prefix(state, kind).items()
            }

        versions = {int(version): vector for version, vector in vectors("version.").items()}
        given, wanted = (
            {len(vector) for vector in versions.values()},
            {len(vector) for vector in self.versions.values()},
        )
        if not given <= wanted:
            raise InputError(f"task must have a model of {max(given)} values, as this run began, got {max(wanted)}")
        self.versions = versions
        self._window, self._checks = Window(self._window.rule), DeferredChecks()
        self._groups.filled = {json.loads(name): vector for name, vector in vectors("group.").items()}
        self._groups.total = vectors("groups.").get("total")
        self._optimizer.moments = vectors("moment.")
        self._guard.norms = state["guard.norms"].astype(np.float64)

    def close(self) -> None:
        """Close the source of updates."""
        self.source.close()

    def _execute_ahead(self, aggregation: Aggregation) -> None:
        """Execute a queued aggregation, after training its cohorts together with others."""
        self._window.train(aggregation, self.versions)
        self._execute(aggregation)
        aggregation.totals.clear()

    def _execute(self, aggregation: Aggregation) -> list[Rejection]:
        """Carry out an aggregation and return the rejected updates."""
        version, groups = aggregation.version, aggregation.merge.groups
        aggregated, rejections = self._aggregated(aggregation)
        if len(rejections) == len(aggregation.updates) and not (groups is not None and groups.has_weights):
            return rejections
        new = self._optimizer.step(self.versions[version], aggregated, aggregation.merge.step_scale)
        if new.is_cuda:
            self._checks.add(new, aggregation.round, self._newest_cohort)
        elif groups is not None or new is not aggregated:
            self._check_model(new)
        self.versions[version + 1] = new
        self._window.add_version(version + 1)
        return rejections

    def _aggregated(self, aggregation: Aggregation) -> tuple[Tensor, list[Rejection]]:
        """Return the aggregated model, before the server optimizer, and the rejections; update the group memory."""
        version, of, groups = aggregation.version, aggregation.of, aggregation.merge.groups
        model, cohorts = self.versions[version], aggregation.cohorts
        accepted, totals, rejections = self._accepted(aggregation)
        factors = _weight_factors(cohorts, accepted) if rejections else {}
        weight_of_updates = float(aggregation.weights.sum()) if factors or not rejections else 0.0
        weight_of_model = 1 - weight_of_updates if of == "models" else 1.0
        names = [""] if groups is None else groups.names if not rejections else factors
        sums = {name: model * weight_of_model if groups is None else torch.zeros_like(model) for name in names}
        for cohort, taken, total in zip(cohorts, accepted, totals, strict=True):
            group, start = cohort.group, self.versions[cohort.base_version]
            if not len(taken) or group not in sums:
                continue
            weight, factor = float(taken.weight.sum()), factors.get(group, 1.0)
            self._newest_cohort = NewestCohort(cohort, aggregation.round, self._remedy)
            sums[group] += total if factor == 1 else factor * total
            if of == "updates":
                sums[group] -= factor * weight * start
            self._check_model(sums[group])
        return (sums[""] if groups is None else self._groups.merge(model, sums, groups, of)), rejections

    def _accepted(self, aggregation: Aggregation) -> tuple[Sequence[AnyCohort], list[Tensor], list[Rejection]]:
        """Return the accepted updates of each cohort, the weighted sum of their models, and all rejected updates."""
        trainer, known = aggregation.trainer, [total for total in aggregation.totals if total is not None]
        if trainer is None or len(known) == len(aggregation.cohorts):
            return aggregation.cohorts, known, []
        cohorts = [cohort.starting_from(self.versions[cohort.base_version]) for cohort in aggregation.cohorts]
        if not self._guard.rejects:
            return cohorts, trainer.sums(cohorts), []
        models = zip(cohorts, trainer.models(cohorts), strict=True)
        trained = [cohort.with_models(some) for cohort, some in models]
        for planned, cohort in zip(aggregation.cohorts, trained, strict=True):
            newest_cohort = NewestCohort(planned, aggregation.round, self._remedy)
            check_finite("model", bool(finite_rows(cohort.models).all()), newest_cohort)
        accepted, rejections = self._guard.check(trained)
        return accepted, [cohort.weighted_sum() for cohort in accepted], rejections

    def _of(self, merge: Merge, weights: FloatArray) -> Of:
        """Return whether models or updates are aggregated: as set in [server], or as the strategy prescribes."""
        if self._server.aggregate == "strategy":
            return merge.of
        if merge.groups is not None and self._server.aggregate != merge.of:
            raise InputError(
                f"[server] aggregate must be 'strategy' or '{merge.of}' for this strategy, which stores {merge.of} "
                f"between aggregations, got '{self._server.aggregate}'"
            )
        if self._server.aggregate == "models" and weights.sum() > 1 + 1e-9:
            raise InputError(
                f"[server] aggregate must be 'strategy' or 'updates' for this strategy, got 'models': weights of "
                f"models must sum to at most 1, got {weights.sum():g}"
            )
        return self._server.aggregate

    def _check_model(self, vector: Tensor) -> None:
        """Raise DivergedError if a model is not finite. On a GPU, `DeferredChecks` does this without waiting."""
        if not vector.is_cuda:
            check_finite("model", bool(torch.isfinite(vector).all()), self._newest_cohort)


def schedule_factor(training: TrainingSettings, round: IntArray, time_s: FloatArray) -> FloatArray | float:
    """Return the factor of the step size for local trainings that start in these rounds and at these times."""
    if training.schedule == "constant":
        return 1.0
    spent = np.maximum(round - 1, 0) if training.schedule_over == "rounds" else time_s
    periods, end = spent / training.schedule_period, training.schedule_factor
    if training.schedule == "cosine":
        return np.asarray(end + (1 - end) * (1 + np.cos(np.pi * np.minimum(periods, 1))) / 2)
    return np.asarray(end ** (np.floor(periods) if training.schedule == "step" else periods))


def _smaller_steps(training: TrainingSettings, server: ServerSettings) -> str:
    """Return what to do if training diverges."""
    plain = server.optimizer == "none"
    rates = ["learning_rate", "lr_cap"] if plain else ["server.learning_rate", "training.learning_rate"]
    rates += ["proximal_mu"] if training.proximal_mu else []
    return f"use a smaller {', '.join(rates[:-1])} or {rates[-1]}"


def _weight_factors(cohorts: Sequence[PlannedCohort], accepted: Sequence[AnyCohort]) -> dict[str, float]:
    """Return the planned weight of each group divided by its accepted weight; omit groups without accepted updates."""
    planned, remaining = defaultdict[str, float](float), defaultdict[str, float](float)
    for cohort, taken in zip(cohorts, accepted, strict=True):
        planned[cohort.group] += float(cohort.weight.sum())
        remaining[cohort.group] += float(taken.weight.sum())
    return {group: planned[group] / weight for group, weight in remaining.items() if weight > 0}
