"""Claims about the clients' own data: label distributions, which clients a model fits, and the global loss."""

import math

import numpy as np
import pandas as pd

from lesson.core.arrays import FloatArray
from lesson.experiments.run import Run
from lesson.learn.data import load_samples
from lesson.learn.metric import GUESSED
from lesson.learn.partition import make_partition
from lesson.paper.claims.base import BETAS, CALLED, DATASETS, ROUNDS, claim
from lesson.paper.series import Series, client_figure, per_seed
from lesson.paper.verdicts import Part, above, below
from lesson.settings.settings import Settings

NUM_SEEDS = 20
REGROWTH = 1.1
"""A final loss of at least this many times the lowest loss counts as growing again."""


@claim(
    "labels-balanced",
    "A larger β gives clients a more balanced mix of labels",
    "more balanced",
    "fig4",
    constructed=True,
)
def _labels_balanced(_: Series) -> list[Part]:
    largest = {beta: _largest_shares(beta) for beta in (0.1, 1.0, 10.0)}
    return [
        Part.of(
            f"share of the most frequent label, β = {low:g} − β = {high:g}",
            largest[low] - largest[high],
            above(),
            "points",
        )
        for low, high in ((0.1, 1.0), (1.0, 10.0))
    ]


@claim("fedcs-overfits", "FedCS overfits to the data of the fast clients", "overfits", "fig5", "fig6")
def _overfits(results: Series) -> list[Part]:
    """A model always fits data better that it was trained on, so only held-out data counts, if it was evaluated."""
    parts = []
    for label, suffix in _settings().items():
        names = [f"{name}-{suffix}" for name in ("fedcs", "lesson")]
        for kind, added, gaps in (
            ("held-out", False, [per_seed(results, name, _held_out_gap) for name in names]),
            ("training", True, [client_figure(results, name, _gap, ROUNDS) for name in names]),
        ):
            if np.isnan(gaps).all():  # the runs of our first studies were not evaluated on held-out data
                continue
            fedcs, lesson = gaps
            what = f"{label}: accuracy on {kind} data, tier 1 − other tiers"
            parts.append(Part.of(f"{what}, FedCS", fedcs, above(), "points", added=added))
            parts.append(Part.of(f"{what}, FedCS − LESSON", fedcs - lesson, above(), "points", added=added))
    return parts


@claim(
    "global-loss",
    "The global loss of Eq. (1) is minimized: with LESSON, it ends near its minimum, below the loss of guessing",
    "can be minimized",
    "fig5",
    "fig6",
)
def _global_loss(results: Series) -> list[Part]:
    parts = []
    for beta in ("0.1", "1"):
        for name, called in CALLED.items():
            series = f"{name}-cifar10{BETAS[beta]}"
            last, lowest = (client_figure(results, series, figure, ROUNDS) for figure in (_last_loss, _lowest_loss))
            label, added = f"β = {beta}, {called}: final loss", name != "lesson"
            guessing = last / -math.log(GUESSED)
            parts.append(Part.of(f"{label} / loss of guessing", guessing, below(1), "times", added=added))
            parts.append(Part.of(f"{label} / lowest loss", last / lowest, below(REGROWTH), "times", added=added))
    return parts


def _settings() -> dict[str, str]:
    """Return the suffix of a series' name by the label of its data setting."""
    return {f"CIFAR-10, β = {beta}": f"cifar10{suffix}" for beta, suffix in BETAS.items()} | {
        "MNIST": DATASETS["MNIST"]
    }


def _held_out_gap(run: Run) -> float:
    fast, others = run.summary.get("accuracy_by_tier", (math.nan, math.nan))
    return float(fast - others)


def _gap(looks: pd.DataFrame) -> float:
    return float((looks["accuracy_tier1"] - looks["accuracy_others"]).tail(3).mean())


def _last_loss(looks: pd.DataFrame) -> float:
    return float(looks["global_loss"].tail(3).mean())


def _lowest_loss(looks: pd.DataFrame) -> float:
    return float(looks["global_loss"].rolling(3).mean().min())


def _largest_shares(beta: float) -> FloatArray:
    """Return the mean over clients of the share of a client's most frequent label on MNIST, one value per seed."""
    labels, settings = load_samples("mnist").train_targets, Settings(beta=beta)
    means = []
    for seed in range(NUM_SEEDS):
        partition = make_partition(settings.with_changes(seed=seed), len(labels), labels)
        counts = [np.bincount(labels[partition[client]]) for client in range(settings.fleet.num_clients)]
        means.append(np.mean([count.max() / count.sum() for count in counts]))
    return np.array(means)
