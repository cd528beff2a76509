"""What an app's `evaluate_fn` reports, as fields of metrics.jsonl, and the metric by which its models are compared."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from lesson.core.errors import InputError
from lesson.flower.replies import warn
from lesson.learn.metric import NAME, RESERVED, Metric
from lesson.learn.task import ACCURACY, TEST_LOSS

LOSS = "loss"
AGGREGATED = Metric("aggregated_updates", targets=())
"""The metric of an app that evaluates nothing: the number of updates aggregated so far."""
LOWER_IS_BETTER = ("loss", "error", "mse", "rmse", "mae", "perplexity", "wer", "cer")
"""Words in the names of metrics of which smaller values are better."""


class AppMetrics:
    """Chooses the metric of a run: accuracy if it is reported, else the first metric, else the loss.

    Without any of them, it is the number of aggregated updates.
    """

    def __init__(self) -> None:
        self.metric = AGGREGATED
        self._warned: set[str] = set()

    def fields(self, round: int, reported: MetricRecord | None) -> dict[str, float]:
        """Return the numbers that were reported after a round as fields of its line of metrics.

        Names that cannot be the name of a field are changed. Lists are left out, and so are values that are not finite,
        with a warning. Raises InputError if the initial model, round 0, has an accuracy that is not from 0 to 1.
        """
        values = dict[str, float]()
        for name, value in (reported or {}).items():
            if isinstance(value, list):
                continue
            if not math.isfinite(value):
                self._warn_once(name, f"round {round}: {name} is {value} and is not recorded")
            elif name == ACCURACY and not 0 <= value <= 1:
                problem = f"accuracy must be from 0 to 1, got {value:g}; divide percentages by 100"
                if round == 0:
                    raise InputError(f"evaluate_fn: {problem}")
                self._warn_once(name, f"round {round}: {problem}; it is not recorded")
            else:
                values[_field_name(name)] = float(value)
        if values.keys() == {LOSS}:
            values[TEST_LOSS] = values[LOSS]
        self.choose(values)
        return values

    def choose(self, names: Iterable[str]) -> None:
        """Choose the metric among those of an evaluation, unless an earlier evaluation had one."""
        found = [name for name in names if name not in RESERVED and name != AGGREGATED.name]
        if found and self.metric == AGGREGATED:
            self.metric = Metric() if ACCURACY in found else _metric(found[0])

    def _warn_once(self, name: str, line: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warn(line)


def numbers_in(line: Mapping[str, Any]) -> dict[str, float]:
    """Return what `AppMetrics.fields` has added to a line of metrics."""
    return {name: value for name, value in line.items() if name == LOSS or name not in RESERVED}


def restore_metrics(result: Result, line: Mapping[str, Any]) -> None:
    """Add the metrics in a line of metrics.jsonl to a result."""
    number = int(line["round"])
    scores: dict[str, Any] = {name: value for name, value in numbers_in(line).items() if name != AGGREGATED.name}
    if scores:
        result.evaluate_metrics_serverapp[number] = MetricRecord(scores)
    if means := line.get("train_metrics"):
        result.train_metrics_clientapp[number] = MetricRecord(means)
    for evaluated, means in line.get("client_metrics", {}).items():
        result.evaluate_metrics_clientapp[int(evaluated)] = MetricRecord(means)


def _metric(name: str) -> Metric:
    words = re.split(r"[^a-z]+", name.lower())
    return Metric(name, higher_is_better=not any(word in LOWER_IS_BETTER for word in words), targets=())


def _field_name(name: str) -> str:
    """Return a name that a field of a line of metrics can have."""
    if NAME.fullmatch(name) and (name == LOSS or name not in RESERVED):
        return name
    return f"eval_{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"[:40]
