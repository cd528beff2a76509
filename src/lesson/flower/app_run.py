"""A run of an app with its own clients: what happens after each round, in a run folder or without one."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds.clients import Reports
from lesson.core.errors import RunStoppedError
from lesson.fleet.fleet import Fleet
from lesson.flower.app_metrics import AGGREGATED, LOSS, AppMetrics, numbers_in
from lesson.flower.arrays import Layout
from lesson.flower.evaluation import FederatedEvaluation
from lesson.flower.identity import Roster
from lesson.flower.post import weighted_means
from lesson.flower.recorder import RecordingGrid
from lesson.flower.replies import tell
from lesson.flower.watch import UpdateWatch
from lesson.learn.metric import Metric
from lesson.learn.pipeline import Pipeline
from lesson.learn.scores import Score

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(eq=False)
class AppRun:
    """A run of an app, which evaluates its models itself and has no task."""

    pipeline: Pipeline
    layout: Layout
    reports: Reports
    evaluation: FederatedEvaluation
    result: Result
    num_rounds: int
    watch: UpdateWatch
    evaluate_fn: EvaluateFn | None = None
    on_wall_clock: bool = False
    roster: Roster | None = None
    """Which node is which client; None on the virtual clock, where all clients are known from the start."""
    kept_lines: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    """Returns the lines of metrics of the rounds before those of this process, if the run was resumed."""

    evaluator: ClassVar[None] = None
    rejected_by: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._metrics, self._num_aggregated, self._begin_s = AppMetrics(), 0, time.monotonic()
        self._is_recalled = self._is_ended = False
        self._scores: dict[str, float] = {}
        """The last value of each metric."""
        self._told_rounds: set[int] = set()
        """Rounds whose federated evaluation is in a line of metrics."""

    @property
    def loop(self) -> RoundLoop:
        """The round loop."""
        return self.pipeline.loop

    @property
    def metric(self) -> Metric:
        """The metric by which models are compared."""
        self._recall()
        return self._metrics.metric

    @property
    def fleet(self) -> Fleet:
        """The clients that have taken part; the number of their samples is the weight that they report."""
        fleet = self.loop.fleet if self.roster is None else self.loop.fleet.first(len(self.roster.nodes))
        samples = np.maximum(1, np.rint(fleet.client_weight)).astype(np.int64)
        return replace(fleet, num_samples=samples, names=list(fleet.names))

    def evaluate_initial(self) -> None:
        """Evaluate the initial model on the server."""
        self._evaluate(0)

    def run_rounds(self) -> None:
        """Run all rounds without a folder."""
        while self.loop.round < self.num_rounds and not self.loop.stop_reason:
            self.pipeline.step()
            for record, _ in self.pipeline.results():
                self.after_round(record)
        self.end()

    def after_round(self, record: RoundRecord) -> dict[str, Any]:
        """Log a round, evaluate its model and return what was measured, as fields of its line of metrics.

        Raises RunStoppedError if the updates of too many rounds have failed.
        """
        self._recall()
        note = f"; {record.note}" if record.note else ""
        tell(
            f"round {record.round}/{self.num_rounds}: {len(record.merged)} aggregated, {len(record.started)} started, "
            f"{record.end_s:.1f} s{note}"
        )
        if isinstance(grid := self.evaluation.post.grid, RecordingGrid):
            grid.note_round(record.round, record.end_s, record.merged.tolist(), record.staleness.tolist())
        if self.roster is not None:
            self.roster.save()
        self.rejected_by.update(rejection.reason for rejection in record.rejections)
        self._num_aggregated += len(record.merged)
        fields = dict[str, Any]()
        if (told := weighted_means(self.reports.of_round(record))) is not None:
            self.result.train_metrics_clientapp[record.round] = told
            fields["train_metrics"] = dict(told)
        self.result.arrays = self.layout.record(self.pipeline.lane.model.vector.numpy())
        fields |= self._evaluate(record.round)
        if self.loop.round < self.num_rounds and not self.loop.stop_reason:
            self.evaluation.after_round(self.loop.round, self.result.arrays, self.loop.ledger)
        fields |= self._new_client_metrics()
        self.watch.see(record, self.loop.ledger)
        return fields

    def end(self) -> None:
        """Let clients evaluate the final model, and log what is known about each of them."""
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
        self._recall()
        self.end()
        values = {name: value for name, value in self._scores.items() if name != LOSS}
        if self._metrics.metric == AGGREGATED:
            values[AGGREGATED.name] = float(self._num_aggregated)
        told = self.result.evaluate_metrics_clientapp.get(self.loop.round)
        by_clients = AppMetrics().fields(1, told)
        values |= {f"clients_{name}"[:40]: value for name, value in by_clients.items()}
        return Score(values, self._scores.get(LOSS, np.nan))

    def parameters(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays of the newest model by name."""
        record = self.layout.record(self.pipeline.lane.model.vector.numpy())
        return {name: array.numpy() for name, array in record.items()}

    def _evaluate(self, round: int) -> dict[str, float]:
        """Evaluate the newest model on the server; return the fields for the line of metrics."""
        if self.evaluate_fn is None:
            return {AGGREGATED.name: float(self._num_aggregated)} if round else {}
        if (told := self.evaluate_fn(round, self.result.arrays)) is None:
            return {}
        tell(f"round {round}: {', '.join(f'{name} {value}' for name, value in told.items())}")
        self.result.evaluate_metrics_serverapp[round] = told
        fields = self._metrics.fields(round, told)
        self._scores |= fields
        return fields

    def _new_client_metrics(self) -> dict[str, Any]:
        """Return the results of federated evaluations since the last line, by round."""
        results = self.result.evaluate_metrics_clientapp
        new = {str(number): dict(told) for number, told in results.items() if number not in self._told_rounds}
        self._told_rounds |= results.keys()
        return {"client_metrics": new} if new else {}

    def _recall(self) -> None:
        """After a resume, restore the results of earlier rounds from their lines of metrics, once."""
        if self._is_recalled or not self.loop.round:
            return
        self._is_recalled = True
        for line in self.kept_lines():
            restore_metrics(self.result, line)
            self._num_aggregated += len(line.get("merged", ()))
            scores = numbers_in(line)
            self._metrics.choose(scores)
            self._scores |= {name: value for name, value in scores.items() if name != AGGREGATED.name}
        self._told_rounds |= self.result.evaluate_metrics_clientapp.keys()


def restore_metrics(result: Result, line: Mapping[str, Any]) -> None:
    """Add the metrics in a line of metrics.jsonl to a result."""
    number = int(line["round"])
    scores: dict[str, Any] = {name: value for name, value in numbers_in(line).items() if name != AGGREGATED.name}
    if scores:
        result.evaluate_metrics_serverapp[number] = MetricRecord(scores)
    if told := line.get("train_metrics"):
        result.train_metrics_clientapp[number] = MetricRecord(told)
    for evaluated, means in line.get("client_metrics", {}).items():
        result.evaluate_metrics_clientapp[int(evaluated)] = MetricRecord(means)
