"""Measures of the runs of a series; every number here can be checked by hand."""

import math
from typing import Any

import pytest

from helpers.tuned import made
from lesson.experiments.measures import to_target
from lesson.experiments.run import Run
from lesson.paper.series import accuracy_at, by_series, common_target, last_accuracy
from lesson.settings.settings import Settings


def run(accuracies: list[float], seed: int = 0, strategy: str = "lesson", diverged: str = "", **settings: Any) -> Run:
    """Return a run with evaluations every 100 s and 5 rounds, and 10 uploads and 2.5 kJ between them."""
    return made(Settings(name=strategy, seed=seed, rounds=50, **settings), accuracies, diverged)


def test_runs_of_a_series_differ_only_in_their_seed() -> None:
    runs = by_series([run([0.5], seed=1), run([0.4]), run([0.3], strategy="fedavg"), run([0.3], beta=0.1)])
    seeds = {name: [one.seed for one in found] for name, found in runs.items()}
    assert seeds == {"lesson-mnist": [0, 1], "fedavg-mnist": [0], "lesson-mnist-beta=0.1": [0]}


def test_last_accuracy_is_the_mean_of_ten_or_of_the_last_quarter() -> None:
    long = by_series([run([0.0] * 20 + [0.5] * 9 + [0.6])])
    assert last_accuracy(long, "lesson-mnist", 150) == pytest.approx([(6 * 0.5 + 0.6) / 7])  # 7 of 30
    assert last_accuracy(long, "lesson-mnist", 120) == pytest.approx([4 * 0.5 / 6])  # 6 of 24
    both = by_series([run([0.0, 0.0, *[0.5] * 9, 0.6, 0.9]), run([0.2, 0.4, 0.6], seed=1)])
    assert last_accuracy(both, "lesson-mnist", 65) == pytest.approx([2 / 3, 0.6])  # 3 of 13, and 1 of 3
    assert last_accuracy(both, "lesson-mnist", 10) == pytest.approx([0.0, 0.4])


def test_diverged_run_counts_as_guessing() -> None:
    lost = by_series([run([0.9, 0.9, 0.9], diverged="no longer finite")])
    assert last_accuracy(lost, "lesson-mnist", 15).tolist() == [0.1]
    assert accuracy_at(lost, "lesson-mnist", 300.0).tolist() == [0.1]


def test_accuracy_at_a_time_is_the_mean_of_the_three_before() -> None:
    five = by_series([run([0.1, 0.2, 0.3, 0.4, 0.9])])
    assert accuracy_at(five, "lesson-mnist", 450.0) == pytest.approx([0.3])
    assert accuracy_at(five, "lesson-mnist", 50.0) == pytest.approx([0.1]), "before the first evaluation: a guess"


def test_common_target_is_the_highest_that_all_reach() -> None:
    quick, slow = run([0.9] * 3), run([0.55] * 3, strategy="fedavg")
    assert common_target(by_series([quick]), ["lesson-mnist"]) == 0.9
    assert common_target(by_series([quick, slow]), ["lesson-mnist", "fedavg-mnist"]) == 0.5
    assert math.isnan(common_target(by_series([run([0.1] * 9)]), ["lesson-mnist"]))
    assert to_target(run([0.1] * 9), math.nan) == math.inf, "there is no time without a target"
