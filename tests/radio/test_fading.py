"""Fading: moments of |h|² that follow from its distribution, over 200,000 draws.

Rayleigh: exponential with mean 1 and variance 1. Rician, h = √(K/(K+1)) + CN(0, 1/(K+1)): mean 1 and variance
(1 + 2K)/(1 + K)².
"""

import numpy as np
import pytest

from lesson.core.random import key
from lesson.radio.fading import fading_gain

CLIENTS, BLOCKS = np.arange(4_000)[:, None], np.arange(50)
KEY = key(0, "fading")


def gains(kind, k_db: float = 6.0, clients=CLIENTS, blocks=BLOCKS) -> np.ndarray:
    return fading_gain(kind, k_db, KEY, clients, blocks)


def test_moments_of_rayleigh() -> None:
    drawn = gains("rayleigh")
    assert drawn.mean() == pytest.approx(1, abs=0.011)
    assert drawn.var() == pytest.approx(1, abs=0.03)  # strays by √(8/200,000) = 0.006
    assert np.mean(drawn < 0.1) == pytest.approx(1 - np.exp(-0.1), abs=0.0035)  # a fade of 10 dB: 9.5 %


@pytest.mark.parametrize(("k_db", "variance"), [(-10.0, 0.991736), (6.0, 0.361216), (20.0, 0.0197040)])
def test_moments_of_rician(k_db: float, variance: float) -> None:
    """(1 + 2K)/(1 + K)² with K = 0.1, 3.98107 and 100: 1.2/1.21, 8.96214/24.81106 and 201/10201."""
    drawn = gains("rician", k_db)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(1, abs=0.011)
    assert drawn.var() == pytest.approx(variance, rel=0.03)


def test_rician_fading_ranges_from_rayleigh_to_none() -> None:
    assert np.allclose(gains("rician", -np.inf), gains("rayleigh"), rtol=1e-12, atol=0)
    assert np.allclose(gains("rician", 150.0), 1, rtol=0, atol=1e-5)
    assert np.array_equal(gains("none"), np.ones((4_000, 50)))


def test_clients_and_blocks_fade_independently() -> None:
    drawn = gains("rician")
    for one, other in [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn[1:, 1:], drawn[:-1, :-1])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.0115


@pytest.mark.parametrize("kind", ["none", "rayleigh", "rician"])
def test_fading_of_a_client_does_not_depend_on_others(kind) -> None:
    drawn, some = gains(kind), np.array([3_999, 4, 77])
    assert np.array_equal(gains(kind, clients=some[:, None], blocks=np.array([8, 2])), drawn[some][:, [8, 2]])
