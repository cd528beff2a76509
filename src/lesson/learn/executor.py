"""The executor computes the models of chunks on one device. What changes during a run is in `Lane`, not here.

Cohorts whose base models exist are trained together, as a *wave*, whatever the rounds in which they are aggregated.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from lesson.clock.rejections import Rejection
from lesson.core.errors import InputError
from lesson.learn.aggregate import add_cohort, begin_sums, weight_factors
from lesson.learn.backend import ChunkRule, Trainer, UpdateSource
from lesson.learn.chunk import Chunk, Step
from lesson.learn.cohort import Cohort, PlannedCohort
from lesson.learn.divergence import NewestCohort, check_finite
from lesson.learn.evaluation import Evaluator
from lesson.learn.guards import finite_rows
from lesson.learn.lane import Lane
from lesson.learn.results import Launched, LaunchedRound, Results, RoundResult

MAX_WAVE_COHORTS, MAX_WAVE_VALUES = 64, 1 << 26
"""Limits of a wave: number of cohorts, and number of values in all their sums."""


class Executor:
    """Executes chunks: trains cohorts, aggregates and evaluates. `source` provides the models of updates."""

    def __init__(self, source: UpdateSource, evaluator: Evaluator | None, rule: ChunkRule | None = None) -> None:
        self.source, self.evaluator, self.rule = source, evaluator, rule or ChunkRule()

    def submit(self, lane: Lane, chunk: Chunk, *, wait: bool = False) -> Results:
        """Start to execute a chunk, and return the results that are known.

        These are the results of this chunk if chunks may end after any round, as on a CPU, or with `wait`. Otherwise,
        they are those of the previous one, because the clock builds the next chunk while the GPU computes this one.
        """
        launched = lane.memory.launched()
        try:
            self._launch(lane, chunk, launched)
        except Exception as error:
            launched.error = error
        launched.begin_copy()
        lane.launched.append(launched)
        at_once = wait or self.rule.ends_anywhere or launched.error is not None
        return self._collect(lane, keep=0 if at_once else 1)

    def finish(self, lane: Lane, step: Step) -> Results:
        """Evaluate and free versions after the updates of a step have been aggregated, and wait for the results."""
        launched = lane.memory.launched()
        launched.rounds.append(LaunchedRound())
        try:
            self._finish(lane, step, launched.rounds[0])
        except Exception as error:
            launched.error = error
        launched.begin_copy()
        return launched.results()

    def drain(self, lane: Lane) -> Results:
        """Wait for all chunks of a lane and return their results."""
        return self._collect(lane)

    def models(self, lane: Lane, chunk: Chunk) -> list[Cohort]:
        """Return the cohorts of a chunk with the model of each update as the server decodes it, without guards.

        All their base versions must exist.
        """
        cohorts = _started(lane, lane.planned(chunk))
        if not cohorts:
            return []
        trained = _trained(self.source.trainer_for(chunk.updates.local_steps), cohorts)
        for transform in lane.transforms:
            if not transform.may_reject:
                before = transform.arrays
                trained, _ = transform(trained)
                transform.restore(before, lane.model.vector.device)  # the updates are decoded again when aggregated
        return trained

    def close(self) -> None:
        """Release all threads, processes and GPU memory."""
        self.source.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def _collect(self, lane: Lane, keep: int = 0) -> Results:
        """Return the results of all chunks of a lane except the last `keep`, up to the first error."""
        rounds = list[RoundResult]()
        error: Exception | None = None
        while len(lane.launched) > keep and error is None:
            results = lane.launched.popleft().results()
            rounds += results.rounds
            error = results.error
        return Results(rounds, error)

    def _launch(self, lane: Lane, chunk: Chunk, launched: Launched) -> None:
        """Execute the steps of a chunk in order, and add each to `launched`."""
        waves = _Waves(self.source, lane, chunk)
        for number, step in enumerate(chunk.steps):
            result = LaunchedRound()
            launched.rounds.append(result)
            if step.merge is not None:
                result.rejections = self._aggregate(lane, chunk, number, waves, result)
            self._finish(lane, step, result)

    def _finish(self, lane: Lane, step: Step, result: LaunchedRound) -> None:
        """Evaluate the newest version and free old ones as a step requires; add the evaluations to its result."""
        if self.evaluator is not None:
            result.score = self.evaluator.begin_score(lane.model) if step.evaluates else None
            result.clients = self.evaluator.client_scores(lane.model) if step.evaluates_clients else None
        for version in step.unused:
            del lane.versions[version]

    def _aggregate(
        self, lane: Lane, chunk: Chunk, number: int, waves: "_Waves", result: LaunchedRound
    ) -> Sequence[Rejection]:
        """Create a version from the updates of a step, and return the rejected ones.

        The weight of rejected updates is shared among the accepted ones of their group, in proportion to their weights.
        If no update is accepted and no group has a weight, there is no new version.
        """
        merge, rows = chunk.steps[number].merge, chunk.rows(number)
        assert merge is not None, "only called for steps that aggregate"
        groups, model, planned = merge.groups, lane.versions[lane.version], waves.cohorts_of(number)
        weight = float(chunk.weights[rows].sum())
        of = lane.aggregates(merge, weight)
        accepted, sums, rejections = self._train(lane, number, waves)
        if rejections and len(rejections) == rows.stop - rows.start and not (groups is not None and groups.has_weights):
            return rejections
        factors = weight_factors(planned, accepted) if rejections else {}
        names = [] if groups is None else list(factors if rejections else dict.fromkeys(groups.names))
        totals = begin_sums(model, of, weight if factors or not rejections else 0.0, groups, names)
        for plan, taken, total in zip(planned, accepted, sums, strict=True):
            if not len(taken) or taken.group not in totals:
                continue
            lane.newest_cohort = NewestCohort(plan, chunk.steps[number].round, lane.remedy)
            base, factor = lane.versions[plan.base_version], factors.get(plan.group, 1.0)
            add_cohort(totals[plan.group], total, taken, base, of, factor)
            _check_model(totals[plan.group], lane)
        if groups is None:
            aggregated = totals[""]
        else:
            stored = {name: lane.memory.store(total) for name, total in totals.items()}
            aggregated = lane.groups.merge(model, stored, groups, of)
        optimizers, number = lane.memory.optimizers, lane.version + 1
        scale, limit = merge.step_scale, merge.step_limit
        new = lane.memory.store(lane.optimizer.step(model, aggregated, scale, optimizers, limit=limit, number=number))
        if new.is_cuda:
            result.sum, result.newest_cohort = new.sum(dtype=torch.float64), lane.newest_cohort
        elif groups is not None or new is not aggregated:
            _check_model(new, lane)
        lane.add_version(new)
        waves.add_version(lane.version)
        return rejections

    def _train(
        self, lane: Lane, number: int, waves: "_Waves"
    ) -> tuple[Sequence[PlannedCohort | Cohort], list[Tensor], list[Rejection]]:
        """Return the accepted updates of each cohort of a step, the weighted sum of their models, and rejections."""
        planned = waves.cohorts_of(number)
        if not lane.transforms:
            return planned, waves.sums(number), []
        trained = waves.trained(number)
        for plan, cohort in zip(planned, trained, strict=True):
            newest_cohort = NewestCohort(plan, waves.chunk.steps[number].round, lane.remedy)
            check_finite("model", bool(finite_rows(cohort.models).all()), newest_cohort)
        rejections = list[Rejection]()
        for transform in lane.transforms:
            trained, rejected = transform(trained)
            rejections += rejected
        return trained, [cohort.weighted_sum() for cohort in trained], rejections


class _Waves:
    """Trains the cohorts of a chunk in waves, each cohort no later than the step that aggregates it."""

    def __init__(self, source: UpdateSource, lane: Lane, chunk: Chunk) -> None:
        self.chunk, self._source, self._lane = chunk, source, lane
        self._cohorts = lane.planned(chunk)
        self._places: list[list[int]] = [[] for _ in chunk.steps]
        """Numbers of the cohorts that each step aggregates."""
        self._trainers = dict[int, Trainer]()
        self._sums, self._trained = dict[int, Tensor](), dict[int, Cohort]()
        """Weighted sums of cohorts that have not been aggregated yet, by the cohort's number, or the trained cohorts if
        a transform needs them."""
        self._ready = list[int]()
        """Heap of the numbers of cohorts that can be trained, because their base version exists."""
        self._waiting = defaultdict[int, list[int]](list)
        """Numbers of cohorts whose base version does not exist yet, by that version."""
        for place, cohort in enumerate(self._cohorts):
            queue = self._ready if cohort.base_version in lane.versions else self._waiting[cohort.base_version]
            queue.append(place)  # numbers increase, so the heap is in order
            self._places[cohort.step].append(place)

    def cohorts_of(self, number: int) -> list[PlannedCohort]:
        """Return the cohorts that a step aggregates."""
        return [self._cohorts[place] for place in self._places[number]]

    def trainer_of(self, number: int) -> Trainer:
        """Return the trainer of the updates of a step."""
        if number not in self._trainers:
            local_steps = self.chunk.updates.local_steps[self.chunk.rows(number)]
            self._trainers[number] = self._source.trainer_for(local_steps)
        return self._trainers[number]

    def add_version(self, version: int) -> None:
        """Record that a version exists, so that cohorts that start from it can be trained."""
        for place in self._waiting.pop(version, ()):
            heapq.heappush(self._ready, place)

    def sums(self, number: int) -> list[Tensor]:
        """Return the weighted sums of the models of a step's cohorts; train those that are still missing."""
        self._train(number)
        return [self._sums.pop(place) for place in self._places[number]]

    def trained(self, number: int) -> list[Cohort]:
        """Return a step's cohorts with the models of their updates; train those that are still missing."""
        self._train(number)
        return [self._trained.pop(place) for place in self._places[number]]

    def _train(self, number: int) -> None:
        while any(place not in self._sums and place not in self._trained for place in self._places[number]):
            self._train_wave(self.trainer_of(number))

    def _is_trained_by(self, trainer: Trainer, place: int) -> bool:
        """Return whether a cohort has this trainer; if it can have none, its own step raises the error."""
        try:
            return self.trainer_of(self._cohorts[place].step) is trainer
        except InputError:
            return False

    def _train_wave(self, trainer: Trainer) -> None:
        """Train as many of the ready cohorts of this trainer as a wave can hold, those of the earliest steps first."""
        wave, others, separate = list[int](), list[int](), bool(self._lane.transforms)
        room = MAX_WAVE_VALUES // len(self._lane.model.vector)
        while self._ready and len(wave) < MAX_WAVE_COHORTS and (room > 0 or not wave):
            place = heapq.heappop(self._ready)
            is_ours = self._is_trained_by(trainer, place)
            (wave if is_ours else others).append(place)
            room -= is_ours * (len(self._cohorts[place]) if separate else 1)
        for place in others:
            heapq.heappush(self._ready, place)
        cohorts = _started(self._lane, [self._cohorts[place] for place in wave])
        if separate:
            self._trained |= dict(zip(wave, _trained(trainer, cohorts), strict=True))
        else:
            self._sums |= dict(zip(wave, trainer.sums(cohorts), strict=True))


def _started(lane: Lane, planned: Sequence[PlannedCohort]) -> list[Cohort]:
    """Return cohorts with the models that they start from, all of which must exist."""
    return [cohort.starting_from(lane.versions[cohort.base_version]) for cohort in planned]


def _trained(trainer: Trainer, cohorts: Sequence[Cohort]) -> list[Cohort]:
    """Return the cohorts with the trained model of each update."""
    return [cohort.with_models(some) for cohort, some in zip(cohorts, trainer.models(cohorts), strict=True)]


def _check_model(vector: Tensor, lane: Lane) -> None:
    """Raise DivergedError if a model is not finite. On a GPU, `Launched.results` checks this later."""
    if not vector.is_cuda:
        check_finite("model", bool(torch.isfinite(vector).all()), lane.newest_cohort)
