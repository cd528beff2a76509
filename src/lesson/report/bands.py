"""Curves with 95 % bands: means over runs that were evaluated at different times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import MIN_SEEDS, half_intervals
from lesson.learn.metric import ACCURACY, Metric

MAX_POINTS = 400

Points = tuple[FloatArray, FloatArray]
"""The times or rounds at which a run was evaluated, and its values of the metric there."""


def points_of(curve: pd.DataFrame, over: str, guesses_until: float | None = None, metric: Metric = ACCURACY) -> Points:
    """Return the values of a run over rounds or over thousands of seconds.

    For a run that diverged, `guesses_until` is the round or the second up to which its curve is extended at the
    accuracy of guessing, or as unknown for other metrics; None for other runs.
    """
    at, values = curve[over].to_numpy(float), curve[metric.name].to_numpy(float)
    if guesses_until is not None:
        last = at.max(initial=0)
        at, values = np.append(at, [last, max(guesses_until, last)]), np.append(values, [metric.of_diverged] * 2)
    return at / (1000 if over == "time_s" else 1), values


@dataclass(frozen=True, eq=False)
class Band:
    """A mean over runs, on the range that all of them cover, with its 95 % interval if there are enough runs."""

    at: FloatArray
    mean: FloatArray
    low: FloatArray | None
    high: FloatArray | None

    def to_dict(self, metric: Metric) -> dict[str, list[float] | None]:
        """Return the arrays as lists, rounded."""
        values = {"mean": self.mean, "low": self.low, "high": self.high}
        rounded = {name: None if one is None else metric.rounded(one).tolist() for name, one in values.items()}
        return {"at": self.at.round(4).tolist(), **rounded}


def mean_band(runs: Sequence[Points], metric: Metric = ACCURACY, max_points: int = MAX_POINTS) -> Band:
    """Return the mean on the range that all runs cover, at no more than `max_points` points.

    Runs are interpolated linearly between their evaluations; runs without any are ignored.
    """
    known = [run for run in runs if len(run[0])]
    low, high = max((x[0] for x, _ in known), default=0.0), min((x[-1] for x, _ in known), default=0.0)
    at = np.unique(np.concatenate([np.zeros(0), *(x for x, _ in known)]))
    at = at[(at >= low) & (at <= high)]
    at = at[np.linspace(0, len(at) - 1, min(len(at), max_points)).astype(int)]
    values = np.array([np.interp(at, x, y) for x, y in known]).reshape(len(known), len(at))
    mean = values.mean(axis=0) if len(values) else at
    if len(known) < MIN_SEEDS:
        return Band(at, mean, None, None)
    half = half_intervals(values)
    return Band(at, mean, np.clip(mean - half, *metric.bounds), np.clip(mean + half, *metric.bounds))


def draw_band(
    axes: Axes,
    runs: Sequence[Points],
    color: str,
    label: str,
    style: str = "-",
    metric: Metric = ACCURACY,
    shaded: bool = True,
) -> None:
    """Draw the mean of runs and, if `shaded` and there are enough runs, its 95 % interval."""
    band = mean_band(runs, metric)
    axes.plot(band.at, band.mean, color=color, label=label, linestyle=style)
    if shaded and band.low is not None and band.high is not None:
        axes.fill_between(band.at, band.low, band.high, color=color, alpha=0.18, lw=0)
