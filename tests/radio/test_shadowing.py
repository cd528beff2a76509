"""Shadowing: variance and correlation over many fields, and what a field keeps.

Over 1000 seeds a variance of Gaussian values strays by √(2/1000) = 0.045 and a covariance ρ by √((1 + ρ²)/1000),
at most the same; averaged over sixteen places far apart, by a quarter of that. Tests allow four times 0.011.
"""

import numpy as np
import pytest

from lesson.radio.shadowing import GaussianField

CORRELATION_KM = 0.05
ABOUT = 0.045


@pytest.fixture(scope="module")
def fields() -> list[GaussianField]:
    return [GaussianField(seed, "shadowing", CORRELATION_KM) for seed in range(1000)]


def values(fields: list[GaussianField], ahead_km: float, aside_km: float = 0.0) -> np.ndarray:
    places_km = np.arange(16.0)
    return np.array([field(places_km + ahead_km, places_km / 2 + aside_km) for field in fields])


def test_mean_and_variance(fields: list[GaussianField]) -> None:
    drawn = values(fields, 0.3, -0.7)
    assert drawn.mean() == pytest.approx(0, abs=4 / np.sqrt(16 * 1000))
    assert np.mean(drawn**2) == pytest.approx(1, abs=ABOUT)
    assert np.mean(drawn**4) == pytest.approx(3, abs=4 * np.sqrt(96 / (16 * 1000)))


@pytest.mark.parametrize(
    ("ahead_km", "aside_km", "expected"),
    [
        (0.05, 0.0, np.exp(-1)),
        (0.03, 0.04, np.exp(-1)),  # as far, √(3² + 4²) = 5, in another direction
        (0.0, -0.1, np.exp(-2)),
        (0.005, 0.0, np.exp(-0.1)),
        (0.3, 0.4, 0.0),
    ],
)
def test_correlation_falls_off_with_distance(fields, ahead_km: float, aside_km: float, expected: float) -> None:
    product = values(fields, 0.0) * values(fields, ahead_km, aside_km)
    assert product.mean() == pytest.approx(expected, abs=ABOUT)


def test_place_keeps_its_value() -> None:
    x_km, y_km = np.linspace(-1, 1, 1001), np.linspace(1, -1, 1001)
    drawn = GaussianField(7, "shadowing", CORRELATION_KM)(x_km, y_km)
    again = GaussianField(7, "shadowing", CORRELATION_KM)
    assert np.array_equal(again(x_km[::-7], y_km[::-7]), drawn[::-7])
    assert np.array_equal(again(x_km[:6].reshape(2, 3), y_km[:6].reshape(2, 3)), drawn[:6].reshape(2, 3))


def test_field_of_a_seed_is_pinned() -> None:
    """A change here changes every result with shadowing that was ever published with a seed."""
    field = GaussianField(7, "shadowing", CORRELATION_KM)
    drawn = field(np.array([0.3, -1.2, 400.0]), np.array([0.4, 0.7, -300.0]))
    assert drawn == pytest.approx([0.18448, -0.04337, 0.44610], abs=5e-5)


def test_seeds_and_names_have_separate_fields() -> None:
    here = np.array([0.0]), np.array([0.0])
    others = [(0, "shadowing"), (1, "shadowing"), (0, "other")]
    assert len({float(GaussianField(*other, CORRELATION_KM)(*here)[0]) for other in others}) == 3


def test_longer_correlation_stretches_the_field() -> None:
    x_km = np.linspace(0, 1, 50)
    short, long = GaussianField(5, "shadowing", 0.05), GaussianField(5, "shadowing", 0.1)
    assert long(2 * x_km, 0 * x_km) == pytest.approx(short(x_km, 0 * x_km), abs=1e-5)
