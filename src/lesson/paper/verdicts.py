"""Verdicts on claims: whether the measured numbers support a statement of the paper.

A claim has parts, each with one number per seed and a rule. A part holds if its whole 95 % interval satisfies the rule,
fails if none of it does, and is inconclusive otherwise. A claim holds or fails if all of its parts do, is inconclusive
if all of them are, and is mixed otherwise. Parts marked as added are not in the paper; they are shown but do not count.

The interval of a part is that of the mean by Student's t. If runs never reach a target, only lower bounds are known for
some seeds, and a mean would depend on where the runs were stopped. The interval is then that of the median by the sign
test: from the k-th smallest to the k-th largest value, with the largest k for which at most 2.5 % of all samples miss
the median on either side. It assumes no distribution, and the upper end of a bound counts as infinite. It requires at
least six seeds: with five, all values lie on one side of the median in 2 · 2⁻⁵ = 6.25 % of all samples.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray
from lesson.experiments.measures import half_interval

Outcome = Literal["holds", "fails", "inconclusive"]
Rule = Callable[[float, float], Outcome]
"""Maps the lower and the upper end of an interval to an outcome."""
Verdict = Literal["holds", "fails", "inconclusive", "mixed"]
Unit = Literal["share", "points", "seconds", "times", "number", "count"]

_FORMS: dict[Unit, tuple[str, str]] = {
    "share": ("{:.1%}", "{:.1%}"),
    "points": ("{:+.1f}", "{:.1f} points"),
    "seconds": ("{:.1f}", "{:.1f} s"),
    "times": ("{:.2f}", "{:.2f} ×"),
    "number": ("{:.1f}", "{:.1f}"),
    "count": ("{:,.0f}", "{:,.0f}"),
}
"""Formats of a mean and of half its interval; the unit is written once, at the end."""


@dataclass(frozen=True)
class Part:
    """One measured number of a claim, with the rule that it must satisfy."""

    label: str
    values: FloatArray
    """One value per seed or draw."""
    rule: Rule
    unit: Unit = "share"
    censored: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which values are lower bounds; empty if none of them is."""
    exact: bool = False
    """Whether the number is the same for every seed, so that a single value is enough and the interval is 0."""
    added: bool = False
    """Whether we added this check to those of the paper; it does not count toward the verdict."""

    @property
    def is_censored(self) -> bool:
        """Whether some values are lower bounds."""
        return bool(np.any(self.censored))

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if some values are lower bounds."""
        return math.nan if self.is_censored else float(np.mean(self.values))

    @property
    def ci95(self) -> float:
        """Half the width of the 95 % interval of the mean; NaN if there is none."""
        if self.exact:
            return 0.0
        return half_interval(self.values) if np.all(np.isfinite(self.values)) and not self.is_censored else math.nan

    @property
    def median(self) -> tuple[float, float]:
        """The smallest and the largest value that the median over seeds can have; they differ only if it is a bound.

        Bounds are not averaged: with an even number of values, the smallest is then the lower of the middle two.
        """
        low, high = self._sorted()
        middle = (len(low) - 1) // 2, len(low) // 2
        if np.array_equal(low[list(middle)], high[list(middle)]):
            return float(low[list(middle)].mean()), float(low[list(middle)].mean())
        return float(low[middle[0]]), float(high[middle[1]])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, or of the median if some values are lower bounds; None if there is none."""
        if not np.all(np.isfinite(self.values)):
            return None
        if not self.is_censored:
            return None if math.isnan(self.ci95) else (self.mean - self.ci95, self.mean + self.ci95)
        place = sign_test_rank(len(self.values))
        low, high = self._sorted()
        return (float(low[place - 1]), float(high[-place])) if place else None

    @property
    def outcome(self) -> Outcome:
        return "inconclusive" if self.interval is None else self.rule(*self.interval)

    def shown(self) -> str:
        """Return the mean ± half its interval as text; "never" if the mean is not finite.

        If some values are lower bounds, return the value of each seed, the median and the number of values above 1.
        """
        if self.is_censored:
            return self._shown_by_seed()
        if not math.isfinite(self.mean):
            return "never"
        scale = 100 if self.unit == "points" else 1
        mean, half = _FORMS[self.unit]
        if math.isnan(self.ci95):
            return mean.format(scale * self.mean) + half.partition("}")[2]
        return f"{mean.format(scale * self.mean)} ± {half.format(scale * self.ci95)}"

    def _shown_by_seed(self) -> str:
        mean, unit = _FORMS[self.unit][0], _FORMS[self.unit][1].partition("}")[2]
        seeds = [
            f"{'> ' * bool(bound)}{mean.format(value)}" if math.isfinite(value) else "unknown"
            for value, bound in zip(self.values, self.censored, strict=True)
        ]
        by_seed = f"by seed {', '.join(seeds)}{unit}"
        if not np.all(np.isfinite(self.values)):
            return by_seed
        least, largest = self.median
        median = f"median {'' if least == largest else '> '}{mean.format(least)}{unit}"
        return f"{by_seed}; {median}; above 1 in {int(np.sum(self.values > 1))} of {len(self.values)} seeds"

    def _sorted(self) -> tuple[FloatArray, FloatArray]:
        """Return the lower and the upper ends of the values, each in ascending order."""
        highest = np.where(self.censored, np.inf, self.values) if self.is_censored else self.values
        return np.sort(self.values), np.sort(highest)


@dataclass(frozen=True)
class Finding:
    """A claim with its measurements and their verdict."""

    id: str
    statement: str
    paper: str
    items: Sequence[str]
    """Names of the figures and tables that the claim is about."""
    parts: Sequence[Part]
    """At least one part must be from the paper, not added."""
    added: bool = False
    """Whether the paper does not make this claim."""

    @property
    def seeds(self) -> int:
        return min(len(part.values) for part in self.parts)

    @property
    def verdict(self) -> Verdict:
        outcomes = {part.outcome for part in self.parts if not part.added}
        return outcomes.pop() if len(outcomes) == 1 else "mixed"

    @property
    def which(self) -> str:
        """The labels of the parts that hold, fail and are inconclusive, as text; empty if all have the same outcome.

        Added parts are left out.
        """
        counted = [part for part in self.parts if not part.added]
        groups = {name: [part.label for part in counted if part.outcome == name] for name in get_args(Outcome)}
        told = [f"{name}: {', '.join(labels)}" for name, labels in groups.items() if labels]
        return "; ".join(told) if len(told) > 1 else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as written to claims.json; numbers and intervals that are not finite become null."""
        return {
            "id": self.id,
            "statement": self.statement,
            "paper": self.paper,
            "ours": {part.label: _known(part.mean) for part in self.parts},
            "ci95": {part.label: _known(part.ci95) for part in self.parts},
            "seeds": self.seeds,
            "verdict": self.verdict,
            "which": self.which,
            "added": self.added,
            "items": list(self.items),
            "parts": [
                {
                    "label": part.label,
                    "ours": _known(part.mean),
                    "ci95": _known(part.ci95),
                    "median": _known(part.median[0]),
                    "values": [_known(value) for value in part.values] if part.is_censored else None,
                    "censored": part.censored.tolist() if part.is_censored else None,
                    "added": part.added,
                    "unit": part.unit,
                    "outcome": part.outcome,
                    "shown": part.shown(),
                }
                for part in self.parts
            ],
        }


def sign_test_rank(num_values: int) -> int:
    """Return the largest k for which the k-th smallest and largest values are a 95 % interval of the median; 0 if none.

    The median is below the k-th smallest of n values if fewer than k values lie below it. The probability of this is
    that of fewer than k heads in n tosses of a coin, and must be at most 2.5 %.
    """
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(num_values, rank) / 2**num_values) <= 0.025:
        rank += 1
    return rank


def near(value: float, within: float) -> Rule:
    """Return the rule that a number differs from `value` by at most `within`."""

    def rule(low: float, high: float) -> Outcome:
        if value - within <= low and high <= value + within:
            return "holds"
        return "fails" if high < value - within or low > value + within else "inconclusive"

    return rule


def above(value: float = 0.0) -> Rule:
    """Return the rule that a number is greater than `value`."""
    return lambda low, high: "holds" if low > value else "fails" if high <= value else "inconclusive"


def below(value: float) -> Rule:
    """Return the rule that a number is less than `value`."""
    return lambda low, high: above(-value)(-high, -low)


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
