"""The loss at a position: path loss of the selected model, plus shadowing."""

import numpy as np
import pytest

from lesson import Settings
from lesson.radio.channel import Channel
from lesson.radio.tr38901 import line_of_sight_probability, path_loss_db

X_KM, Y_KM = np.array([1.0, 0.3]), np.array([0.0, -0.4])  # 1 and 0.5 km from the base station


def loss_db(**radio: object) -> np.ndarray:
    return Channel(Settings(**radio), seed=1).loss_db(X_KM, Y_KM)


def test_log_distance_loss() -> None:
    """128.1 dB at 1 km, less 37.6·log10(2) = 11.3187 dB at half of it."""
    assert loss_db() == pytest.approx([128.1, 116.7813], abs=1e-4)


def test_urban_loss() -> None:
    for sight, seen in [("always", True), ("never", False)]:
        expected = path_loss_db("uma", np.array([1.0, 0.5]), 2.0, np.array([seen, seen]))
        assert loss_db(path_loss="uma", carrier_ghz=2.0, line_of_sight=sight) == pytest.approx(expected)


def test_shadowing_is_added_in_proportion_to_its_spread() -> None:
    shadows = loss_db(shadowing_db=4.0) - loss_db()
    assert np.all(shadows != 0)
    assert loss_db(shadowing_db=8.0) - loss_db() == pytest.approx(2 * shadows)
    assert loss_db(shadowing_db=4.0, shadowing_km=7.0) - loss_db() != pytest.approx(shadows)


def test_frequency_of_line_of_sight() -> None:
    """At 100 m, over 300 cities and four places: a share strays by √(0.23·0.77/1200) = 0.012."""
    x_km, y_km = np.array([0.1, -0.1, 0.0, 0.0]), np.array([0.0, 0.0, 0.1, -0.1])
    settings = Settings(path_loss="umi", line_of_sight="drawn")
    seen_db = Channel(Settings(path_loss="umi", line_of_sight="always"), 0).loss_db(x_km, y_km)
    share = np.mean([Channel(settings, seed).loss_db(x_km, y_km) == seen_db for seed in range(300)])
    assert share == pytest.approx(line_of_sight_probability("umi", np.array([0.1]))[0], abs=0.06)


def test_loss_at_the_base_station_is_finite() -> None:
    """At 1 mm: 128.1 + 37.6·log10(10⁻⁶) = −97.5 dB."""
    assert Channel(Settings(), 0).loss_db(np.zeros(1), np.zeros(1)) == pytest.approx(128.1 - 6 * 37.6)
