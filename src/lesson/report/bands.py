"""A line with a 95 % band: the mean of several runs that were not looked at in the same places."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lesson.core.arrays import FloatArray
from lesson.experiments.results import GUESSED
from lesson.experiments.study import MIN_SEEDS, half_intervals

MAX_POINTS = 400

Points = tuple[FloatArray, FloatArray]
"""Where a run was looked at, and what was seen."""


def points_of(curve: pd.DataFrame, over: str, guesses_until: float | None = None) -> Points:
    """A curve over rounds or over thousands of seconds; once a run has diverged it can only guess, to the end."""
    at, accuracy = curve[over].to_numpy(float), curve["accuracy"].to_numpy(float)
    if guesses_until is not None:
        last = at.max(initial=0)
        at, accuracy = np.append(at, [last, max(guesses_until, last)]), np.append(accuracy, [GUESSED, GUESSED])
    return at / (1000 if over == "time_s" else 1), accuracy


@dataclass(frozen=True, eq=False)
class Band:
    """A mean over runs where all are known, and its 95 % interval if there are enough of them."""

    at: FloatArray
    mean: FloatArray
    low: FloatArray | None
    high: FloatArray | None

    def to_dict(self) -> dict[str, list[float] | None]:
        """As lists, to a tenth of a thousandth."""
        return {name: None if one is None else one.round(4).tolist() for name, one in vars(self).items()}


def mean_band(runs: Sequence[Points]) -> Band:
    """The mean where all runs are known, between what was seen of each."""
    known = [run for run in runs if len(run[0])]
    low, high = max((x[0] for x, _ in known), default=0.0), min((x[-1] for x, _ in known), default=0.0)
    at = np.unique(np.concatenate([np.zeros(0), *(x for x, _ in known)]))
    at = at[(at >= low) & (at <= high)]
    at = at[np.linspace(0, len(at) - 1, min(len(at), MAX_POINTS)).astype(int)]
    values = np.array([np.interp(at, x, y) for x, y in known]).reshape(len(known), len(at))
    mean = values.mean(axis=0) if len(values) else at
    if len(known) < MIN_SEEDS:
        return Band(at, mean, None, None)
    half = half_intervals(values)
    return Band(at, mean, np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1))


def draw_band(axes: Axes, runs: Sequence[Points], color: str, label: str, style: str = "-") -> None:
    """Draw the mean of runs, with its interval if there are enough."""
    band = mean_band(runs)
    axes.plot(band.at, band.mean, color=color, label=label, linestyle=style)
    if band.low is not None and band.high is not None:
        axes.fill_between(band.at, band.low, band.high, color=color, alpha=0.18, lw=0)
