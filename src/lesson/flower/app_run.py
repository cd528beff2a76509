"""A run of an app with its own clients, with or without a folder: evaluations, log lines and metrics of each round."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import RemoteWorld, WallWorld
from lesson.core.arrays import BoolArray
from lesson.core.errors import RunStoppedError, unknown
from lesson.fleet.fleet import Fleet
from lesson.flower.app_metrics import AGGREGATED, LOSS, AppMetrics, numbers_in, restore_metrics
from lesson.flower.arrays import Layout
from lesson.flower.clients import GridClients
from lesson.flower.evaluation import FederatedEvaluation
from lesson.flower.replies import tell, weighted_means
from lesson.flower.watch import UpdateWatch
from lesson.learn.metric import Metric
from lesson.learn.pipeline import Pipeline
from lesson.learn.scores import Score
from lesson.strategies.base import Strategy

if TYPE_CHECKING:
    from lesson.flower.folder import OpenFolder

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles of the measured latencies in the metrics of a run in real time."""


@dataclass(eq=False)
class AppRun:
    """A run of an app, which evaluates its models itself and has no task."""

    pipeline: Pipeline
    layout: Layout
    clients: GridClients
    evaluation: FederatedEvaluation
    result: Result
    num_rounds: int
    watch: UpdateWatch
    evaluate_fn: EvaluateFn | None = None
    keep_best: bool = False
    """Whether the result is the model with the best metric of `evaluate_fn`, instead of the last one."""
    folder: "OpenFolder | None" = None

    evaluator: ClassVar[None] = None
    rejected_by: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._metrics, self._num_aggregated, self._is_ended = AppMetrics(), 0, False
        self._fresh_strategy = copy.deepcopy(self.loop.strategy)
        """Replaces the strategy of a resumed run if the deadline has changed."""
        self._best_value = math.nan
        self._best: ArrayRecord | None = None
        self._scores: dict[str, float] = {}
        """The last value of each metric."""
        self._written_rounds: set[int] = set()
        """Rounds whose federated evaluation is in a line of metrics."""

    @property
    def on_wall_clock(self) -> bool:
        """Whether times are measured."""
        return isinstance(self.world, WallWorld)

    @property
    def world(self) -> "WallWorld | RemoteWorld":
        """The world of the round loop."""
        world = self.loop.world
        assert isinstance(world, WallWorld | RemoteWorld)
        return world

    @property
    def loop(self) -> RoundLoop:
        """The round loop."""
        return self.pipeline.loop

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        return self._metrics.metric

    @property
    def fleet(self) -> Fleet:
        """The clients that have taken part; the number of their samples is the weight that they report."""
        roster = self.clients.roster
        fleet = self.loop.fleet if roster is None else self.loop.fleet.first(len(roster.nodes))
        samples = np.maximum(1, np.rint(fleet.client_weight)).astype(np.int64)
        return replace(fleet, num_samples=samples, names=list(fleet.names))

    @property
    def has_latency(self) -> BoolArray:
        """Whether the latency of each client has been measured; on the virtual clock, all are known."""
        world = self.world
        are_measured = world.are_measured if isinstance(world, WallWorld) else np.ones(len(self.fleet), dtype=bool)
        return are_measured[: len(self.fleet)]

    def begin(self) -> None:
        """Evaluate the initial model: on the server and, on the wall clock, on all clients, to warm them up."""
        self._evaluate(0, self.result.arrays)
        self.clients.mailbox.nodes()  # for the recording
        if isinstance(self.world, WallWorld) and self.evaluation.fraction:
            timeout_s = self.world.first_timeout_s
            self.world.note_warm(self.evaluation.warm_up(self.result.arrays, self.loop.ledger, timeout_s))

    def run_rounds(self) -> None:
        """Run all rounds without a folder."""
        self.begin()
        while self.loop.round < self.num_rounds and not self.loop.stop_reason:
            self.pipeline.step()
            for record, _ in self.pipeline.results():
                self.after_round(record)
        self.end()

    def after_load(self) -> None:
        """Begin a new run in a folder, or restore the result of the earlier rounds of a resumed one."""
        if not self.loop.round:
            if self.folder is not None and self.folder.num_nodes is not None:
                tell(f"the run in {self.folder.given.path} has no checkpoint yet and starts again")
            self.begin()
            return
        self.clients.mailbox.nodes()
        assert self.folder is not None, "only runs in folders are resumed"
        tell(f"resuming the run in {self.folder.given.path} after round {self.loop.round}")
        if deadline_of(self.loop.strategy) != deadline_of(self._fresh_strategy):
            tell("the deadline has changed; the strategy starts without its earlier state")
            self.loop.strategy = self._fresh_strategy
        self._readmit(self.folder.given.readmit)
        self._best = self.folder.best(self.layout) if self.keep_best else None
        for line in self.folder.lines():
            restore_metrics(self.result, line)
            self._num_aggregated += len(line.get("merged", ()))
            scores = numbers_in(line)
            self._metrics.choose(scores)
            self._scores |= {name: value for name, value in scores.items() if name != AGGREGATED.name}
            if self._best is not None:
                self._is_better(scores)
        self.result.arrays = self._best or self._newest()
        self._written_rounds |= self.result.evaluate_metrics_clientapp.keys()

    def _readmit(self, names: Sequence[str]) -> None:
        """Let excluded clients take part again, even if the run had ended without them."""
        known = list(map(str, self.fleet.names))  # without those that may join later
        for name in names:
            if name not in known:
                raise unknown("client", name, known)
        ledger = self.loop.ledger
        clients = [client for client in map(known.index, names) if ledger.excluded[client]]
        if clients:
            who = np.array(clients, dtype=np.int64)
            ledger.readmit(who)
            ledger.connect(who[self.world.connected[who]])
            self.loop.stop_reason = ""
            tell(f"readmitted: {', '.join(known[client] for client in clients)}")

    def after_round(self, record: RoundRecord) -> dict[str, Any]:
        """Log a round, evaluate its model and return what was measured, as fields of its line of metrics.

        Raises RunStoppedError if the updates of too many rounds have failed.
        """
        note = f"; {record.note}" if record.note else ""
        tell(
            f"round {record.round}/{self.num_rounds}: {len(record.merged)} aggregated, {len(record.started)} started, "
            f"{record.end_s:.1f} s{note}"
        )
        self._record_round(record)
        if self.clients.roster is not None:
            self.clients.roster.save()
        self.rejected_by.update(rejection.reason for rejection in record.rejections)
        self._num_aggregated += len(record.merged)
        fields = dict[str, Any]()
        if (means := weighted_means(self.world.reports.of_round(record))) is not None:
            self.result.train_metrics_clientapp[record.round] = means
            fields["train_metrics"] = dict(means)
        arrays = self._newest()
        fields |= self._evaluate(record.round, arrays)
        self.result.arrays = self._best or arrays
        if self.loop.round < self.num_rounds and not self.loop.stop_reason:
            self.evaluation.after_round(self.loop.round, arrays, self.loop.ledger)
        fields |= self._new_client_metrics() | self._state_of_clients()
        self.watch.see(record, self.loop.ledger)
        return fields

    def end(self) -> None:
        """Let clients evaluate the final model."""
        if not self._is_ended:
            self._is_ended = True
            self.evaluation.after_last_round(self.loop.round, self.result.arrays, self.loop.ledger)

    def check_end(self) -> None:
        """Raise RunStoppedError if the run has ended early, or without aggregating anything because updates failed."""
        if self.loop.stop_reason and self.loop.round < self.num_rounds:
            raise RunStoppedError(f"the run ended after {self.loop.round} rounds: {self.loop.stop_reason}")
        self.watch.check_end(self.loop.round, self.loop.version)

    def final_score(self) -> Score:
        """Return the last value of each metric, with the means of the clients' evaluations of the final model."""
        self.end()
        values = {name: value for name, value in self._scores.items() if name != LOSS}
        if self._metrics.metric == AGGREGATED:
            values[AGGREGATED.name] = float(self._num_aggregated)
        by_clients = AppMetrics().fields(1, self.result.evaluate_metrics_clientapp.get(self.loop.round))
        values |= {f"clients_{name}"[:40]: value for name, value in by_clients.items()}
        return Score(values, self._scores.get(LOSS, np.nan))

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays of the newest model by name."""
        return {name: array.numpy() for name, array in self._newest().items()}

    def _newest(self) -> ArrayRecord:
        return self.layout.record(self.pipeline.lane.model.vector.numpy())

    def _evaluate(self, round: int, arrays: ArrayRecord) -> dict[str, float]:
        """Evaluate a round's model on the server; return the fields for the line of metrics."""
        if self.evaluate_fn is None:
            return {AGGREGATED.name: float(self._num_aggregated)} if round else {}
        if (reported := self.evaluate_fn(round, arrays)) is None:
            return {}
        tell(f"round {round}: {', '.join(f'{name} {value}' for name, value in reported.items())}")
        self.result.evaluate_metrics_serverapp[round] = reported
        fields = self._metrics.fields(round, reported)
        self._scores |= fields
        if round and self._is_better(fields) and self.keep_best:
            self._best = arrays
            if self.folder is not None:
                self.folder.save_best(self._best)
        return fields

    def _is_better(self, scores: Mapping[str, float]) -> bool:
        """Return whether the metric of an evaluation is the best so far, and remember it if it is."""
        metric, value = self._metrics.metric, scores.get(self._metrics.metric.name, math.nan)
        better = value > self._best_value if metric.higher_is_better else value < self._best_value
        if better := better or (math.isnan(self._best_value) and not math.isnan(value)):
            self._best_value = value
        return better

    def _record_round(self, record: RoundRecord) -> None:
        """Record the end of a round and the clients whose updates were aggregated."""
        if not isinstance(self.world, WallWorld):
            return
        nodes = [self.clients.node_of[client] for client in record.merged.tolist() if client in self.clients.node_of]
        are_known = len(nodes) == len(record.merged)  # after a resume, a client may not be back yet
        ago_s = self.world.elapsed_s - record.end_s
        self.clients.mailbox.recorder.note_round(
            record.round, ago_s, nodes if are_known else None, record.staleness.tolist()
        )

    def _state_of_clients(self) -> dict[str, Any]:
        """Return how many clients are connected and in each tier, and quantiles of their measured latencies."""
        if not isinstance(self.world, WallWorld):
            return {}
        there, ledger = self.loop.ledger.connected & self.world.are_measured, self.loop.ledger
        tiers = Counter(ledger.tier[there & (ledger.tier > 0)].tolist())
        latency_s = self.loop.fleet.latency_s[there]
        quantiles = np.quantile(latency_s, QUANTILES).round(3).tolist() if len(latency_s) else []
        return {
            "connected": ledger.num_connected,
            "tiers": {str(tier): count for tier, count in sorted(tiers.items())},
            "latency_s": dict(zip(map(str, QUANTILES), quantiles, strict=False)),
        }

    def _new_client_metrics(self) -> dict[str, Any]:
        """Return the results of federated evaluations since the last line, by round."""
        results = self.result.evaluate_metrics_clientapp
        new = {str(number): dict(means) for number, means in results.items() if number not in self._written_rounds}
        self._written_rounds |= results.keys()
        return {"client_metrics": new} if new else {}


def deadline_of(strategy: Strategy) -> float | None:
    """Return the deadline that a strategy, or the one that `MeasuredFirst` wraps, schedules clients for, if any."""
    return getattr(getattr(strategy, "strategy", strategy), "deadline_s", None)
