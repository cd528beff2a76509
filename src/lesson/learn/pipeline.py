"""The pipeline of a run: its round loop runs ahead, and an executor computes the models of its rounds in chunks."""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lesson.clock.loop import Round, RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.rejections import Rejection
from lesson.clock.signals import Signals
from lesson.core.arrays import FloatArray
from lesson.learn.chunk import Chunk, Step
from lesson.learn.cohort import Cohort
from lesson.learn.evaluation import Signal
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.results import Results, RoundResult
from lesson.learn.signals import deviations
from lesson.strategies.base import Merge, Updates

MERGE_STEPS = 8
"""Cost of an aggregation itself, expressed in local steps of a client."""
CHUNK_S = 0.5
"""Target time of a chunk in seconds, if it may end after any round."""
MAX_CHUNK_ROUNDS = 256
"""Chunks also end at multiples of this number of rounds: rounds without aggregations cost nothing, so that otherwise
their results might never be written."""


class Due(NamedTuple):
    """Which evaluations are due after a round."""

    score: bool = False
    """On the test data."""
    clients: bool = False
    """On the samples of each client."""


def nothing_due(before_s: float, record: RoundRecord) -> Due:  # noqa: ARG001
    """Return that no evaluation is due."""
    return Due()


class Pipeline:
    """Runs a loop ahead of its models, chunk by chunk, or round by round if the values of updates may cause rejections.

    When the strategy reads a signal, all earlier rounds are computed first, and the chunk ends with the next
    aggregation.
    """

    def __init__(self, loop: RoundLoop, lane: Lane, executor: Executor) -> None:
        self.loop, self.lane, self.executor = loop, lane, executor
        self._parts = list[tuple[Step, Updates, FloatArray]]()
        """Rounds of the chunk that is being built."""
        self._cost, self._limit = 0.0, float(executor.rule.first_steps or executor.rule.local_steps)
        """Work of this chunk so far, and the work at which it ends, in local steps of clients."""
        self._records = deque[RoundRecord]()
        """Records of rounds whose results are not known yet."""
        self._done = deque[tuple[RoundRecord, RoundResult]]()
        self._error: Exception | None = None
        self._is_serial = executor.rule.local_steps <= 1 or lane.may_reject
        loop.signals = self._signals()

    def step(
        self, until_s: float = np.inf, due: Callable[[float, RoundRecord], Due] = nothing_due
    ) -> RoundRecord | None:
        """Run the next round and return its record; None if the run has ended.

        The results of the round are known when its chunk has been computed. `due` says which evaluations are due, given
        the end of the previous round and the record; by default, none are.
        """
        current = self.loop.begin(until_s)
        if current is None:
            return None
        if self._is_serial:
            return self._step_alone(current, due)
        merge, updates, weights = _decision(current)
        record = self.loop.close(current)
        score, clients = due(current.before_s, record)
        step = Step(record.round, merge, score, clients, current.unused)
        self._records.append(record)
        self._parts.append((step, updates, weights))
        if merge is not None:
            self._cost += MERGE_STEPS + self.lane.num_minibatches(updates)
        is_full = merge is not None and self._cost >= self._limit
        if is_full or record.round % MAX_CHUNK_ROUNDS == 0:
            self.submit()
        elif self._cost and (evaluator := self.executor.evaluator) is not None:
            # Evaluations before the first aggregation of a chunk are not counted.
            self._cost += (evaluator.test_steps if score else 0) + (evaluator.client_steps if clients else 0)
        return record

    def submit(self) -> None:
        """End the chunk."""
        if not self._parts or self._error is not None:
            return
        chunk, cost, rule = Chunk.of(self._parts), self._cost, self.executor.rule
        self._parts, self._cost = [], 0.0
        begin = time.perf_counter()
        self._take(self.executor.submit(self.lane, chunk))
        if rule.ends_anywhere and 0 < cost < np.inf:
            in_time = CHUNK_S * cost / max(time.perf_counter() - begin, 1e-9)
            self._limit = max(1.0, min(rule.local_steps, in_time))

    def end_chunk(self) -> bool:
        """End the chunk if it may end after any round; return whether no round waits, so that the run can be saved."""
        if self.executor.rule.ends_anywhere:
            self.submit()
        return not self._parts

    def drain(self) -> None:
        """End the chunk and wait for all results."""
        self.submit()
        self._take(self.executor.drain(self.lane))

    def results(self) -> Iterator[tuple[RoundRecord, RoundResult]]:
        """Yield the rounds whose results are known and have not been returned yet; raise the error of the next one."""
        while self._done:
            yield self._done.popleft()
        if self._error is not None:
            raise self._error

    def skip_results(self) -> None:
        """Wait for all results and discard them; raise the error of a round that failed."""
        self.drain()
        deque(self.results(), maxlen=0)

    def discard(self) -> None:
        """Discard all rounds whose results have not been returned: nothing may follow a round that is missing.

        An error in one of them is discarded, too: it must not hide why a round is missing.
        """
        for rounds in (self._parts, self._records, self._done, self.lane.launched):
            rounds.clear()
        self._error = None

    @property
    def notes(self) -> list[str]:
        """Notes for the summary of a run."""
        ours = [self.lane.optimizer.note, *(transform.note for transform in self.lane.transforms)]
        return [*filter(None, ours), *self.executor.source.notes]

    def close(self) -> None:
        """Release all threads, processes and GPU memory."""
        self.executor.close()

    def _step_alone(self, current: Round, due: Callable[[float, RoundRecord], Due]) -> RoundRecord:
        """Compute a round at once and close it: its rejections affect the next one."""
        rejections: Sequence[Rejection] = ()
        if current.aggregates:
            chunk = Chunk.of([(Step(current.number, current.merge), current.updates, current.weights)])
            results = self.executor.submit(self.lane, chunk, wait=True)
            if results.error is not None:
                raise results.error
            rejections = results.rounds[0].rejections
        record = self.loop.close(current, rejections)
        score, clients = due(current.before_s, record)
        self._records.append(record)
        self._take(self.executor.finish(self.lane, Step(record.round, None, score, clients, current.unused)))
        return record

    def _take(self, results: Results) -> None:
        if self._error is None:
            self._done.extend((self._records.popleft(), result) for result in results.rounds)
            self._error = results.error

    def _signals(self) -> Signals:
        """Return the available signals that the strategy needs."""
        evaluator = self.executor.evaluator
        evaluations = {} if evaluator is None else evaluator.signals()
        functions: dict[str, Callable[[], Any]] = {
            name: partial(self._evaluate, signal) for name, signal in evaluations.items()
        }
        functions["update_deviation"] = self._deviations
        needs = self.loop.strategy.needs
        return Signals({name: function for name, function in functions.items() if name in needs})

    def _evaluate(self, signal: Signal) -> Any:
        self._catch_up()
        return signal(self.lane.model)

    def _deviations(self) -> Callable[[Updates, Updates], FloatArray]:
        self._catch_up()
        return lambda fresh, stale: deviations(self._trained(fresh), self._trained(stale), stale)

    def _trained(self, updates: Updates) -> list[Cohort]:
        """Return the cohorts of updates that wait at the server, with the model of each update."""
        return self.executor.models(self.lane, Chunk.of([(Step(self.loop.round), updates, np.ones(len(updates)))]))

    def _catch_up(self) -> None:
        """Compute all earlier rounds. The chunk then ends with the next aggregation, which may be this round's."""
        self.drain()
        if self._error is not None:
            raise self._error
        self._cost = np.inf


def _decision(round: Round) -> tuple[Merge | None, Updates, FloatArray]:
    """Return what a round aggregates. The strategy cannot change it afterwards: ids and groups are copied."""
    merge = round.merge
    if not round.aggregates:
        return None, round.updates, round.weights  # both are empty
    if merge.groups is not None:
        merge = copy.deepcopy(merge)  # with the ids of its updates, by which groups are assigned
    round.updates = round.updates[np.arange(len(round.updates))]  # copies of arrays that the strategy was shown
    return merge, round.updates, round.weights
