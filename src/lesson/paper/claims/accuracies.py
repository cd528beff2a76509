"""Claims about the accuracy and the convergence speed of the three strategies (Fig. 5 to 7)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Series, accuracy_at, last_accuracy
from lesson.paper.claims.base import BETAS, CALLED, DATASETS, ROUNDS, claim, final, slower
from lesson.paper.items import STEP_SIZES, load_item
from lesson.paper.verdicts import Part, above, near

SIMILAR = {"cifar10": 0.05, "mnist": 0.01}
"""Largest difference between accuracies that count as similar, by data set.

It is 5 points on CIFAR-10 because the authors' released results differ by that much where the text calls them similar.
"""
SIMILAR_ROUNDS = 0.25
"""Largest relative difference between numbers of rounds that count as similar."""
MUCH_FASTER = 1.5


@claim(
    "accuracy-cifar10", "Final test accuracy on CIFAR-10, β = 1, τ = 20 s", "LESSON, FedAvg ~70 %; FedCS ~60 %", "fig5"
)
def _accuracy_cifar10(results: Series) -> list[Part]:
    return _finals(results, "cifar10", {"lesson": 0.7, "fedavg": 0.7, "fedcs": 0.6}, 0.05)


@claim("accuracy-mnist", "Final test accuracy on MNIST, β = 1, τ = 20 s", "LESSON, FedAvg ~95 %; FedCS ~90 %", "fig5")
def _accuracy_mnist(results: Series) -> list[Part]:
    return _finals(results, "mnist", {"lesson": 0.95, "fedavg": 0.95, "fedcs": 0.9}, 0.025)


@claim(
    "order-beta1", "At β = 1 LESSON is as accurate as FedAvg and more accurate than FedCS", "similar; higher", "fig5"
)
def _order_beta1(results: Series) -> list[Part]:
    return [part for label, name in DATASETS.items() for part in _order(results, f"{label}: ", name)]


@claim(
    "order-iid",
    "Near IID (β = 10) LESSON is as accurate as FedAvg and more accurate than FedCS",
    "similar; higher",
    "fig6",
)
def _order_iid(results: Series) -> list[Part]:
    return _order(results, "", "cifar10-beta=10")


@claim(
    "order-beta0.1",
    "At β = 0.1 FedAvg is more accurate than LESSON, and LESSON more accurate than FedCS",
    "FedAvg > LESSON > FedCS",
    "fig6",
)
def _order_beta01(results: Series) -> list[Part]:
    lesson, fedavg, fedcs = final(results, "cifar10-beta=0.1")
    return [
        Part("FedAvg − LESSON", fedavg - lesson, above(), "points"),
        Part("LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]


@claim(
    "gap-shrinks",
    "The gap between FedAvg and LESSON shrinks as β grows from 0.1 to 10; the accuracy of FedCS stays the same",
    "shrinks; unchanged",
    "fig6",
)
def _gap_shrinks(results: Series) -> list[Part]:
    (lesson, fedavg, fedcs), (lesson_10, fedavg_10, fedcs_10) = (
        final(results, f"cifar10-beta={beta}") for beta in ("0.1", "10")
    )
    return [
        Part("gap at β = 0.1 − gap at β = 10", (fedavg - lesson) - (fedavg_10 - lesson_10), above(), "points"),
        Part("FedCS at β = 10 − FedCS at β = 0.1", fedcs_10 - fedcs, near(0, 0.02), "points"),
    ]


@claim(
    "per-round",
    "Per round, LESSON converges as fast as FedAvg and slightly faster than FedCS",
    "similar; slightly faster",
    "fig5",
)
def _per_round(results: Series) -> list[Part]:
    rules = {"fedavg": near(1, SIMILAR_ROUNDS), "fedcs": above(1)}
    return [
        slower(results, other, name, f"{label}: ", rule, "round")
        for label, name in DATASETS.items()
        for other, rule in rules.items()
    ]


@claim("over-time", "Over time, LESSON converges faster than FedAvg", "faster", "fig5")
def _over_time(results: Series) -> list[Part]:
    return [slower(results, "fedavg", name, f"{label}: ") for label, name in DATASETS.items()]


@claim("over-time-fedcs", "Over time, LESSON converges faster than FedCS", "faster", "fig5")
def _over_time_fedcs(results: Series) -> list[Part]:
    return [slower(results, "fedcs", name, f"{label}: ") for label, name in DATASETS.items()]


@claim(
    "over-time-printed",
    "With the printed parameters, too, LESSON converges faster over time than FedAvg",
    "faster",
    "printed",
)
def _over_time_printed(results: Series) -> list[Part]:
    return [slower(results, "fedavg", f"{name}-printed", f"{label}: ") for label, name in DATASETS.items()]


@claim(
    "much-faster-each-beta",
    "At every β, FedAvg and FedCS take much longer than LESSON (more than 1.5 times)",
    "much faster",
    "fig7",
)
def _much_faster(results: Series) -> list[Part]:
    return [
        slower(results, other, f"cifar10{suffix}", f"β = {beta}: ", above(MUCH_FASTER))
        for beta, suffix in BETAS.items()
        for other in ("fedavg", "fedcs")
    ]


@claim(
    "mnist-20000s",
    "On MNIST, LESSON has converged by 20,000 s while FedAvg is still under-trained",
    "converged; under-trained",
    "fig5",
)
def _mnist_at_20000(results: Series) -> list[Part]:
    short = {
        name: last_accuracy(results, f"{name}-mnist", ROUNDS) - accuracy_at(results, f"{name}-mnist", 20_000.0)
        for name in ("lesson", "fedavg")
    }
    return [
        Part("LESSON: final accuracy − accuracy at 20,000 s", short["lesson"], near(0, 0.01), "points"),
        Part("FedAvg: final accuracy − accuracy at 20,000 s", short["fedavg"], above(0.01), "points"),
    ]


@claim("step-size", "The step size is δ = 0.1", "0.1 in the text; 0.1 and 0.02 in the released versions", "authors")
def _step_size(results: Series) -> list[Part]:
    parts = []
    for label, dataset in DATASETS.items():
        rows = [row for row in load_item("authors").rows if dataset in row["series"] and "step_sizes" not in row]
        usual, other = (_distance(results, rows, suffix) for suffix in STEP_SIZES.values())
        what = f"{label}: distance to the released accuracies, δ = 0.02 − δ = 0.1"
        parts.append(Part(what, other - usual, above(), "points"))
    return parts


def _finals(results: Series, dataset: str, said: Mapping[str, float], within: float) -> list[Part]:
    """Compare final accuracies with the paper's; its "~" is read as ± half the difference between its values."""
    return [
        Part(CALLED[name], last_accuracy(results, f"{name}-{dataset}", ROUNDS), near(value, within))
        for name, value in said.items()
    ]


def _distance(results: Series, rows: Sequence[Mapping[str, Any]], suffix: str) -> FloatArray:
    """Return the root mean square difference between our and the authors' released accuracies, one value per seed."""
    off = [last_accuracy(results, row["series"] + suffix, row["rounds"]) - np.mean(row["released"]) for row in rows]
    distance: FloatArray = np.sqrt(np.mean(np.square(off), axis=0))
    return distance


def _order(results: Series, label: str, suffix: str) -> list[Part]:
    lesson, fedavg, fedcs = final(results, suffix)
    return [
        Part(f"{label}LESSON − FedAvg", lesson - fedavg, near(0, SIMILAR[suffix.partition("-")[0]]), "points"),
        Part(f"{label}LESSON − FedCS", lesson - fedcs, above(), "points"),
    ]
