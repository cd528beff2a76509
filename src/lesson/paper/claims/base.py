"""The claim type, the list of all claims, and measurements that several claims share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import ratio, spent_until
from lesson.experiments.run import Run
from lesson.paper.items import NAMES, load_item
from lesson.paper.scale import Scale
from lesson.paper.series import Series, by_series, common_target, last_accuracy
from lesson.paper.verdicts import Part, Rule, above, verdict_on

ROUNDS, DEADLINE_ROUNDS = 5000, 10_000
DATASETS = {"CIFAR-10": "cifar10", "MNIST": "mnist"}
BETAS = {"0.1": "-beta=0.1", "1": "", "10": "-beta=10"}
CALLED = {"lesson": "LESSON", "fedavg": "FedAvg", "fedcs": "FedCS"}
LONGER = above(1)

Measure = Callable[[Series], list[Part]]


@dataclass(frozen=True)
class Claim:
    """A statement, the paper's own words or numbers for it, and the function that measures it."""

    id: str
    statement: str
    paper: str
    items: Sequence[str]
    """Names of the figures and tables whose runs it needs."""
    measure: Measure
    added: bool = False
    """Whether the paper does not make this claim; it is then counted separately."""
    constructed: bool = False
    """Whether the claim is true by construction of the model that the paper describes, or of our choice of presets."""


CLAIMS: list[Claim] = []


def claim(
    id: str, statement: str, paper: str, *items: str, added: bool = False, constructed: bool = False
) -> Callable[[Measure], Measure]:
    """Register the decorated function as the measure of a new claim."""

    def keep(measure: Measure) -> Measure:
        CLAIMS.append(Claim(id, statement, paper, items, measure, added, constructed))
        return measure

    return keep


def check_claims(runs: Sequence[Run], items: Sequence[str], scale: Scale) -> list[dict[str, Any]]:
    """Return the findings on all claims whose items are among these and have all their runs, in the paper's order."""
    finished = {run.name for run in runs}
    complete = {name for name in items if load_item(name).settings(scale).keys() <= finished}
    claims = [claim for claim in CLAIMS if set(claim.items) <= complete]
    claims.sort(key=lambda claim: NAMES.index(claim.items[0]))
    same_seeds = by_series(run for run in runs if run.seed < scale.seeds)
    return [finding(claim, claim.measure(same_seeds)) for claim in claims]


def finding(claim: Claim, parts: Sequence[Part]) -> dict[str, Any]:
    """Return a claim with its verdict and measurements, as in claims.json; numbers that are not finite become None."""
    return {
        "id": claim.id,
        "statement": claim.statement,
        "paper": claim.paper,
        "ours": {part.label: _known(part.measured.mean) for part in parts},
        "ci95": {part.label: 0.0 if part.exact else _known(part.measured.half) for part in parts},
        "seeds": min(len(part.measured.low) for part in parts),
        "verdict": verdict_on(parts),
        "added": claim.added,
        "constructed": claim.constructed,
        "items": list(claim.items),
        "parts": [
            {
                "label": part.label,
                "interval": part.interval and [_known(end) for end in part.interval],
                "added": part.added,
                "outcome": part.outcome,
                "text": part.text,
            }
            for part in parts
        ],
    }


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def final(results: Series, suffix: str, rounds: int = ROUNDS) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the final accuracies of LESSON, FedAvg and FedCS in the series with this suffix, one value per seed."""
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-{suffix}", rounds) for name in CALLED)
    return lesson, fedavg, fedcs


def slower(results: Series, other: str, suffix: str, label: str, rule: Rule = LONGER, column: str = "time_s") -> Part:
    """Compare the times of another strategy and LESSON to the highest target that all LESSON and FedAvg runs reach.

    The values are the other strategy's time over LESSON's, or its rounds over LESSON's if `column` is "round".
    """
    lesson, fedavg = f"lesson-{suffix}", f"fedavg-{suffix}"
    target = common_target(results, [lesson, fedavg], ROUNDS)
    what = f"{label}{'rounds' if column == 'round' else 'time'} to {percent(target)}, {CALLED[other]} / LESSON"
    return longer(results, what, f"{other}-{suffix}", lesson, target, column, rule, ROUNDS)


def percent(target: float) -> str:
    """Return a common target as text."""
    return "a common target, which does not exist" if math.isnan(target) else f"{target:.0%}"


def longer(
    results: Series,
    label: str,
    series: str,
    than: str,
    target: float,
    column: str,
    rule: Rule = LONGER,
    rounds: int | None = None,
) -> Part:
    """Compare the costs of two series up to a target, as ratios of `series` to `than`, one per seed."""
    ours, theirs = (spent_until(results[name], target, column, rounds) for name in (series, than))
    return Part(label, ratio(ours, theirs), rule, "times")
