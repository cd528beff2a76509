"""Paired comparison of two entries of a tuned comparison, seed by seed, and its verdict.

A seed has the same clients, data and initial model for every entry, so pairing removes the variation that they share.

Pairs with a run that collapsed, or that never reached the target, have no value. They are not missing at random: the
run that failed is the worse one. The other pairs therefore support a verdict only if the pairs left out agree with it.
"""

import math
from dataclasses import dataclass

import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import MIN_SEEDS, half_interval
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.measures import COLLAPSED, by_seed, value_names
from lesson.experiments.tuned.study import TunedStudy

MARGIN = 0.02
"""Equivalence margin of differences in accuracy."""
RATIO_MARGIN = 0.1
"""Equivalence margin of ratios, on either side of 1."""


@dataclass(frozen=True)
class Paired:
    """Differences or ratios, one per seed, with their mean, half its 95 % interval and the verdict."""

    values: FloatArray
    center: float
    """The value of equal entries: 0 for differences, 1 for ratios."""
    margin: float
    left_out_higher: int = 0
    left_out_lower: int = 0
    """Number of pairs without a value that would be higher, or lower, than that of equal entries. A pair in which both
    runs failed counts as both."""

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def half(self) -> float:
        return half_interval(self.values) if len(self.values) >= MIN_SEEDS else math.nan

    @property
    def verdict(self) -> str:
        """Return "equivalent" if the interval is within the margin, even if it excludes equality.

        Otherwise, return "higher" or "lower" if the interval excludes equality, and "undecided" if it does not. A pair
        that is left out prevents "equivalent", and also "higher" or "lower" if it points in the other direction.
        """
        off = self.mean - self.center
        if not math.isfinite(self.half):
            return "undecided"
        if abs(off) + self.half <= self.margin:
            return "undecided" if self.left_out_higher or self.left_out_lower else "equivalent"
        if abs(off) > self.half and not (self.left_out_lower if off > 0 else self.left_out_higher):
            return "higher" if off > 0 else "lower"
        return "undecided"


def paired_gain(study: TunedStudy, entry: str, than: str, beta: float) -> Paired:
    """Return by how much the final accuracy of an entry exceeds another's, over the seeds where neither collapsed."""
    ours, theirs = _both(study, entry, than, beta)
    last, ours_lost, theirs_lost = value_names(study.design.rules)[-1], ours[COLLAPSED], theirs[COLLAPSED]
    values = (ours[last] - theirs[last])[~(ours_lost | theirs_lost)].to_numpy(dtype=float)
    return Paired(values, 0.0, MARGIN, left_out_higher=int(theirs_lost.sum()), left_out_lower=int(ours_lost.sum()))


def paired_ratio(study: TunedStudy, entry: str, than: str, beta: float, column: str) -> Paired:
    """Return the ratio of what two entries spend to reach a target; `column` names it, such as time_to_0.7.

    Only seeds with which both entries reach the target are included.
    """
    ours, theirs = (frame[column] for frame in _both(study, entry, than, beta))
    values, never, they_never = (ours / theirs).dropna().to_numpy(dtype=float), ours.isna(), theirs.isna()
    return Paired(values, 1.0, RATIO_MARGIN, left_out_higher=int(never.sum()), left_out_lower=int(they_never.sum()))


def _both(study: TunedStudy, entry: str, than: str, beta: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the numbers of two entries with the seeds that both have; raise ValueError if they differ."""
    ours, theirs = (by_seed(_case(study, name, beta), study.done) for name in (entry, than))
    if list(ours.index) != list(theirs.index):
        raise ValueError(f"'{entry}' and '{than}' must have runs with the same seeds at β = {beta:g}")
    return ours, theirs


def _case(study: TunedStudy, entry: str, beta: float) -> Case:
    [case] = [case for case in study.design.cases if (case.entry.name, case.beta) == (entry, beta)]
    return case
