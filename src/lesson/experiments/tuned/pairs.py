"""Paired comparison of two entries of a tuned comparison, seed by seed, and its verdict.

A seed has the same clients, data and initial model for every entry, so pairing removes the variation that they share.
"""

import math
from dataclasses import dataclass

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

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def half(self) -> float:
        return half_interval(self.values) if len(self.values) >= MIN_SEEDS else math.nan

    @property
    def verdict(self) -> str:
        """Return "equivalent" if the interval is within the margin, even if it excludes equality.

        Otherwise, return "higher" or "lower" if the interval excludes equality, and "undecided" if it does not.
        """
        off = self.mean - self.center
        if not math.isfinite(self.half):
            return "undecided"
        if abs(off) + self.half <= self.margin:
            return "equivalent"
        if abs(off) > self.half:
            return "higher" if off > 0 else "lower"
        return "undecided"


def paired_gain(study: TunedStudy, entry: str, than: str, beta: float) -> Paired:
    """Return by how much the final accuracy of an entry exceeds another's, over the seeds where neither collapsed."""
    ours, theirs = (by_seed(_case(study, name, beta), study.done) for name in (entry, than))
    last, kept = value_names(study.design.rules)[-1], ~(ours[COLLAPSED] | theirs[COLLAPSED])
    return Paired((ours[last] - theirs[last])[kept].to_numpy(dtype=float), 0.0, MARGIN)


def paired_ratio(study: TunedStudy, entry: str, than: str, beta: float, column: str) -> Paired:
    """Return the ratio of what two entries spend to reach a target; `column` names it, such as time_to_0.7.

    Only seeds with which both entries reach the target are included.
    """
    ours, theirs = (by_seed(_case(study, name, beta), study.done) for name in (entry, than))
    return Paired((ours[column] / theirs[column]).dropna().to_numpy(dtype=float), 1.0, RATIO_MARGIN)


def _case(study: TunedStudy, entry: str, beta: float) -> Case:
    [case] = [case for case in study.design.cases if (case.entry.name, case.beta) == (entry, beta)]
    return case
