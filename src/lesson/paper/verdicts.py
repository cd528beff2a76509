"""From numbers to a verdict: what a claim says, what was measured, and whether it holds.

A claim has parts, each a number per seed and a rule. A part holds if its rule is met by the whole 95 % interval, is
open if only the mean meets it, and fails otherwise. All parts hold: the claim holds. None does: it does not hold. Else
it holds in part. What is open is said, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lesson.arrays import FloatArray
from lesson.study import half_interval

Outcome = Literal["holds", "open", "fails"]
Rule = Callable[[float, float], Outcome]
"""The outcome of a mean and half its 95 % interval."""
Verdict = Literal["holds", "holds in part", "does not hold"]
Unit = Literal["share", "points", "seconds", "times", "number", "count"]

_FORMS: dict[Unit, tuple[str, str]] = {
    "share": ("{:.1%}", "{:.1%}"),
    "points": ("{:+.1f}", "{:.1f} points"),
    "seconds": ("{:.1f}", "{:.1f} s"),
    "times": ("{:.2f}", "{:.2f} ×"),
    "number": ("{:.1f}", "{:.1f}"),
    "count": ("{:,.0f}", "{:,.0f}"),
}
"""How a mean and half its interval are written; the unit comes last."""


@dataclass(frozen=True)
class Part:
    """One number of a claim."""

    label: str
    values: FloatArray
    """One per seed or draw."""
    rule: Rule
    unit: Unit = "share"

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def ci95(self) -> float:
        """Half the interval; 0 for a number that no draw changes."""
        if not np.all(np.isfinite(self.values)):
            return np.inf
        return half_interval(self.values) if len(self.values) > 1 else 0.0

    @property
    def outcome(self) -> Outcome:
        if not np.isfinite(self.mean):
            return "fails"
        return self.rule(self.mean, self.ci95)

    def shown(self) -> str:
        """The number for people."""
        if not np.isfinite(self.mean):
            return "never"
        scale = 100 if self.unit == "points" else 1
        mean, half = _FORMS[self.unit]
        return f"{mean.format(scale * self.mean)} ± {half.format(scale * self.ci95)}"


@dataclass(frozen=True)
class Finding:
    """A claim with what was measured."""

    id: str
    statement: str
    paper: str
    items: Sequence[str]
    """The figures and tables it is about."""
    parts: Sequence[Part]

    @property
    def seeds(self) -> int:
        return max(len(part.values) for part in self.parts)

    @property
    def verdict(self) -> Verdict:
        outcomes = [part.outcome for part in self.parts]
        if all(outcome == "holds" for outcome in outcomes):
            return "holds"
        return "holds in part" if "holds" in outcomes else "does not hold"

    @property
    def which(self) -> str:
        """What holds, what does not and what is open, where that differs."""
        if len({part.outcome for part in self.parts}) == 1 and self.parts[0].outcome != "open":
            return ""
        words = {"holds": "holds", "fails": "does not", "open": "open"}
        groups = {word: [part.label for part in self.parts if part.outcome == name] for name, word in words.items()}
        return "; ".join(f"{word}: {', '.join(labels)}" for word, labels in groups.items() if labels)

    def to_dict(self) -> dict[str, Any]:
        """The finding as claims.json has it; a number that is never reached is null."""
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
        }


def near(value: float, within: float) -> Rule:
    """The number is this one, give or take so much."""

    def rule(mean: float, half: float) -> Outcome:
        off = abs(mean - value)
        return "holds" if off + half <= within else "open" if off <= within else "fails"

    return rule


def above(value: float = 0.0) -> Rule:
    """The number is greater than this one."""

    def rule(mean: float, half: float) -> Outcome:
        return "holds" if mean - half > value else "open" if mean > value else "fails"

    return rule


def below(value: float) -> Rule:
    """The number is less than this one."""
    return lambda mean, half: above(-value)(-mean, half)


def _known(value: float) -> float | None:
    return round(value, 6) if np.isfinite(value) else None
