"""Measures of runs on which claims are based: one number per run, ordered by seed."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.experiments.results import GUESSED, Result, Results
from lesson.runs.summary import IN_A_ROW, TARGETS, num_last, time_to


def per_seed(results: Results, series: str, measure: Callable[[Result], float]) -> FloatArray:
    """Return a measure of every run of a series."""
    return np.array([measure(run) for run in results[series]])


def last_accuracy(results: Results, series: str, rounds: int) -> FloatArray:
    """Return the mean accuracy of each run's last ten evaluations within `rounds`, but at most a quarter of them.

    A run that diverged has the accuracy of guessing. The authors average the last ten evaluations, and the shortest
    published curves have thirty.
    """

    def measure(run: Result) -> float:
        accuracy = run.up_to(rounds)["accuracy"]
        return GUESSED if run.stopped else float(accuracy.tail(num_last(len(accuracy))).mean())

    return per_seed(results, series, measure)


def accuracy_by(run: Result, time_s: float) -> float:
    """Return the mean accuracy of the last three evaluations up to a time.

    It is that of guessing if the run diverged or has no evaluation by then.
    """
    by_then = run.curve[run.curve["time_s"] <= time_s]
    return GUESSED if run.stopped or by_then.empty else float(by_then["accuracy"].tail(IN_A_ROW).mean())


def accuracy_at(results: Results, series: str, time_s: float) -> FloatArray:
    """Return `accuracy_by` of every run of a series."""
    return per_seed(results, series, lambda run: accuracy_by(run, time_s))


def reached(run: Result, target: float, column: str, rounds: int | None = None) -> float:
    """Return the value of a column (time_s, round, uploads, energy_j) when a run reaches a target; inf if never."""
    at = time_to(target, cast(list[dict[str, Any]], run.up_to(rounds).to_dict("records")), column)
    return np.inf if at is None else at


def common_target(results: Results, series: Iterable[str], rounds: int | None = None) -> float:
    """Return the highest target that every run of these series reaches; 0 if there is none."""
    runs = [run for name in series for run in results[name]]
    for target in reversed(TARGETS):
        if all(reached(run, target, "time_s", rounds) < np.inf for run in runs):
            return target
    return 0.0


def times_longer(
    results: Results, series: str, than: str, target: float, column: str, rounds: int | None = None
) -> tuple[FloatArray, int]:
    """Return how many times longer runs of `series` take to a target than those of `than`, paired over seeds.

    Also return how many runs of `series` never reach it; they count with their end, so their ratio is a lower bound.
    The ratio is NaN if the run of `than` never reaches the target.
    """
    ends = per_seed(results, series, lambda run: float(run.up_to(rounds)[column].iloc[-1]))
    ours = per_seed(results, series, lambda run: reached(run, target, column, rounds))
    theirs = per_seed(results, than, lambda run: reached(run, target, column, rounds))
    return np.where(np.isinf(theirs), np.nan, np.minimum(ours, ends) / theirs), int(np.isinf(ours).sum())


def client_figure(results: Results, series: str, measure: Callable[[pd.DataFrame], float], rounds: int) -> FloatArray:
    """Return a measure of every run's evaluations on its clients' own data, within `rounds` rounds."""
    return per_seed(results, series, lambda run: measure(run.clients[run.clients["round"] <= rounds]))
