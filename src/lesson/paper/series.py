"""Measures of series, which are runs whose names differ only in the seed: one number per run, ordered by seed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import to_target, value_by
from lesson.experiments.run import Run
from lesson.learn.metric import ACCURACY
from lesson.runs.summary import num_last

Series = Mapping[str, Sequence[Run]]
"""Runs by the name of their series, ordered by seed."""


def by_series(runs: Iterable[Run]) -> Series:
    """Group runs whose names differ only in the seed, by the name of their series and ordered by seed."""
    series: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        series.setdefault(run.name.rpartition("-seed")[0], []).append(run)
    return series


def per_seed(runs: Series, series: str, measure: Callable[[Run], float]) -> FloatArray:
    """Return a measure of every run of a series."""
    return np.array([measure(run) for run in runs[series]])


def last_accuracy(runs: Series, series: str, rounds: int) -> FloatArray:
    """Return the mean accuracy of each run's last ten evaluations within `rounds`, but at most a quarter of them.

    A run that diverged has the accuracy of guessing.
    """

    def measure(run: Run) -> float:
        accuracy = run.up_to(rounds)["accuracy"]
        return run.metric.of_diverged if run.diverged else float(accuracy.tail(num_last(len(accuracy))).mean())

    return per_seed(runs, series, measure)


def accuracy_at(runs: Series, series: str, time_s: float) -> FloatArray:
    """Return `value_by` of every run of a series."""
    return per_seed(runs, series, lambda run: value_by(run, time_s))


def common_target(runs: Series, series: Iterable[str], rounds: int | None = None) -> float:
    """Return the highest target accuracy that every run of these series reaches; NaN if there is none."""
    chosen = [run for name in series for run in runs[name]]
    for target in reversed(ACCURACY.targets):
        if all(to_target(run, target, "time_s", rounds) < math.inf for run in chosen):
            return target
    return math.nan


def client_figure(runs: Series, series: str, measure: Callable[[pd.DataFrame], float], rounds: int) -> FloatArray:
    """Return a measure of every run's evaluations on its clients' own data, within `rounds` rounds."""
    return per_seed(runs, series, lambda run: measure(run.clients[run.clients["round"] <= rounds]))
