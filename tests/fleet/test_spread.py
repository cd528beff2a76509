"""Latencies that are drawn from distributions."""

import math

import numpy as np
import pytest

from lesson.core.random import key
from lesson.fleet.spread import DISTRIBUTIONS, MAX_CV, MIN_FACTOR, Spread

KEY = key(3, "latency")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("cv", [0.1, 0.3])
def test_draws_have_the_mean_and_the_standard_deviation(name: str, cv: float) -> None:
    place = [*DISTRIBUTIONS].index(name)
    factors = Spread(np.array([cv]), np.array([place])).factors(KEY, np.zeros(200_000, np.int64), np.arange(200_000))
    assert factors.mean() == pytest.approx(1, abs=5 * cv / math.sqrt(200_000))
    assert factors.std() == pytest.approx(cv, rel=0.015)


def test_shapes_of_distributions() -> None:
    """Medians at a deviation of 0.5: log-normal, exp(−ln(1.25) / 2) = 0.8944; gamma with shape 4, 3.6721 / 4 = 0.9180.

    A half-normal latency with the largest deviation begins at 0, and its median is 0.6745 / 0.7979 = 0.8453. A normal
    one is cut off at MIN_FACTOR.
    """
    cv = np.array([1.0, 0.5, MAX_CV["half-normal"], 0.5])
    clients = np.repeat(np.arange(4), 100_001)
    drawn = Spread(cv, np.arange(4)).factors(KEY, clients, np.tile(np.arange(100_001), 4)).reshape(4, -1)
    assert np.median(drawn, axis=1) == pytest.approx([1, 0.8944, 0.8453, 0.9180], rel=0.01)
    assert drawn.min(axis=1)[[0, 2]].tolist() == [MIN_FACTOR, MIN_FACTOR]
    assert np.mean(drawn[0] == MIN_FACTOR) == pytest.approx(0.1611, rel=0.03)  # the probability of z < −0.99


def test_draw_depends_only_on_client_and_index() -> None:
    spread = Spread(np.array([0.2, 0.0, 0.3]), np.array([0, 0, 3]))
    alone = spread.factors(KEY, np.array([2]), np.array([5]))
    together = spread.factors(KEY, np.array([1, 0, 2]), np.array([5, 5, 5]))
    assert (together[0], together[2]) == (1.0, alone[0])
    assert spread.first(2).factors(KEY, np.array([0]), np.array([5])) == together[1]
