"""Every statement of the paper that a number can test, each with the function that measures it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lesson.arrays import FloatArray
from lesson.learn.models import FACTORIES, initial_vector
from lesson.paper import fleets
from lesson.paper.items import load_item
from lesson.paper.measures import (
    accuracy_at,
    client_figure,
    common_target,
    last_accuracy,
    per_seed,
    times_longer,
)
from lesson.paper.results import Results
from lesson.paper.verdicts import Finding, Part, above, below, near

ROUNDS, DEADLINE_ROUNDS = 5000, 10_000
BETAS = {"0.1": "-beta=0.1", "1": "", "10": "-beta=10"}
DATASETS = {"CIFAR-10": "cifar10", "MNIST": "mnist"}
SIMILAR = 0.05
"""Accuracies this near are similar: the authors' own files differ by as much where the text calls them so."""
SIMILAR_ROUNDS = 0.25
"""So are numbers of rounds, as a share of each other."""

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


def check_claims(results: Results, items: Sequence[str]) -> list[Finding]:
    """What comes of those claims for which the runs of these items are enough."""
    there = [claim for claim in CLAIMS if set(claim.items) <= set(items)]
    return [Finding(claim.id, claim.statement, claim.paper, claim.measure(results)) for claim in there]


def _claim(id: str, statement: str, paper: str, *items: str) -> Callable[[Measure], Measure]:
    def keep(measure: Measure) -> Measure:
        CLAIMS.append(Claim(id, statement, paper, items, measure))
        return measure

    return keep


@_claim("table2", "Average latency of a global round at τ = 20 s", "FedAvg 68 s; FedCS 20 s; LESSON 20 s", "table2")
def _table2(_: Results) -> list[Part]:
    return [
        Part(_called(name), _round_s("released", name), near(paper_s, 0.05 * paper_s), "seconds")
        for name, paper_s in fleets.PAPER_ROUND_S.items()
    ]


@_claim("table2-printed", "The same with the parameters of the text", "FedAvg 68 s; FedCS 20 s; LESSON 20 s", "table2")
def _table2_printed(_: Results) -> list[Part]:
    return [
        Part(_called(name), _round_s("printed", name), near(paper_s, 0.05 * paper_s), "seconds")
        for name, paper_s in fleets.PAPER_ROUND_S.items()
    ]


@_claim("rounds-done", "At 20,000 s FedAvg has made 588 rounds, LESSON 2,000", "588; 2,000", "table2")
def _rounds_done(_: Results) -> list[Part]:
    parts = []
    for time_s in (20_000, 40_000):
        for name, said in (("fedavg", 588), ("lesson", 2000)):
            done = time_s / _round_s("released", name)
            parts.append(Part(f"{_called(name)} at {time_s:,} s", done, near(said, 0.05 * said), "count"))
    ratio = _round_s("released", "fedavg") / _round_s("released", "lesson")
    return [*parts, Part("LESSON's over FedAvg's", ratio, near(2000 / 588, 0.05 * 2000 / 588), "times")]


@_claim("median-latency", "The median latency of the clients is about 10 s", "~10 s", "fig3")
def _median_latency(_: Results) -> list[Part]:
    draws = fleets.latency_summary()
    return [
        Part(preset, draws[draws["scenario"] == preset]["median_s"].to_numpy(), near(10, 2), "seconds")
        for preset in fleets.SCENARIOS
    ]


@_claim("deadline-tiers", "A longer τ makes fewer tiers and more uploads per round", "fewer; more", "fig2")
def _deadline_tiers(_: Results) -> list[Part]:
    draws = fleets.deadline_effects()
    tiers, uploads = (
        {tau: draws[draws["deadline_s"] == tau][column].to_numpy(float) for tau in (10, 20, 60)}
        for column in ("num_tiers", "updates_per_round")
    )
    steps = ((10, 20), (20, 60))
    return [
        *(
            Part(f"tiers at τ = {short} less at {long}", tiers[short] - tiers[long], above(), "number")
            for short, long in steps
        ),
        *(
            Part(f"uploads at τ = {long} less at {short}", uploads[long] - uploads[short], above(), "number")
            for short, long in steps
        ),
    ]


@_claim("networks", "Parameters of the two networks", "CIFAR-10 1,144,650; MNIST 61,706", "table1")
def _networks(_: Results) -> list[Part]:
    said = {"CIFAR-10": 1_144_650, "MNIST": 61_706}
    return [
        Part(label, np.array([len(initial_vector(FACTORIES[DATASETS[label]], seed=0))]), near(value, 0), "count")
        for label, value in said.items()
    ]


@_claim(
    "accuracy-cifar10", "Final test accuracy on CIFAR-10, β = 1, τ = 20 s", "LESSON, FedAvg ~70 %; FedCS ~60 %", "fig5"
)
def _accuracy_cifar10(results: Results) -> list[Part]:
    said = {"lesson": 0.7, "fedavg": 0.7, "fedcs": 0.6}
    return [
        Part(_called(name), last_accuracy(results, f"{name}-cifar10", ROUNDS), near(value, 0.05))
        for name, value in said.items()
    ]


@_claim("accuracy-mnist", "Final test accuracy on MNIST, β = 1, τ = 20 s", "LESSON, FedAvg ~95 %; FedCS ~90 %", "fig5")
def _accuracy_mnist(results: Results) -> list[Part]:
    said = {"lesson": 0.95, "fedavg": 0.95, "fedcs": 0.9}
    return [
        Part(_called(name), last_accuracy(results, f"{name}-mnist", ROUNDS), near(value, 0.025))
        for name, value in said.items()
    ]


@_claim("order-beta1", "LESSON is as accurate as FedAvg, and more than FedCS, at β = 1", "similar; higher", "fig5")
def _order_beta1(results: Results) -> list[Part]:
    return [part for label, name in DATASETS.items() for part in _order(results, f"{label}: ", name)]


@_claim(
    "order-iid", "Near IID (β = 10) LESSON is as accurate as FedAvg, and more than FedCS", "similar; higher", "fig6"
)
def _order_iid(results: Results) -> list[Part]:
    return _order(results, "", "cifar10-beta=10")


@_claim(
    "order-beta0.1",
    "At β = 0.1 FedAvg is more accurate than LESSON, and LESSON than FedCS",
    "FedAvg > LESSON > FedCS",
    "fig6",
)
def _order_beta01(results: Results) -> list[Part]:
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-cifar10-beta=0.1", ROUNDS) for name in _CALLED)
    return [
        Part("FedAvg − LESSON", fedavg - lesson, above(), "points"),
        Part("LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]


@_claim(
    "gap-shrinks",
    "The gap of FedAvg to LESSON shrinks as β grows from 0.1 to 10; FedCS stays as it is",
    "shrinks; unchanged",
    "fig6",
)
def _gap_shrinks(results: Results) -> list[Part]:
    def gap(beta: str) -> FloatArray:
        fedavg, lesson = (
            last_accuracy(results, f"{name}-cifar10{BETAS[beta]}", ROUNDS) for name in ("fedavg", "lesson")
        )
        return fedavg - lesson

    fedcs = {beta: last_accuracy(results, f"fedcs-cifar10{suffix}", ROUNDS) for beta, suffix in BETAS.items()}
    return [
        Part("gap at β = 0.1 less that at 10", gap("0.1") - gap("10"), above(), "points"),
        Part("FedCS at β = 10 less at 0.1", fedcs["10"] - fedcs["0.1"], near(0, 0.02), "points"),
    ]


@_claim(
    "per-round",
    "Per round LESSON converges as fast as FedAvg, and slightly faster than FedCS",
    "similar; slightly faster",
    "fig5",
)
def _per_round(results: Results) -> list[Part]:
    parts = []
    for label, name in DATASETS.items():
        target = common_target(results, [f"lesson-{name}", f"fedavg-{name}"], ROUNDS)
        for other, rule in (("fedavg", near(1, SIMILAR_ROUNDS)), ("fedcs", above(1))):
            ratio = times_longer(results, f"{other}-{name}", f"lesson-{name}", target, "round", ROUNDS)
            parts.append(
                Part(f"{label}: rounds of {_called(other)} to {target:.0%} over LESSON's", ratio, rule, "times")
            )
    return parts


@_claim("over-time", "Over time LESSON converges faster than FedAvg", "faster", "fig5")
def _over_time(results: Results) -> list[Part]:
    return [_slower(results, "fedavg", name, f"{label}: ") for label, name in DATASETS.items()]


@_claim("over-time-printed", "The same with the parameters of the text", "faster", "printed")
def _over_time_printed(results: Results) -> list[Part]:
    return [_slower(results, "fedavg", f"{name}-printed", f"{label}: ") for label, name in DATASETS.items()]


@_claim("fastest-each-beta", "LESSON is the fastest over time at every β", "much faster than FedAvg and FedCS", "fig7")
def _fastest(results: Results) -> list[Part]:
    return [
        _slower(results, other, f"cifar10{suffix}", f"β = {beta}: ")
        for beta, suffix in BETAS.items()
        for other in ("fedavg", "fedcs")
    ]


@_claim(
    "mnist-20000s",
    "On MNIST LESSON has converged at 20,000 s, FedAvg is still under-trained",
    "converged; under-trained",
    "fig5",
)
def _mnist_at_20000(results: Results) -> list[Part]:
    short = {
        name: last_accuracy(results, f"{name}-mnist", ROUNDS) - accuracy_at(results, f"{name}-mnist", 20_000.0)
        for name in ("lesson", "fedavg")
    }
    return [
        Part("LESSON's final accuracy less that at 20,000 s", short["lesson"], near(0, 0.01), "points"),
        Part("FedAvg's", short["fedavg"], above(0.01), "points"),
    ]


@_claim("deadlines-accuracy", "Per round τ = 60 s is the most accurate at both β", "highest", "fig8")
def _deadlines_accuracy(results: Results) -> list[Part]:
    parts = []
    for beta in ("0.1", "1"):
        last = {tau: last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for tau in (10, 20, 60)}
        parts += [Part(f"β = {beta}: τ = 60 less {tau}", last[60] - last[tau], above(), "points") for tau in (10, 20)]
    return parts


@_claim("deadlines-time", "Over time τ = 60 s is the slowest at β = 0.1", "slowest", "fig9")
def _deadlines_time(results: Results) -> list[Part]:
    target = common_target(results, [_deadline(tau, "0.1") for tau in (10, 20, 60)])
    return [
        Part(
            f"time of τ = 60 to {target:.0%} over that of {tau}",
            times_longer(results, _deadline(60, "0.1"), _deadline(tau, "0.1"), target, "time_s"),
            above(1),
            "times",
        )
        for tau in (10, 20)
    ]


@_claim("short-deadline-sensitive", "τ = 10 s is the most sensitive to β", "most sensitive", "fig8")
def _sensitive(results: Results) -> list[Part]:
    def loss(tau: int) -> FloatArray:
        even, uneven = (last_accuracy(results, _deadline(tau, beta), DEADLINE_ROUNDS) for beta in ("1", "0.1"))
        return even - uneven

    return [
        Part(f"what β = 0.1 costs at τ = 10 less at {tau}", loss(10) - loss(tau), above(), "points") for tau in (20, 60)
    ]


@_claim("spread-grows", "The deadlines differ more over time at β = 1 than at 0.1", "grows", "fig9")
def _spread(results: Results) -> list[Part]:
    target = common_target(results, [_deadline(tau, beta) for tau in (10, 60) for beta in ("0.1", "1")])
    spread = {
        beta: times_longer(results, _deadline(60, beta), _deadline(10, beta), target, "time_s") for beta in ("0.1", "1")
    }
    label = f"time of τ = 60 to {target:.0%} over that of 10, at β = 1 less at 0.1"
    return [Part(label, spread["1"] - spread["0.1"], above(), "times")]


@_claim("fedcs-overfits", "FedCS fits the data of the fast clients only", "overfits", "fig6")
def _overfits(results: Results) -> list[Part]:
    parts = []
    for beta, suffix in BETAS.items():
        gaps = {
            name: client_figure(
                results,
                f"{name}-cifar10{suffix}",
                lambda looks: float((looks["accuracy_tier1"] - looks["accuracy_others"]).tail(3).mean()),
                ROUNDS,
            )
            for name in _CALLED
        }
        label = f"β = {beta}: FedCS on tier 1 less on others"
        parts.append(Part(label, gaps["fedcs"], above(), "points"))
        parts.append(Part(f"{label}, beyond LESSON's", gaps["fedcs"] - gaps["lesson"], above(), "points"))
    return parts


@_claim("global-loss", "The global loss of Eq. (1) falls alongside", "is minimised", "fig5")
def _global_loss(results: Results) -> list[Part]:
    return [
        Part(
            f"{label}, {_called(name)}: last loss over first",
            client_figure(
                results,
                f"{name}-{dataset}",
                lambda looks: float(looks["global_loss"].iloc[-1] / looks["global_loss"].iloc[0]),
                ROUNDS,
            ),
            below(1),
            "times",
        )
        for label, dataset in DATASETS.items()
        for name in _CALLED
    ]


@_claim("infinite-deadline", "LESSON with τ → ∞ is FedAvg", "acts as FedAvg", "limits")
def _infinite(results: Results) -> list[Part]:
    rounds = 1000
    pairs = zip(results["lesson-mnist-deadline_s=inf"], results["fedavg-mnist"], strict=True)
    curves = [(ours.up_to(rounds), theirs.up_to(rounds)) for ours, theirs in pairs]
    columns = ["round", "time_s", "accuracy"]
    off = [float(np.abs(ours[columns].to_numpy() - theirs[columns].to_numpy()).max()) for ours, theirs in curves]
    return [Part("greatest difference in round, time or accuracy", np.array(off), near(0, 0), "times")]


@_claim("zero-deadline", "LESSON with τ → 0 acts as asynchronous FL", "acts as asynchronous FL", "limits")
def _zero(_: Results) -> list[Part]:
    options = load_item("limits").options
    draws = fleets.towards_zero((0.1,), options["num_draws"], options["until_s"])
    return [
        Part("τ = 0.1 s: merges of a single update", draws["single_share"].to_numpy(), above(0.5)),
        Part("updates a second over the asynchronous", draws["updates_of_async"].to_numpy(), near(1, 0.02), "times"),
    ]


@_claim(
    "asynchronous-diverges", "As τ → 0 the convergence issue of asynchronous FL appears", "convergence issue", "limits"
)
def _converges_worse(results: Results) -> list[Part]:
    parts = []
    for label, cap in (("step size jδ", "-lr_cap=inf"), ("at most 1", ""), ("step size δ", "-lr_cap=0.1")):
        usual = accuracy_at(results, f"lesson-mnist{'' if cap == '-lr_cap=inf' else cap}", 6000.0)
        least = per_seed(
            results,
            f"lesson-mnist-deadline_s=0.1-ensure_first_tier=false{cap}",
            lambda run: 0.0 if run.stopped else float(run.curve["accuracy"].tail(3).mean()),
        )
        parts.append(Part(f"{label}: accuracy at τ = 20 less at 0.1", usual - least, above(), "points"))
    return parts


@_claim("asynchronous-communication", "Asynchronous FL costs more communication", "higher cost", "limits", "fig8")
def _communication(results: Results) -> list[Part]:
    target = 0.8
    parts = []
    for tau in ("1", "5"):
        series = f"lesson-mnist-deadline_s={tau}-ensure_first_tier=false"
        ratio = times_longer(results, series, "lesson-mnist", target, "uploads")
        parts.append(Part(f"MNIST: uploads of τ = {tau} to {target:.0%} over those of 20", ratio, above(1), "times"))
    for beta in ("0.1", "1"):
        target = common_target(results, [_deadline(tau, beta) for tau in (10, 60)])
        ratio = times_longer(results, _deadline(10, beta), _deadline(60, beta), target, "uploads")
        label = f"CIFAR-10, β = {beta}: uploads of τ = 10 to {target:.0%} over those of 60"
        parts.append(Part(label, ratio, above(1), "times"))
    return parts


@_claim("step-size", "The step size is δ = 0.1", "0.1 in the text; 0.1 and 0.02 in the released versions", "authors")
def _step_size(results: Results) -> list[Part]:
    parts = []
    for label, dataset in DATASETS.items():
        rows = [row for row in load_item("authors").rows if dataset in row["series"] and "step_sizes" not in row]
        off = {suffix: _distance(results, rows, suffix) for suffix in ("", "-learning_rate=0.02")}
        parts.append(
            Part(
                f"{label}: how much farther δ = 0.02 is from the released",
                off["-learning_rate=0.02"] - off[""],
                above(),
                "points",
            )
        )
    return parts


def _distance(results: Results, rows: Sequence[Mapping[str, Any]], suffix: str) -> FloatArray:
    """Root mean square distance of accuracies to the released ones, per seed."""
    off = [last_accuracy(results, row["series"] + suffix, row["rounds"]) - np.mean(row["released"]) for row in rows]
    distance: FloatArray = np.sqrt(np.mean(np.square(off), axis=0))
    return distance


_round_lengths = cache(fleets.round_lengths)


def _round_s(preset: str, strategy: str) -> FloatArray:
    """Seconds of a round in each draw of Table II."""
    draws = _round_lengths()
    return draws[(draws["scenario"] == preset) & (draws["strategy"] == strategy)]["round_s"].to_numpy()


_CALLED = {"lesson": "LESSON", "fedavg": "FedAvg", "fedcs": "FedCS"}
_called = _CALLED.__getitem__


def _deadline(tau: int, beta: str) -> str:
    """The series of LESSON on CIFAR-10 with a deadline."""
    return "lesson-cifar10" + ("" if tau == 20 else f"-deadline_s={tau}") + BETAS[beta]


def _order(results: Results, label: str, suffix: str) -> list[Part]:
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-{suffix}", ROUNDS) for name in _CALLED)
    return [
        Part(f"{label}LESSON − FedAvg", lesson - fedavg, near(0, SIMILAR), "points"),
        Part(f"{label}LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]


def _slower(results: Results, other: str, suffix: str, label: str) -> Part:
    """How many times as long as LESSON another takes to the highest target that LESSON and FedAvg always reach."""
    lesson, fedavg = f"lesson-{suffix}", f"fedavg-{suffix}"
    target = common_target(results, [lesson, fedavg], ROUNDS)
    ratio = times_longer(results, f"{other}-{suffix}", lesson, target, "time_s", ROUNDS)
    return Part(f"{label}time of {_called(other)} to {target:.0%} over LESSON's", ratio, above(1), "times")
