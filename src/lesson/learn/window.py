"""The window: aggregations that rounds have requested and that have not been executed yet.

A strategy never touches a model, so the clock can run ahead of training: the model server queues what the rounds ask
for and executes it later, in order. A cohort can be trained as soon as its base model exists, whatever the round in
which it is aggregated. Cohorts that are trained together form a *wave*; waves turn the single clients of asynchronous
strategies into large batches.
"""

import heapq
import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

from torch import Tensor

from lesson.core.arrays import FloatArray
from lesson.core.errors import RunStoppedError
from lesson.learn.backend import Trainer, WindowRule
from lesson.learn.cohort import PlannedCohort
from lesson.learn.scores import Pending
from lesson.strategies.base import Merge, Updates

Result = TypeVar("Result")
MERGE_STEPS = 8
"""Cost of an aggregation itself, expressed in local steps of a client."""
WINDOW_S = 0.5
"""Time that a window should take at most, in seconds, if it may end after any round."""
MAX_WAVE_COHORTS, MAX_WAVE_VALUES = 64, 1 << 26
"""Limits of a wave: number of cohorts, and number of values in all their sums."""


@dataclass(eq=False)
class Aggregation:
    """The aggregation of one round. `totals` holds the weighted sums of its cohorts once they are trained."""

    updates: Updates
    weights: FloatArray
    merge: Merge
    version: int
    round: int
    of: Literal["models", "updates"]
    cohorts: list[PlannedCohort]
    trainer: Trainer | None
    """Trains the cohorts; None if there are none."""
    totals: list[Tensor | None] = field(init=False)
    """The weighted sum of each cohort's models; None if it has not been trained ahead."""

    def __post_init__(self) -> None:
        self.totals = [None] * len(self.cohorts)

    @property
    def cost(self) -> int:
        """Number of local steps of all clients, plus MERGE_STEPS for the aggregation itself."""
        return MERGE_STEPS + int(self.updates.local_steps @ self.updates.batches)


class Window:
    """A queue of aggregations and other actions, and the cohorts that can already be trained."""

    def __init__(self, rule: WindowRule) -> None:
        self.rule = rule
        self._actions: deque[tuple[float, Callable[[], object]]] = deque()
        self._cost, self._limit = 0.0, float(rule.first_steps or rule.local_steps)
        self._failure: tuple[float, Exception] | None = None
        """Round that could not be executed, and why."""
        self._numbers = itertools.count()
        self._waiting = defaultdict[int, list[tuple[int, int, Aggregation]]](list)
        """Cohorts whose base version does not exist yet, by that version: (number, place, aggregation)."""
        self._ready: list[tuple[int, int, Aggregation]] = []
        """Heap of the cohorts whose base version exists, those of the earliest aggregation first."""

    def __bool__(self) -> bool:
        return bool(self._actions)

    @property
    def is_full(self) -> bool:
        """Whether enough work is queued to execute the window."""
        return self._cost >= self._limit

    @property
    def first_round(self) -> float:
        """Round of the first queued aggregation, or the one that failed; inf if nothing is queued."""
        if self._failure is not None:
            return self._failure[0]
        return self._actions[0][0] if self._actions else math.inf

    def add(self, action: Callable[[], object], cost: float = 0.0) -> None:
        """Queue an action after an aggregation of the same round."""
        self._actions.append((self._actions[-1][0], action))
        self._cost += cost

    def end_soon(self) -> None:
        """Let the window be full after the next aggregation."""
        self._cost = math.inf

    def add_aggregation(
        self, aggregation: Aggregation, versions: Mapping[int, Tensor], execute: Callable[[Aggregation], object]
    ) -> None:
        """Queue an aggregation; `versions` are the models that exist."""
        number = next(self._numbers)
        for place, cohort in enumerate(aggregation.cohorts):
            entry = (number, place, aggregation)
            if cohort.base_version in versions:
                heapq.heappush(self._ready, entry)
            else:
                self._waiting[cohort.base_version].append(entry)
        self._cost += aggregation.cost
        self._actions.append((aggregation.round, partial(execute, aggregation)))

    def execute(self) -> None:
        """Execute all actions in order. If one fails, discard those after it; further calls raise the same error."""
        if self._failure is not None:
            raise self._failure[1]
        begin, cost, self._cost = time.perf_counter(), self._cost, 0.0
        number = math.inf
        try:
            while self._actions:
                number, action = self._actions.popleft()
                action()
        except BaseException as error:
            stopped = RunStoppedError("training was interrupted in the middle of a window; resume from a checkpoint")
            self._failure = number, error if isinstance(error, Exception) else stopped
            for queue in (self._actions, self._ready, self._waiting):
                queue.clear()
            raise
        if self.rule.ends_anywhere and 0 < cost < math.inf:
            in_time = WINDOW_S * cost / max(time.perf_counter() - begin, 1e-9)
            self._limit = max(1.0, min(self.rule.local_steps, in_time))

    def add_version(self, version: int) -> None:
        """Record that a version exists, so that cohorts that start from it can be trained."""
        for entry in self._waiting.pop(version, ()):
            heapq.heappush(self._ready, entry)

    def train(self, aggregation: Aggregation, versions: Mapping[int, Tensor]) -> None:
        """Train the cohorts of an aggregation, together with others that can already be trained."""
        while any(total is None for total in aggregation.totals):
            assert aggregation.trainer is not None, "an aggregation of cohorts has a trainer"
            wave, others = list[tuple[int, int, Aggregation]](), list[tuple[int, int, Aggregation]]()
            size = len(next(iter(versions.values())))
            while self._ready and len(wave) < max(1, min(MAX_WAVE_COHORTS, MAX_WAVE_VALUES // size)):
                entry = heapq.heappop(self._ready)
                (wave if entry[2].trainer is aggregation.trainer else others).append(entry)
            for entry in others:
                heapq.heappush(self._ready, entry)
            planned = [one.cohorts[place] for _, place, one in wave]
            sums = aggregation.trainer.sums([cohort.starting_from(versions[cohort.base_version]) for cohort in planned])
            for (_, place, one), total in zip(wave, sums, strict=True):
                one.totals[place] = total


class Deferred(Generic[Result]):
    """The result of an evaluation that starts when its model exists. An error is raised by `result`, in its turn."""

    def __init__(self, execute: Callable[[], None]) -> None:
        self._execute = execute
        self._pending: Pending[Result] | Exception | None = None

    def begin(self, evaluate: Callable[[], Pending[Result]]) -> None:
        """Start the evaluation."""
        try:
            self._pending = evaluate()
        except Exception as error:
            self._pending = error

    def ready(self) -> bool:
        """Return whether `result` returns without waiting."""
        return isinstance(self._pending, Exception) or (self._pending is not None and self._pending.ready())

    def result(self) -> Result:
        """Return the result; execute what is queued, if necessary, and wait for it."""
        if self._pending is None:
            self._execute()
        assert self._pending is not None, "executing the queue starts all evaluations"
        if isinstance(self._pending, Exception):
            raise self._pending
        return self._pending.result()
