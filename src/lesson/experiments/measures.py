"""Measures of runs, confidence intervals of their means, and paired comparisons.

Two configurations are compared over pairs of runs with the same seed, which share clients, data and initial model. For
a run that never reaches a target, the cost of the whole run is a lower bound. A mean of bounds would depend on where
runs were stopped, so the interval is then that of the median by the sign test: from the k-th smallest lower bound to
the k-th largest upper bound, with the largest k for which at most 2.5 % of all samples miss the median on either side.
This takes at least six pairs, because five values all lie on the same side of the median in 2 · 2⁻⁵ = 6.25 % of all
samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from lesson.core.arrays import BoolArray, FloatArray
from lesson.experiments.run import Run
from lesson.learn.metric import IN_A_ROW

MIN_SEEDS = 3
"""Minimum number of seeds for a confidence interval, and for naming a winner."""

Verdict = Literal["higher", "lower", "equivalent", "undecided"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number measured with several seeds, and the 95 % interval of its mean, or of its median if some are bounds.

    Attributes:
        low: The lowest possible value for each seed, shape (num_seeds,).
        high: The highest possible value; equal to `low` unless the value is known only as a bound.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def of(cls, values: FloatArray) -> "Estimate":
        """Return the estimate from exact values; NaN stands for an unknown value."""
        unknown = np.isnan(values)
        return cls(np.where(unknown, -np.inf, values), np.where(unknown, np.inf, values))

    @property
    def is_bound(self) -> BoolArray:
        """Which values are known only as bounds."""
        return np.asarray(self.low != self.high)

    @property
    def mean(self) -> float:
        """The mean; NaN if some values are bounds."""
        return float(self.low.mean()) if len(self.low) and not self.is_bound.any() else math.nan

    @property
    def half(self) -> float:
        """Half the 95 % interval of the mean; NaN if some values are bounds, or with fewer than three."""
        return math.nan if self.is_bound.any() or len(self.low) < MIN_SEEDS else float(half_intervals(self.low))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; None if there are too few values."""
        if not self.is_bound.any():
            return None if math.isnan(self.half) else (self.mean - self.half, self.mean + self.half)
        rank = sign_test_rank(len(self.low))
        return (float(np.sort(self.low)[rank - 1]), float(np.sort(self.high)[-rank])) if rank else None

    @property
    def median(self) -> tuple[float, float]:
        """The lowest and the highest possible median; bounds are not averaged."""
        low, high = np.sort(self.low), np.sort(self.high)
        middle = [(len(low) - 1) // 2, len(low) // 2]
        if np.array_equal(low[middle], high[middle]):
            return float(low[middle].mean()), float(high[middle].mean())
        return float(low[middle[0]]), float(high[middle[1]])

    def text(self, form: str, unit: str = "", *, brief: bool = False) -> str:
        """Return the mean ± half its interval as text or, if some values are bounds, the values by seed and the median.

        For example: "2.27 ± 0.74 ×" or "by seed 0.91, > 2.50, 0.80 ×; median 0.91 ×". `brief` omits the values by seed.
        """
        if self.is_bound.any():
            seeds = ", ".join(_between(*ends, form) for ends in zip(self.low, self.high, strict=True))
            return f"{'' if brief else f'by seed {seeds}{unit}; '}median {_between(*self.median, form)}{unit}"
        half = "" if math.isnan(self.half) else f" ± {form.replace('+', '').format(self.half)}"
        return f"{form.format(self.mean)}{half}{unit}"

    def verdict(self, center: float, margin: float = 0.0) -> Verdict:
        """Return how the number compares with `center`.

        It is "equivalent" if the whole interval is within the margin, otherwise "higher" or "lower" if the interval
        excludes the center, and otherwise "undecided".
        """
        if self.interval is None:
            return "undecided"
        low, high = self.interval
        if margin and center - margin <= low and high <= center + margin:
            return "equivalent"
        return "higher" if low > center else "lower" if high < center else "undecided"

    def p_value(self, center: float) -> float:
        """Return the p-value of Student's t-test, two-sided, of whether the mean is `center`; NaN like `half`."""
        if math.isnan(self.half):
            return math.nan
        from scipy.special import stdtr  # not at the top: scipy takes a while to import

        spread = float(np.std(self.low, ddof=1)) / math.sqrt(len(self.low))
        distance = abs(self.mean - center)
        return 2 * float(stdtr(len(self.low) - 1, -distance / spread)) if spread else float(not distance)

    def __float__(self) -> float:
        return self.mean


def _between(low: float, high: float, form: str) -> str:
    """Return a number or its bounds as text; a lower bound of 0 says nothing about a cost or ratio."""
    if low == high:
        return form.format(low)
    known = low not in (-math.inf, 0.0), high != math.inf
    if known == (True, True):
        return " to ".join(dict.fromkeys((form.format(low), form.format(high))))
    return f"> {form.format(low)}" if known[0] else f"< {form.format(high)}" if known[1] else "unknown"


def difference(ours: Estimate, theirs: Estimate) -> Estimate:
    """Return the paired differences `ours` − `theirs`."""
    return Estimate(ours.low - theirs.high, ours.high - theirs.low)


def ratio(ours: Estimate, theirs: Estimate) -> Estimate:
    """Return the paired ratios `ours` / `theirs` of values that are not negative."""
    with np.errstate(divide="ignore"):
        return Estimate(ours.low / theirs.high, ours.high / theirs.low)


def sign_test_rank(num_values: int) -> int:
    """Return the largest k for which the k-th smallest and largest values are a 95 % interval of the median; 0 if none.

    The median is below the k-th smallest of n values if fewer than k values lie below it, which has the probability of
    fewer than k heads in n coin tosses. This must be at most 2.5 %.
    """
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(num_values, rank) / 2**num_values) <= 0.025:
        rank += 1
    return rank


def spent_until(runs: Sequence[Run], target: float, column: str = "time_s", rounds: int | None = None) -> Estimate:
    """Return the cost of each run up to a target; for a run that never reaches it, its total cost is a lower bound.

    The cost is unknown if a run has no evaluations or did not record it.
    """
    spent = np.array([to_target(run, target, column, rounds) for run in runs])
    ends = np.array([float(run.up_to(rounds)[column].max()) if column in run.curve else math.nan for run in runs])
    low = np.where(np.isinf(spent), ends, spent)
    return Estimate(np.where(np.isnan(low), 0.0, low), np.where(np.isnan(spent), np.inf, spent))


def value_by(run: Run, time_s: float) -> float:
    """Return the mean of the metric over the last three evaluations up to a time.

    A run that diverged or has no evaluation by then has the metric of a diverged model.
    """
    values = run.curve[run.metric.name].to_numpy()[run.curve["time_s"].to_numpy() <= time_s]
    return float(values[-IN_A_ROW:].mean()) if len(values) and not run.diverged else run.metric.of_diverged


def mean_until(run: Run, time_s: float) -> float:
    """Return the mean of the metric over time, from 0 to `time_s`, with straight lines between evaluations.

    It starts at the metric of a diverged model, which a run that diverged has after its last evaluation. Otherwise, the
    metric stays as it is after the last evaluation by `time_s`. NaN if there is no such value, because the metric is
    not a share.
    """
    worst, curve = run.metric.of_diverged, run.curve[run.curve["time_s"] <= time_s]
    times_s, values = [0.0, *curve["time_s"]], [worst, *curve[run.metric.name]]
    last = worst if run.diverged and len(curve) == len(run.curve) else values[-1]
    return float(np.trapezoid([*values, last, last], [*times_s, times_s[-1], time_s]) / time_s)


def to_target(run: Run, target: float, column: str = "time_s", rounds: int | None = None) -> float:
    """Return the cost of a run up to a target, in a column such as time_s, round, uploads or energy_j.

    It is infinite if the run never reaches the target, and NaN if the cost is unknown. A run that diverges after it has
    reached the target counts as having reached it.
    """
    curve = run.up_to(rounds)
    at = run.metric.time_to(target, curve[run.metric.name], curve.get(column, np.full(len(curve), np.nan)))
    return math.inf if at is None else at


def means(runs: pd.DataFrame, names: Sequence[str], times: Sequence[str]) -> dict[str, float]:
    """Return mean, extremes and half the 95 % interval of each measure of runs that differ only in their seed.

    With fewer than three runs, the interval would be uselessly wide and is NaN. For times to a target, also return how
    many runs reach it; the mean is NaN unless all do.
    """
    figures: dict[str, float] = {"seeds": len(runs)}
    for name in (*names, *times):
        values = runs[name].astype(float)
        reached = values.notna().all()
        figures[name] = float(values.mean()) if reached else math.nan
        enough = reached and len(runs) >= MIN_SEEDS
        figures[f"{name}_ci95"] = float(half_intervals(values.to_numpy(float))) if enough else math.nan
        figures[f"{name}_min"], figures[f"{name}_max"] = float(values.min()), float(values.max())
        if name in times:
            figures[f"{name}_seeds"] = int(values.notna().sum())
    return figures


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (S. Holm, 1979): each is compared with 0.05, as a single one is.

    NaN, for a test that is not possible, stays NaN, but counts in their number.
    """
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values).tolist()):  # NaN comes last
        if not math.isnan(p_values[place]):
            corrected[place] = least = min(1.0, max(least, (len(p_values) - rank) * p_values[place]))
    return corrected


def half_intervals(values: np.ndarray) -> np.ndarray:
    """Return half the 95 % confidence interval of the mean by Student's t, of a vector or of each column.

    NaN for a single value.
    """
    if len(values) < 2:
        return np.full(values.shape[1:], math.nan)
    from scipy.special import stdtrit  # not at the top: scipy takes a while to import

    quantile = stdtrit(len(values) - 1, 0.975)
    return np.asarray(quantile * np.std(values, ddof=1, axis=0) / math.sqrt(len(values)))
