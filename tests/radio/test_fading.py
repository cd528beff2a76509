"""Fading: moments of |h|² that follow from its distribution, over a million draws.

Rayleigh: exponential with mean 1 and variance 1. Rician, h = √(K/(K+1)) + CN(0, 1/(K+1)): mean 1 and variance
(1 + 2K)/(1 + K)²; at K = 6 dB = 3.98107: 8.96214 / 24.81106 = 0.361216.
"""

import numpy as np
import pytest

from lesson.core.random import key
from lesson.radio import fading_gain

CLIENTS, BLOCKS = np.arange(10_000)[:, None], np.arange(100)
KEY = key(0, "fading")


def gains(kind, k_db: float = 6.0, clients=CLIENTS, blocks=BLOCKS) -> np.ndarray:
    return fading_gain(kind, k_db, KEY, clients, blocks)


def test_none_changes_nothing() -> None:
    assert np.array_equal(gains("none"), np.ones((10_000, 100)))


def test_moments_of_rayleigh() -> None:
    drawn = gains("rayleigh")
    assert drawn.shape == (10_000, 100)
    assert drawn.mean() == pytest.approx(1, abs=0.005)
    assert drawn.var() == pytest.approx(1, abs=0.015)  # strays by √(8/10⁶) = 0.003
    assert np.mean(drawn < 0.1) == pytest.approx(1 - np.exp(-0.1), abs=0.002)  # a fade of 10 dB: 9.5 %


@pytest.mark.parametrize("k_db", [-10.0, 0.0, 6.0, 20.0])
def test_moments_of_rician(k_db: float) -> None:
    k, drawn = 10 ** (k_db / 10), gains("rician", k_db)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(1, abs=0.005)
    assert drawn.var() == pytest.approx((1 + 2 * k) / (1 + k) ** 2, rel=0.015)


def test_rician_variance_worked_by_hand() -> None:
    assert gains("rician", 6.0).var() == pytest.approx(0.361216, rel=0.01)


def test_without_a_direct_path_rician_is_rayleigh() -> None:
    assert np.allclose(gains("rician", -np.inf), gains("rayleigh"), rtol=1e-12, atol=0)
    assert np.allclose(gains("rician", -150.0), gains("rayleigh"), rtol=0, atol=1e-5)


def test_with_a_direct_path_alone_nothing_fades() -> None:
    assert np.allclose(gains("rician", 150.0), 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["rayleigh", "rician"])
def test_clients_and_blocks_fade_on_their_own(kind) -> None:
    drawn = gains(kind)
    for one, other in [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn[1:, 1:], drawn[:-1, :-1])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.005


@pytest.mark.parametrize("kind", ["none", "rayleigh", "rician"])
def test_the_fading_of_a_client_does_not_depend_on_other_clients(kind) -> None:
    drawn, some = gains(kind), np.array([9_999, 4, 77])
    assert np.array_equal(gains(kind, clients=some[:, None], blocks=np.array([8, 2])), drawn[some][:, [8, 2]])
    assert np.array_equal(gains(kind, clients=some, blocks=np.array(99)), drawn[some, 99])
