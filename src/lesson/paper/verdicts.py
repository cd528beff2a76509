"""Verdicts on claims: whether the measured numbers support a statement of the paper.

A claim has parts, each with one number per seed and a rule. A part holds if its whole 95 % interval satisfies the rule,
fails if none of it does, and is inconclusive otherwise or with a single seed. A claim holds if all of its parts hold,
and is inconclusive if all of them are. If only some parts hold it is mixed; if none holds, it fails.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from lesson.core.arrays import FloatArray
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
    at_least: bool = False
    """Whether the values are lower bounds. The smallest one must then satisfy the rule; there is no interval."""
    exact: bool = False
    """Whether the number is the same for every seed, so that a single value is enough and the interval is 0."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def ci95(self) -> float:
        """Half the width of the 95 % interval; NaN if there is none."""
        if self.exact:
            return 0.0
        known = bool(np.all(np.isfinite(self.values))) and not self.at_least
        return half_interval(self.values) if known else math.nan

    @property
    def outcome(self) -> Outcome:
        if not np.all(np.isfinite(self.values)) or (len(self.values) < 2 and not self.exact):
            return "inconclusive"
        if self.at_least:
            return self.rule(float(self.values.min()), math.inf)
        return "inconclusive" if math.isnan(self.ci95) else self.rule(self.mean - self.ci95, self.mean + self.ci95)

    def shown(self) -> str:
        """Return the mean ± half its interval as text; "never" if the mean is not finite."""
        if not math.isfinite(self.mean):
            return "never"
        scale = 100 if self.unit == "points" else 1
        mean, half = _FORMS[self.unit]
        if math.isnan(self.ci95):
            return mean.format(scale * self.mean) + half.partition("}")[2]
        return f"{mean.format(scale * self.mean)} ± {half.format(scale * self.ci95)}"


@dataclass(frozen=True)
class Finding:
    """A claim with its measurements and their verdict."""

    id: str
    statement: str
    paper: str
    items: Sequence[str]
    """Names of the figures and tables that the claim is about."""
    parts: Sequence[Part]

    @property
    def seeds(self) -> int:
        return min(len(part.values) for part in self.parts)

    @property
    def verdict(self) -> Verdict:
        outcomes = {part.outcome for part in self.parts}
        if len(outcomes) == 1:
            return outcomes.pop()
        return "mixed" if "holds" in outcomes else "fails"

    @property
    def which(self) -> str:
        """The labels of the parts that hold, fail and are inconclusive, as text; empty if all have the same outcome."""
        groups = {name: [part.label for part in self.parts if part.outcome == name] for name in get_args(Outcome)}
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
            "items": list(self.items),
            "parts": [
                {
                    "label": part.label,
                    "ours": _known(part.mean),
                    "ci95": _known(part.ci95),
                    "at_least": part.at_least,
                    "unit": part.unit,
                    "outcome": part.outcome,
                    "shown": part.shown(),
                }
                for part in self.parts
            ],
        }


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
