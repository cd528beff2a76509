"""Verdicts on claims: whether the measured numbers support a statement of the paper.

A claim has parts, each with one number per seed and a rule. A part holds if its whole 95 % interval satisfies the rule,
fails if none of it does, and is inconclusive otherwise. A claim holds or fails if all of its parts do, is inconclusive
if all of them are, and is mixed otherwise. Parts marked as added are not in the paper; they are shown but do not count.
`lesson.experiments.measures` explains the intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Estimate

Outcome = Literal["holds", "fails", "inconclusive"]
Rule = Callable[[float, float], Outcome]
"""Maps the lower and the upper end of an interval to an outcome."""
Verdict = Literal["holds", "fails", "inconclusive", "mixed"]
Unit = Literal["share", "points", "seconds", "times", "number", "count"]

_FORMS: dict[Unit, tuple[str, str]] = {
    "share": ("{:.1%}", ""),
    "points": ("{:+.1f}", " points"),
    "seconds": ("{:.1f}", " s"),
    "times": ("{:.2f}", " ×"),
    "number": ("{:.1f}", ""),
    "count": ("{:,.0f}", ""),
}
"""Format of a number, and the unit after it."""


@dataclass(frozen=True)
class Part:
    """One measured number of a claim, with the rule that it must satisfy."""

    label: str
    measured: Estimate
    rule: Rule
    unit: Unit = "share"
    exact: bool = False
    """Whether the number is the same for every seed, so that one value suffices and the interval has width 0."""
    added: bool = False
    """Whether we added this check to those of the paper; it does not count toward the verdict."""
    brief: bool = False
    """Whether the text omits the values by seed or draw."""

    @classmethod
    def of(cls, label: str, values: FloatArray, rule: Rule, unit: Unit = "share", *, added: bool = False) -> "Part":
        """Return a part from one exact value per seed or draw."""
        return cls(label, Estimate.of(values), rule, unit, added=added)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; None if there are too few values."""
        return (self.measured.mean, self.measured.mean) if self.exact else self.measured.interval

    @property
    def outcome(self) -> Outcome:
        return "inconclusive" if self.interval is None else self.rule(*self.interval)

    @property
    def text(self) -> str:
        """The number with its interval."""
        scale = 100 if self.unit == "points" else 1
        return Estimate(scale * self.measured.low, scale * self.measured.high).text(
            *_FORMS[self.unit], brief=self.brief
        )


def verdict_on(parts: Sequence[Part]) -> Verdict:
    """Return the verdict on a claim with these parts; without parts from the paper, it is inconclusive."""
    outcomes = {part.outcome for part in parts if not part.added} or {"inconclusive"}
    return outcomes.pop() if len(outcomes) == 1 else "mixed"


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
