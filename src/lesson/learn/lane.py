"""Lanes: the state of one run that its models depend on."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray, with_prefix
from lesson.core.errors import InputError
from lesson.learn.aggregate import GroupVectors, Of
from lesson.learn.chunk import Chunk
from lesson.learn.cohort import PlannedCohort, num_minibatches, plan_cohorts
from lesson.learn.divergence import NewestCohort, check_finite
from lesson.learn.guards import NormGuard, Transform
from lesson.learn.memory import Memory, TensorMemory
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.results import Launched
from lesson.settings.sections import GuardSettings, ServerSettings, TrainingSettings
from lesson.strategies.base import Merge, Updates

MAX_STEP = float(np.finfo(np.float32).max)
State = dict[str, npt.NDArray[np.floating]]


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """A version of the global model, to be evaluated."""

    vector: Tensor
    """Its parameters, shape (num_parameters,)."""
    newest_cohort: NewestCohort


class Lane:
    """Holds the model versions of a run, its groups, the moments of the server optimizer, and transforms of updates.

    The round loop decides which versions are still in use.
    """

    def __init__(
        self,
        initial: Tensor,
        training: TrainingSettings,
        optimizer: ServerOptimizer,
        guards: GuardSettings,
        transforms: Sequence[Transform] = (),
        memory: Memory | None = None,
    ) -> None:
        self.memory: Memory = TensorMemory(initial.device.type) if memory is None else memory
        self.versions: dict[int, Tensor] = {0: initial}
        self.version = 0
        """Newest version."""
        self.groups, self.optimizer = GroupVectors(initial), optimizer
        self.transforms: Sequence[Transform] = [*transforms, *([NormGuard(guards)] if guards.limits_norms else ())]
        """Applied to trained models before they are aggregated; if there are none, only weighted sums are computed."""
        self.remedy = _smaller_steps(training, optimizer.settings)
        """What to do if training diverges."""
        self.newest_cohort = NewestCohort(None, 0, self.remedy)
        self.launched = deque[Launched]()
        """Chunks whose results are not known yet."""
        self._training, self._server = training, optimizer.settings

    @property
    def model(self) -> GlobalModel:
        """The newest version."""
        return GlobalModel(self.versions[self.version], self.newest_cohort)

    @property
    def may_reject(self) -> bool:
        """Whether updates may be rejected because of their values; rejections affect later rounds."""
        return any(transform.may_reject for transform in self.transforms)

    def add_version(self, model: Tensor) -> None:
        """Make a model the newest version."""
        self.version += 1
        self.versions[self.version] = model

    def aggregates(self, merge: Merge, weight: float) -> Of:
        """Return whether models or updates are aggregated: as set in [server], or as the strategy prescribes.

        `weight` is the sum of the weights of all updates.
        """
        if self._server.aggregate == "strategy":
            return merge.of
        if merge.groups is not None and self._server.aggregate != merge.of:
            raise InputError(
                f"[server] aggregate must be 'strategy' or '{merge.of}' for this strategy, which stores {merge.of} "
                f"between aggregations, got '{self._server.aggregate}'"
            )
        if self._server.aggregate == "models" and weight > 1 + 1e-9:
            raise InputError(
                f"[server] aggregate must be 'strategy' or 'updates' for this strategy, got 'models': weights of "
                f"models must sum to at most 1, got {weight:g}"
            )
        return self._server.aggregate

    def step_sizes(self, updates: Updates) -> FloatArray:
        """Return the step size of each update: learning rate × schedule × `lr_scale`, at most lr_cap and MAX_STEP."""
        return np.minimum(self.uncapped_step_sizes(updates), min(self._training.lr_cap, MAX_STEP))

    def planned(self, chunk: Chunk) -> list[PlannedCohort]:
        """Return the cohorts of a chunk, see `plan_cohorts`."""
        training, samples = self._training, chunk.updates.samples
        is_linear = training.local_optimizer == "sgd" and training.clip_norm == np.inf
        if not is_linear and len(samples) and samples.max() > training.batch_size:
            what = "clip_norm" if training.local_optimizer == "sgd" else "local_optimizer = 'adamw'"
            raise InputError(f"[training] {what} does not work with steps on several minibatches, as in lesson-fitted")
        return plan_cohorts(chunk, self.step_sizes(chunk.updates), training.batch_size)

    def num_minibatches(self, updates: Updates) -> int:
        """Return the number of minibatches that these updates train on."""
        return int(updates.local_steps @ num_minibatches(updates.samples, self._training.batch_size))

    def uncapped_step_sizes(self, updates: Updates) -> FloatArray:
        """Return the step sizes without these limits."""
        factor = schedule_factor(self._training, updates.started_round, updates.started_s)
        return np.asarray(self._training.learning_rate * updates.lr_scale * factor)

    def state(self) -> State:
        """Return versions, groups, moments and recent norms as arrays by name, for `restore`.

        All chunks must have been executed. Raises DivergedError if one of the vectors is not finite.
        """
        saved = {f"version.{version}": vector for version, vector in self.versions.items()}
        saved |= {f"group.{json.dumps(name)}": vector for name, vector in self.groups.filled.items()}
        if isinstance(self.groups.total, Tensor):  # elsewhere, it is a sum of the vectors of groups, without rounding
            saved["groups.total"] = self.groups.total
        saved |= {f"moment.{name}": vector for name, vector in self.optimizer.moments.items()}
        vectors = dict(zip(saved, self.memory.get(list(saved.values())), strict=True))
        check_finite("model", all(np.isfinite(vector).all() for vector in vectors.values()), self.newest_cohort)
        for transform in self.transforms:
            vectors |= {f"transform.{name}": array.copy() for name, array in transform.arrays.items()}
        return vectors

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""

        def vectors(kind: str) -> dict[str, Tensor]:
            named = with_prefix(state, kind)
            return dict(zip(named, self.memory.put(list(named.values())), strict=True))

        versions = {int(version): vector for version, vector in vectors("version.").items()}
        newest = self.versions[self.version]
        given, wanted = len(versions[max(versions)]), len(newest)
        if given != wanted:
            raise InputError(f"task must have a model of {given} values, as this run began, got {wanted}")
        self.versions, self.version = versions, max(versions)
        self.groups.filled = {json.loads(name): vector for name, vector in vectors("group.").items()}
        self.groups.total = vectors("groups.").get("total")
        self.optimizer.moments = vectors("moment.")
        arrays = with_prefix(state, "transform.")
        for transform in self.transforms:
            transform.restore(arrays, newest.device)


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
