"""What a claim is, and what several of them are measured by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import common_target, last_accuracy, times_longer
from lesson.experiments.results import Results
from lesson.paper.items import NAMES, load_item
from lesson.paper.scale import Scale
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


def check_claims(results: Results, items: Sequence[str], scale: Scale) -> list[Finding]:
    """What comes of those claims about these items whose runs are all there, in the order of the paper."""
    whole = {name for name in items if load_item(name).settings(scale).keys() <= results.runs.keys()}
    there = [claim for claim in CLAIMS if set(claim.items) <= whole]
    there.sort(key=lambda claim: NAMES.index(claim.items[0]))
    same_seeds = results.of_seeds(scale.seeds)
    return [Finding(claim.id, claim.statement, claim.paper, claim.items, claim.measure(same_seeds)) for claim in there]


def final(results: Results, suffix: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Final accuracy of LESSON, FedAvg and FedCS in series that end alike."""
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-{suffix}", ROUNDS) for name in CALLED)
    return lesson, fedavg, fedcs


def slower(results: Results, other: str, suffix: str, label: str, rule: Rule = LONGER, column: str = "time_s") -> Part:
    """How many times as long as LESSON another takes to the highest target that LESSON and FedAvg always reach."""
    lesson, fedavg = f"lesson-{suffix}", f"fedavg-{suffix}"
    target = common_target(results, [lesson, fedavg], ROUNDS)
    what = f"{label}{'rounds' if column == 'round' else 'time'} of {CALLED[other]} to {target:.0%} over LESSON's"
    return longer(results, what, f"{other}-{suffix}", lesson, target, column, rule, ROUNDS)


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
    """How many times as long one series takes as another; the label says how many runs never get there."""
    ratios, num_never = times_longer(results, series, than, target, column, rounds)
    said = f"{label}, at least ({num_never} of {len(ratios)} never)" if num_never else label
    return Part(said, ratios, rule, "times", at_least=num_never > 0)
