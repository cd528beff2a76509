"""Measures of runs; every number here can be checked by hand."""

import math

import numpy as np
import pytest

from helpers.tuned import made
from lesson.experiments.measures import (
    Estimate,
    difference,
    half_intervals,
    holm,
    mean_until,
    ratio,
    sign_test_rank,
    spent_until,
    to_target,
)
from lesson.experiments.run import Run
from lesson.learn.metric import ACCURACY
from lesson.settings.settings import Settings


def run(accuracies: list[float], seed: int = 0) -> Run:
    """Return a run with evaluations every 100 s and 5 rounds, and 10 uploads and 2.5 kJ between them."""
    return made(Settings(seed=seed, rounds=50), accuracies)


def test_time_to_a_target_is_the_first_of_three_in_a_row() -> None:
    """Means of three: .4, .5, .6, .7; one good evaluation alone, the .9, does not count."""
    accuracies, times_s = [0.1, 0.9, 0.2, 0.4, 1.2, 0.5], 10.0 * np.arange(1, 7)
    assert ACCURACY.time_to(0.4, accuracies, times_s) == 30.0
    assert ACCURACY.time_to(0.5, accuracies, times_s) == 40.0
    assert ACCURACY.time_to(0.7, accuracies, times_s) == 60.0
    assert ACCURACY.time_to(0.8, accuracies, times_s) is None
    assert ACCURACY.time_to(0.1, [0.5, 0.5], [10.0, 20.0]) is None


def test_intervals_by_hand() -> None:
    """1, 2, 3: standard deviation 1, t = 4.3027 for two degrees of freedom, 4.3027 / √3 = 2.4841."""
    assert half_intervals(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.4841, rel=1e-4)
    assert math.isnan(half_intervals(np.array([1.0])))
    # t = 2.120 for 16 degrees of freedom, 1.984 for 99.
    assert half_intervals(np.arange(17.0)) == pytest.approx(2.120 * np.std(np.arange(17), ddof=1) / 17**0.5, rel=1e-3)
    assert half_intervals(np.arange(100.0)) == pytest.approx(1.984 * np.std(np.arange(100), ddof=1) / 10, rel=1e-3)


def test_target_is_reached_with_the_mean_of_three() -> None:
    finished = run([0.4, 0.5, 0.6, 0.7])
    assert to_target(finished, 0.5) == 300.0
    assert to_target(finished, 0.5, "round") == 15
    assert to_target(finished, 0.5, "uploads") == 30
    assert to_target(finished, 0.5, "energy_j") == 7500.0
    assert to_target(finished, 0.5, rounds=10) == math.inf
    assert to_target(finished, 0.7) == math.inf


def test_mean_over_time_by_hand() -> None:
    """From 0.1 at the start to 0.3 at 100 s and 0.5 at 200 s: 20 + 40; then on to 0.7 at 300 s, 60, or level, 50."""
    assert mean_until(run([0.3, 0.5, 0.7]), 300.0) == pytest.approx((20 + 40 + 60) / 300)
    assert mean_until(run([0.3, 0.5]), 300.0) == pytest.approx((20 + 40 + 50) / 300)
    assert mean_until(run([0.3, 0.5, 0.7]), 200.0) == pytest.approx((20 + 40) / 200)
    assert mean_until(run([]), 200.0) == 0.1
    diverged = made(Settings(rounds=50), [0.3, 0.5], "the loss is infinite")
    assert mean_until(diverged, 300.0) == pytest.approx((20 + 40 + 10) / 300)
    assert mean_until(diverged, 150.0) == pytest.approx((20 + 15) / 150)


def test_p_values_by_hand() -> None:
    """1, 2, 3 against 0: t = 2·√3 with two degrees of freedom, p = 1 − t/√(t² + 2) = 0.0742; then Holm's correction."""
    assert Estimate.of(np.array([1.0, 2.0, 3.0])).p_value(0.0) == pytest.approx(1 - math.sqrt(12 / 14))
    assert Estimate.of(np.array([2.0, 2.0, 2.0])).p_value(2.0) == 1.0
    assert math.isnan(Estimate.of(np.array([1.0, 2.0])).p_value(0.0))
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert holm([math.nan, 0.02]) == pytest.approx([math.nan, 0.04], nan_ok=True)


def test_unknown_energy_to_a_target() -> None:
    finished = run([0.4, 0.5, 0.6])
    del finished.curve["energy_j"]
    assert math.isnan(to_target(finished, 0.5, "energy_j"))


def estimate(low: list[float], high: list[float] | None = None) -> Estimate:
    return Estimate(np.array(low), np.array(low if high is None else high))


def test_verdict_of_paired_differences() -> None:
    """1, 2, 3: 2 ± 2.484, whose interval contains 0; 2, 3, 4: 3 ± 2.484, from 0.516 on."""
    zero = estimate([0.0, 0.0, 0.0])
    assert difference(estimate([1.0, 2.0, 3.0]), zero).verdict(0) == "undecided"
    assert difference(estimate([2.0, 3.0, 4.0]), zero).verdict(0) == "higher"
    assert difference(zero, estimate([2.0, 3.0, 4.0])).verdict(0) == "lower"
    assert difference(estimate([2.0, 3.0, 4.0]), zero).verdict(0, margin=6.0) == "equivalent"
    assert difference(estimate([2.0, 3.0]), estimate([0.0, 0.0])).verdict(0) == "undecided"  # fewer than three seeds


def test_a_run_that_never_reaches_a_target_is_a_bound() -> None:
    """Ours takes 100 s each; theirs never in 150 s: at most 100 / 150. It takes six seeds to decide."""
    for seeds, verdict in ((5, "undecided"), (6, "lower")):
        ours, theirs = estimate([100.0] * seeds), estimate([150.0] * seeds, [math.inf] * seeds)
        assert ratio(ours, theirs).verdict(1) == verdict
        assert difference(ours, theirs).verdict(0) == verdict
    assert ratio(ours, theirs).interval == (0.0, pytest.approx(100 / 150))
    both = estimate([150.0] * 6, [math.inf] * 6)
    assert ratio(both, both).verdict(1) == "undecided"
    assert math.isnan(float(ratio(ours, theirs)))


def test_costs_of_runs_that_never_reach_a_target_are_bounds() -> None:
    runs = [run([0.5, 0.5, 0.5, 0.5]), run([0.1, 0.2, 0.3, 0.4], seed=1)]
    spent = spent_until(runs, 0.5)
    assert spent.low.tolist() == [300.0, 400.0]
    assert spent.high.tolist() == [300.0, math.inf]


def test_ratios_of_times_are_paired() -> None:
    """300 s and 400 s against 600 s and at least 800 s."""
    fast = spent_until([run([0.6] * 3), run([0.0, *[0.6] * 3], seed=1)], 0.6)
    slow = spent_until([run([0.0] * 3 + [0.6] * 3), run([0.0] * 8, seed=1)], 0.6)
    assert (ratio(slow, fast).low.tolist(), ratio(slow, fast).high.tolist()) == ([2.0, 2.0], [2.0, math.inf])
    assert (ratio(fast, slow).low.tolist(), ratio(fast, slow).high.tolist()) == ([0.5, 0.0], [0.5, 0.5])


def test_bounds_are_never_averaged() -> None:
    """The times of FedCS over those of LESSON to 60 % on CIFAR-10: FedCS is faster in two of five seeds."""
    times = estimate([0.907, 2.5, 0.795, 1.152, 1.09], [0.907, math.inf, 0.795, 1.152, 1.09])
    assert times.median == (1.09, 1.09)
    assert times.text("{:.2f}", " s") == "by seed 0.91, > 2.50, 0.80, 1.15, 1.09 s; median 1.09 s"
    assert estimate([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, math.inf, math.inf]).median == (2.0, math.inf)
    assert estimate([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, math.inf]).median == (2.5, 2.5)


def test_bounds_are_infinite_at_their_upper_end() -> None:
    """With ten values the interval reaches from the second to the ninth; the bound of 0.3 is the largest value."""
    ten = [0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9, 0.3]
    assert estimate(ten, [*ten[:9], math.inf]).interval == (0.4, 0.9)
    assert estimate(ten, [*ten[:8], math.inf, math.inf]).interval == (0.4, math.inf)


@pytest.mark.parametrize(("num_values", "rank"), [(1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6)])
def test_ranks_of_the_interval_of_a_median(num_values: int, rank: int) -> None:
    """No head in five tosses: 1/32 = 3.1 % > 2.5 %; in six 1.6 %. At most one head in nine: 10/512 = 2.0 %, in eight
    9/256 = 3.5 %. Of 20, at most five heads have 2.07 % and at most six 5.8 %."""
    assert sign_test_rank(num_values) == rank
