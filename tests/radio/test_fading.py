"""Fading: moments of |h|² that follow from its distribution, over 200,000 draws.

Rayleigh: exponential with mean 1 and variance 1. Rician, h = √(K/(K+1)) + CN(0, 1/(K+1)): mean 1 and variance
(1 + 2K)/(1 + K)².
"""

import numpy as np
import pytest
from scipy.special import exp1, k1

from lesson.core.random import key
from lesson.radio.fading import Fading, fading_gain
from lesson.settings.sections import RadioSettings

CLIENTS, BLOCKS = np.arange(4_000)[:, None], np.arange(50)
KEY = key(0, "fading")


def gains(k_db: float, clients=CLIENTS, blocks=BLOCKS) -> np.ndarray:
    return fading_gain(k_db, KEY, clients, blocks)


def test_moments_of_rayleigh() -> None:
    drawn = gains(-np.inf)
    assert drawn.mean() == pytest.approx(1, abs=0.011)
    assert drawn.var() == pytest.approx(1, abs=0.03)  # strays by √(8/200,000) = 0.006
    assert np.mean(drawn < 0.1) == pytest.approx(1 - np.exp(-0.1), abs=0.0035)  # a fade of 10 dB: 9.5 %


@pytest.mark.parametrize(("k_db", "variance"), [(-10.0, 0.991736), (6.0, 0.361216), (20.0, 0.0197040)])
def test_moments_of_rician(k_db: float, variance: float) -> None:
    """(1 + 2K)/(1 + K)² with K = 0.1, 3.98107 and 100: 1.2/1.21, 8.96214/24.81106 and 201/10201."""
    drawn = gains(k_db)
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(1, abs=0.011)
    assert drawn.var() == pytest.approx(variance, rel=0.03)


def test_rician_fading_ranges_from_rayleigh_to_none() -> None:
    assert np.allclose(gains(-200.0), gains(-np.inf), rtol=1e-9, atol=1e-12)
    assert np.allclose(gains(150.0), 1, rtol=0, atol=1e-5)


def test_clients_and_blocks_fade_independently() -> None:
    drawn = gains(6.0)
    for one, other in [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1]), (drawn[1:, 1:], drawn[:-1, :-1])]:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.0115


@pytest.mark.parametrize("k_db", [-np.inf, 6.0])
def test_fading_of_a_client_does_not_depend_on_others(k_db: float) -> None:
    drawn, some = gains(k_db), np.array([3_999, 4, 77])
    assert np.array_equal(gains(k_db, clients=some[:, None], blocks=np.array([8, 2])), drawn[some][:, [8, 2]])


def test_ergodic_rate_of_rayleigh_has_a_closed_form() -> None:
    """E log2(1 + γ|h|²) = e^(1/γ)·E1(1/γ)/ln 2: 0.860347, 2.906515 and 5.884048 bit/s per Hz at 0, 10 and 20 dB."""
    snr = np.array([1.0, 10.0, 100.0])
    rate = Fading(RadioSettings(fading="rayleigh")).rate_bps(snr, -np.inf, 1.0)
    assert rate == pytest.approx([0.860347, 2.906515, 5.884048], rel=1e-5)
    between = np.power(10.0, np.arange(-2.03, 4.0, 0.37))  # points between those of the table
    assert Fading(RadioSettings(fading="rayleigh")).rate_bps(between, -np.inf, 1.0) == pytest.approx(
        np.exp(1 / between) * exp1(1 / between) / np.log(2), rel=1e-4
    )


def test_outage_and_cap_in_the_ergodic_rate() -> None:
    """∫ ln(1 + γx)·e^(−x) from a = m/γ to b = c/γ is e^(−a)·ln(1 + γa) − e^(−b)·ln(1 + γb) + e^(1/γ)·(E1(a + 1/γ) −
    E1(b + 1/γ)); above b, the rate is ln(1 + c) with probability e^(−b)."""
    radio = RadioSettings(fading="rayleigh", packet_error="outage", min_snr_db=3.0, max_bps_per_hz=4.0)
    snr, low, most = np.array([0.5, 5.0, 50.0]), 10**0.3, 15.0
    a, b = low / snr, most / snr
    tail = np.exp(1 / snr) * (exp1(a + 1 / snr) - exp1(b + 1 / snr))
    expected = (np.exp(-a) * np.log1p(low) + tail) / np.log(2)
    assert Fading(radio).rate_bps(snr, -np.inf, 1.0) == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize("k_db", [0.0, 9.0, 20.0])
def test_means_over_rician_fading_agree_with_draws(k_db: float) -> None:
    """Rates to four standard errors of 200,000 draws; error rates 1 − exp(−1.08/γ|h|²), with m = 0.334 dB, likewise."""
    fading, drawn = Fading(RadioSettings(fading="rician", packet_error="exponential")), gains(k_db).ravel()
    for snr in (0.1, 3.0, 100.0):
        for mean, values in (
            (fading.rate_bps(np.array([snr]), k_db, 1.0)[0], np.log2(1 + snr * drawn)),
            (fading.error_rate(np.array([snr]), k_db)[0], 1 - np.exp(-(10**0.0334) / (snr * drawn))),
        ):
            assert mean == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(drawn.size) + 1e-4 * mean)


def test_error_rate_without_fading() -> None:
    """m = 0.334 dB = 1.0799: 1 − e^(−1.0799/10) = 0.10237; under Rayleigh fading, 1 − 2√a·K1(2√a) with a = 0.10799."""
    radio = {"packet_error": "exponential"}
    assert Fading(RadioSettings(**radio)).error_rate(np.array([10.0]), 0.0)[0] == pytest.approx(0.10237, rel=1e-4)
    faded = Fading(RadioSettings(fading="rayleigh", **radio)).error_rate(np.array([10.0]), -np.inf)
    root = 2 * np.sqrt(0.10799)
    assert faded[0] == pytest.approx(1 - root * k1(root), rel=1e-3)
