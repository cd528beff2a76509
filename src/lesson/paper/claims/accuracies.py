"""Claims about the accuracy and the speed of the three strategies: Fig. 5 to 7."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lesson.arrays import FloatArray
from lesson.paper.claims.base import BETAS, CALLED, DATASETS, ROUNDS, claim, longer
from lesson.paper.items import load_item
from lesson.paper.measures import accuracy_at, client_figure, common_target, last_accuracy
from lesson.paper.results import Results
from lesson.paper.verdicts import Part, above, below, near

NUM_CLASSES = 10
SIMILAR = 0.05
"""Accuracies this near are similar: the authors' own files differ by as much where the text calls them so."""
SIMILAR_ROUNDS = 0.25
"""So are numbers of rounds, as a share of each other."""


@claim(
    "accuracy-cifar10", "Final test accuracy on CIFAR-10, β = 1, τ = 20 s", "LESSON, FedAvg ~70 %; FedCS ~60 %", "fig5"
)
def _accuracy_cifar10(results: Results) -> list[Part]:
    said = {"lesson": 0.7, "fedavg": 0.7, "fedcs": 0.6}
    return [
        Part(CALLED[name], last_accuracy(results, f"{name}-cifar10", ROUNDS), near(value, 0.05))
        for name, value in said.items()
    ]


@claim("accuracy-mnist", "Final test accuracy on MNIST, β = 1, τ = 20 s", "LESSON, FedAvg ~95 %; FedCS ~90 %", "fig5")
def _accuracy_mnist(results: Results) -> list[Part]:
    said = {"lesson": 0.95, "fedavg": 0.95, "fedcs": 0.9}
    return [
        Part(CALLED[name], last_accuracy(results, f"{name}-mnist", ROUNDS), near(value, 0.025))
        for name, value in said.items()
    ]


@claim("order-beta1", "LESSON is as accurate as FedAvg, and more than FedCS, at β = 1", "similar; higher", "fig5")
def _order_beta1(results: Results) -> list[Part]:
    return [part for label, name in DATASETS.items() for part in _order(results, f"{label}: ", name)]


@claim("order-iid", "Near IID (β = 10) LESSON is as accurate as FedAvg, and more than FedCS", "similar; higher", "fig6")
def _order_iid(results: Results) -> list[Part]:
    return _order(results, "", "cifar10-beta=10")


@claim(
    "order-beta0.1",
    "At β = 0.1 FedAvg is more accurate than LESSON, and LESSON than FedCS",
    "FedAvg > LESSON > FedCS",
    "fig6",
)
def _order_beta01(results: Results) -> list[Part]:
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-cifar10-beta=0.1", ROUNDS) for name in CALLED)
    return [
        Part("FedAvg − LESSON", fedavg - lesson, above(), "points"),
        Part("LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]


@claim(
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


@claim(
    "per-round",
    "Per round LESSON converges as fast as FedAvg, and slightly faster than FedCS",
    "similar; slightly faster",
    "fig5",
)
def _per_round(results: Results) -> list[Part]:
    parts = []
    for label, name in DATASETS.items():
        lesson, fedavg, fedcs = (f"{strategy}-{name}" for strategy in CALLED)
        target = common_target(results, [lesson, fedavg], ROUNDS)
        for other, called, rule in ((fedavg, "FedAvg", near(1, SIMILAR_ROUNDS)), (fedcs, "FedCS", above(1))):
            what = f"{label}: rounds of {called} to {target:.0%} over LESSON's"
            parts.append(longer(results, what, other, lesson, target, "round", rule, ROUNDS))
    return parts


@claim("over-time", "Over time LESSON converges faster than FedAvg", "faster", "fig5")
def _over_time(results: Results) -> list[Part]:
    return [_slower(results, "fedavg", name, f"{label}: ") for label, name in DATASETS.items()]


@claim("over-time-printed", "The same with the parameters of the text", "faster", "printed")
def _over_time_printed(results: Results) -> list[Part]:
    return [_slower(results, "fedavg", f"{name}-printed", f"{label}: ") for label, name in DATASETS.items()]


@claim("fastest-each-beta", "LESSON is the fastest over time at every β", "much faster than FedAvg and FedCS", "fig7")
def _fastest(results: Results) -> list[Part]:
    return [
        _slower(results, other, f"cifar10{suffix}", f"β = {beta}: ")
        for beta, suffix in BETAS.items()
        for other in ("fedavg", "fedcs")
    ]


@claim(
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


@claim("fedcs-overfits", "FedCS fits the data of the fast clients only", "overfits", "fig6")
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
            for name in CALLED
        }
        label = f"β = {beta}: FedCS on tier 1 less on others"
        parts.append(Part(label, gaps["fedcs"], above(), "points"))
        parts.append(Part(f"{label}, beyond LESSON's", gaps["fedcs"] - gaps["lesson"], above(), "points"))
    return parts


@claim("global-loss", "The global loss of Eq. (1) falls alongside", "is minimised", "fig5")
def _global_loss(results: Results) -> list[Part]:
    return [
        Part(
            f"{label}, {CALLED[name]}: last loss over that of guessing",
            client_figure(
                results,
                f"{name}-{dataset}",
                lambda looks: float(looks["global_loss"].iloc[-1] / math.log(NUM_CLASSES)),
                ROUNDS,
            ),
            below(1),
            "times",
        )
        for label, dataset in DATASETS.items()
        for name in CALLED
    ]


@claim("step-size", "The step size is δ = 0.1", "0.1 in the text; 0.1 and 0.02 in the released versions", "authors")
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


def _order(results: Results, label: str, suffix: str) -> list[Part]:
    lesson, fedavg, fedcs = (last_accuracy(results, f"{name}-{suffix}", ROUNDS) for name in CALLED)
    return [
        Part(f"{label}LESSON − FedAvg", lesson - fedavg, near(0, SIMILAR), "points"),
        Part(f"{label}LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]


def _slower(results: Results, other: str, suffix: str, label: str) -> Part:
    """How many times as long as LESSON another takes to the highest target that LESSON and FedAvg always reach."""
    lesson, fedavg = f"lesson-{suffix}", f"fedavg-{suffix}"
    target = common_target(results, [lesson, fedavg], ROUNDS)
    what = f"{label}time of {CALLED[other]} to {target:.0%} over LESSON's"
    return longer(results, what, f"{other}-{suffix}", lesson, target, "time_s", rounds=ROUNDS)
