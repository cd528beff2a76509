"""What claims are made of: numbers of runs, one per seed, in the order of seeds."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.experiments.results import GUESSED, Result, Results
from lesson.runs.summary import IN_A_ROW, LAST, TARGETS, time_to


def per_seed(results: Results, series: str, measure: Callable[[Result], float]) -> FloatArray:
    """A measure of every run of a series."""
    return np.array([measure(run) for run in results[series]])


def last_accuracy(results: Results, series: str, rounds: int) -> FloatArray:
    """Mean accuracy of the last ten evaluations within so many rounds; a guess once a run has diverged."""
    return per_seed(
        results,
        series,
        lambda run: GUESSED if run.stopped else float(run.up_to(rounds)["accuracy"].tail(LAST).mean()),
    )


def accuracy_by(run: Result, time_s: float) -> float:
    """Mean accuracy of the last three evaluations by a time; a guess once a run has diverged, and before the first."""
    by_then = run.curve[run.curve["time_s"] <= time_s]
    return GUESSED if run.stopped or by_then.empty else float(by_then["accuracy"].tail(IN_A_ROW).mean())


def accuracy_at(results: Results, series: str, time_s: float) -> FloatArray:
    """The same of every run of a series."""
    return per_seed(results, series, lambda run: accuracy_by(run, time_s))


def reached(run: Result, target: float, column: str, rounds: int | None = None) -> float:
    """Seconds, rounds, uploads or joules until a target is reached, see `summary.time_to`; infinite if it never is."""
    at = time_to(target, cast(list[dict[str, Any]], run.up_to(rounds).to_dict("records")), column)
    return np.inf if at is None else at


def common_target(results: Results, series: Iterable[str], rounds: int | None = None) -> float:
    """The highest target that every run of these series reaches; 0 if none is."""
    runs = [run for name in series for run in results[name]]
    for target in reversed(TARGETS):
        if all(reached(run, target, "time_s", rounds) < np.inf for run in runs):
            return target
    return 0.0


def times_longer(
    results: Results, series: str, than: str, target: float, column: str, rounds: int | None = None
) -> tuple[FloatArray, int]:
    """How many times as long as a run of `than` one of `series` takes to a target, paired over seeds.

    A run that never reaches it counts as if it did at its end, which is the least it can be; how many there are. What
    is compared with must reach it: else a ratio is not a number.
    """
    ends = per_seed(results, series, lambda run: float(run.up_to(rounds)[column].iloc[-1]))
    ours = per_seed(results, series, lambda run: reached(run, target, column, rounds))
    theirs = per_seed(results, than, lambda run: reached(run, target, column, rounds))
    return np.where(np.isinf(theirs), np.nan, np.minimum(ours, ends) / theirs), int(np.isinf(ours).sum())


def client_figure(results: Results, series: str, measure: Callable[[pd.DataFrame], float], rounds: int) -> FloatArray:
    """A figure of every run's looks at its clients' own data within so many rounds."""
    return per_seed(results, series, lambda run: measure(run.clients[run.clients["round"] <= rounds]))
