"""The loss at a position: path loss of the selected model, plus shadowing."""

from pathlib import Path

import numpy as np
import pytest

from lesson import FedAvg, InputError, Settings, draw_fleet, simulate
from lesson.core.random import key, normals
from lesson.radio.channel import PlacedChannel, Site, make_channel
from lesson.radio.tr38901 import line_of_sight_probability, path_loss_db

X_KM, Y_KM = np.array([1.0, 0.3]), np.array([0.0, -0.4])  # 1 and 0.5 km from the base station


def placed(seed: int = 1, **radio: object) -> PlacedChannel:
    settings = Settings(**radio)
    channel = make_channel(settings.radio, Site(2, seed, settings.radio.carrier_ghz, lambda *_: (X_KM, Y_KM)))
    assert isinstance(channel, PlacedChannel)
    return channel


def loss_db(**radio: object) -> np.ndarray:
    return -placed(**radio).gain_at_db(X_KM, Y_KM)


def test_log_distance_loss() -> None:
    """128.1 dB at 1 km, less 37.6·log10(2) = 11.3187 dB at half of it."""
    assert loss_db() == pytest.approx([128.1, 116.7813], abs=1e-4)


def test_urban_loss() -> None:
    for sight, seen in [("always", True), ("never", False)]:
        expected = path_loss_db("uma", np.array([1.0, 0.5]), 2.0, np.array([seen, seen]))
        city = {"path_loss": "uma", "carrier_ghz": 2.0, "line_of_sight": sight}
        assert loss_db(shadowing_db=0.0, **city) == pytest.approx(expected)


def test_shadowing_is_added_in_proportion_to_its_spread() -> None:
    shadows = loss_db(shadowing_db=4.0) - loss_db()
    assert np.all(shadows != 0)
    assert loss_db(shadowing_db=8.0) - loss_db() == pytest.approx(2 * shadows)
    assert loss_db(shadowing_db=4.0, shadowing_km=7.0) - loss_db() != pytest.approx(shadows)


def test_frequency_of_line_of_sight() -> None:
    """At 100 m, over 300 cities and four places: a share strays by √(0.23·0.77/1200) = 0.012."""
    x_km, y_km = np.array([0.1, -0.1, 0.0, 0.0]), np.array([0.0, 0.0, 0.1, -0.1])
    city = {"path_loss": "umi", "shadowing_db": 0.0}
    seen_db = placed(line_of_sight="always", **city).gain_at_db(x_km, y_km)
    share = np.mean([placed(seed, **city).gain_at_db(x_km, y_km) == seen_db for seed in range(300)])
    assert share == pytest.approx(line_of_sight_probability("umi", np.array([0.1]))[0], abs=0.06)


def test_loss_at_the_base_station_is_finite() -> None:
    """At 1 mm: 128.1 + 37.6·log10(10⁻⁶) = −97.5 dB."""
    assert placed().gain_at_db(np.zeros(1), np.zeros(1)) == pytest.approx(6 * 37.6 - 128.1)


@pytest.mark.parametrize(("sight", "model", "deviation_db"), [("always", "uma", 4.0), ("never", "umi", 7.82)])
def test_shadowing_of_a_city_depends_on_line_of_sight(sight: str, model: str, deviation_db: float) -> None:
    """Over 400 cities; a deviation strays by 1/√800 of itself."""
    city = {"path_loss": model, "line_of_sight": sight}
    plain_db = placed(shadowing_db=0.0, **city).gain_at_db(X_KM, Y_KM)[0]
    drawn_db = [placed(seed, **city).gain_at_db(X_KM, Y_KM)[0] - plain_db for seed in range(400)]
    assert np.std(drawn_db) == pytest.approx(deviation_db, rel=0.12)


def test_rician_k_of_a_city_depends_on_line_of_sight() -> None:
    """UMa: 9 ± 3.5 dB with line of sight, rounded, and Rayleigh fading without."""
    clients, now = np.arange(2)[:, None], np.zeros((1, 1))
    radio = {"path_loss": "uma", "fading": "rician"}
    assert np.all(np.isneginf(placed(line_of_sight="never", **radio).k_db(clients, now)))
    drawn_db = [placed(seed, line_of_sight="always", **radio).k_db(clients, now)[0] for seed in range(400)]
    assert np.mean(drawn_db) == pytest.approx(9.0, abs=0.7)
    assert np.std(drawn_db) == pytest.approx(3.5, rel=0.12)


class Flat:
    """A channel of -100 dB, with 3 dB of noise that depends on the seed, the client and the second."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def gain_db(self, clients: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        return -100 + 3 * self._site.normals("mine", clients, times_s)


class Wrong(Flat):
    def gain_db(self, clients: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        return np.zeros(7)


class Empty(Flat):
    gain_db = None  # type: ignore[assignment]


def steep(distance_km: np.ndarray) -> np.ndarray:
    return 100 + 50 * np.log10(distance_km)


def test_own_path_loss_and_channel() -> None:
    assert loss_db(path_loss=f"{__name__}:steep") == pytest.approx([100.0, 84.9485])  # 50·log10(0.5) = −15.0515
    for settings in (Settings(channel=f"{__name__}:Flat"), Settings(channel=f"{__name__}:Flat", coherence_s=2.0)):
        fleet = draw_fleet(settings, num_clients=3, seed=4)
        expected = -100 + 3 * normals(key(4, "channel/mine"), np.arange(3), np.zeros(3, dtype=np.int64))
        assert fleet.gain_db == pytest.approx(expected)
        rounds = list(simulate(FedAvg(), fleet, rounds=2, settings=settings, seed=4))
        assert len(rounds[1].merged) == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Wrong", "must return one number per client and time"),
        ("Missing", "cannot be loaded"),
        ("steep", "failed"),
        ("Empty", "must have a method gain_db"),
    ],
)
def test_mistakes_in_an_own_channel(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        draw_fleet(Settings(channel=f"{__name__}:{name}"))


def test_gain_map_is_interpolated(tmp_path: Path) -> None:
    """Between (0, 0) with −80 dB, (1, 0) with −90, (0, 1) with −100 and (1, 1) with −120 dB, at (0.25, 0.5): −82.5 and
    −105 dB on the edges, −93.75 dB in between. Outside, the edge."""
    np.savez(tmp_path / "map.npz", x_km=[0.0, 1.0], y_km=[0.0, 1.0], gain_db=[[-80.0, -90.0], [-100.0, -120.0]])
    radio = Settings(gain_map=str(tmp_path / "map.npz")).radio
    places = np.array([[0.25, 2.0]]), np.array([[0.5, -1.0]])
    channel = make_channel(radio, Site(1, 0, 2.0, lambda *_: places))
    assert channel.gain_db(np.zeros((1, 1), dtype=np.int64), np.zeros((1, 2)))[0] == pytest.approx([-93.75, -90.0])


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x_km": [0.0, 1.0]}, "not a map of gains"),
        ({"x_km": [0.0, 1.0], "y_km": [0.0, 1.0], "gain_db": [[1.0, 2.0]]}, "one row per y_km"),
        ({"x_km": [1.0, 0.0], "y_km": [0.0, 1.0], "gain_db": [[1.0, 2.0], [3.0, 4.0]]}, "ascend"),
        ({"x_km": [0.0, 1.0], "y_km": [0.0, 1.0], "gain_db": [[1.0, np.nan], [3.0, 4.0]]}, "finite"),
    ],
)
def test_mistakes_in_a_gain_map(arrays: dict[str, object], why: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "map.npz", **arrays)
    with pytest.raises(InputError, match=why):
        draw_fleet(Settings(gain_map=str(tmp_path / "map.npz")))


def test_gain_map_must_be_an_npz_file(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "one.npy", np.zeros((2, 2)))
    for name in ("empty.npz", "one.npy"):
        with pytest.raises(InputError, match="not a map of gains"):
            draw_fleet(Settings(gain_map=str(tmp_path / name)))
