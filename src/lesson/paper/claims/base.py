"""What a claim is, and what several of them are measured by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lesson.paper.items import NAMES
from lesson.paper.measures import times_longer
from lesson.paper.results import Results
from lesson.paper.verdicts import Finding, Part, Rule, above

ROUNDS, DEADLINE_ROUNDS = 5000, 10_000
DATASETS = {"CIFAR-10": "cifar10", "MNIST": "mnist"}
BETAS = {"0.1": "-beta=0.1", "1": "", "10": "-beta=10"}
CALLED = {"lesson": "LESSON", "fedavg": "FedAvg", "fedcs": "FedCS"}
LONGER = above(1)

Measure = Callable[[Results], list[Part]]


@dataclass(frozen=True)
class Claim:
    """A statement, where the paper has it, and how it is measured."""

    id: str
    statement: str
    paper: str
    items: Sequence[str]
    """Whose runs it needs."""
    measure: Measure


CLAIMS: list[Claim] = []


def claim(id: str, statement: str, paper: str, *items: str) -> Callable[[Measure], Measure]:
    """Make a function the measure of a new claim."""

    def keep(measure: Measure) -> Measure:
        CLAIMS.append(Claim(id, statement, paper, items, measure))
        return measure

    return keep


def check_claims(results: Results, items: Sequence[str]) -> list[Finding]:
    """What comes of those claims for which the runs of these items are enough, in the order of the paper."""
    there = [claim for claim in CLAIMS if set(claim.items) <= set(items)]
    there.sort(key=lambda claim: NAMES.index(claim.items[0]))
    return [Finding(claim.id, claim.statement, claim.paper, claim.items, claim.measure(results)) for claim in there]


def longer(
    results: Results,
    label: str,
    series: str,
    than: str,
    target: float,
    column: str,
    rule: Rule = LONGER,
    rounds: int | None = None,
) -> Part:
    """How many times as long one series takes as another; the label says if that is the least it can be."""
    ratios, at_least = times_longer(results, series, than, target, column, rounds)
    return Part(f"{label}, at least" if at_least else label, ratios, rule, "times")
