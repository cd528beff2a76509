"""Moving clients: positions on itineraries by hand, and properties of random waypoints."""

from typing import Any

import numpy as np
import pytest

from lesson.core.random import uniforms
from lesson.radio.mobility import Itinerary, RandomWaypoint

AREA_KM, SPEED_MPS, PAUSE_S = 2.0, (5.0, 20.0), 30.0
NUM_CLIENTS = 60
ALL = np.arange(NUM_CLIENTS)


def made(seed: int = 1, num_clients: int = NUM_CLIENTS, pause_s: float = PAUSE_S) -> RandomWaypoint:
    x_km, y_km = np.linspace(-1, 1, NUM_CLIENTS)[:num_clients], np.linspace(1, -0.5, NUM_CLIENTS)[:num_clients]
    return RandomWaypoint(seed, x_km, y_km, AREA_KM, SPEED_MPS, pause_s)


def every(second: float, until_s: float = 2000.0) -> np.ndarray:
    return np.broadcast_to(np.arange(0, until_s, second), (NUM_CLIENTS, round(until_s / second)))


def itinerary(waypoints: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Itinerary:
    offsets = np.cumsum([0, *(len(times_s) for times_s, _, _ in waypoints)])
    times_s, x_km, y_km = map(np.concatenate, zip(*waypoints, strict=True))
    return Itinerary((times_s, x_km, y_km, offsets))


def test_clients_start_at_their_positions() -> None:
    x_km, y_km = made().at(ALL, np.zeros((NUM_CLIENTS, 1)))
    assert np.array_equal(x_km[:, 0], np.linspace(-1, 1, NUM_CLIENTS))
    assert np.array_equal(y_km[:, 0], np.linspace(1, -0.5, NUM_CLIENTS))


def test_clients_stay_in_the_area_and_visit_all_of_it() -> None:
    x_km, y_km = made().at(ALL, every(20.0, 20_000))
    for values in (x_km, y_km):
        assert np.abs(values).max() <= AREA_KM / 2
        assert np.abs(values).max() > 0.98 * AREA_KM / 2
        assert abs(values[:, 500:].mean()) < 0.1


def test_speeds_are_within_their_range() -> None:
    x_km, y_km = made().at(ALL, every(0.5))
    east, north = np.diff(x_km, axis=1) * 2000, np.diff(y_km, axis=1) * 2000  # m/s
    speed = np.hypot(east, north)
    assert speed.max() <= SPEED_MPS[1] + 1e-6
    # Steps that go on as the step before are within a leg.
    steady = (np.abs(np.diff(east, axis=1)) < 1e-6) & (np.abs(np.diff(north, axis=1)) < 1e-6)
    walking = speed[:, 1:][steady & (speed[:, 1:] > 0)]
    assert walking.min() >= SPEED_MPS[0] - 1e-6
    assert walking.max() > 19
    assert steady.mean() > 0.95


def test_pauses_last_as_long_as_set() -> None:
    x_km, y_km = made().at(ALL, every(0.5))
    standing = (np.diff(x_km, axis=1) == 0) & (np.diff(y_km, axis=1) == 0)
    edges = np.diff(np.pad(standing, ((0, 0), (1, 1))).astype(int), axis=1)
    for client in range(NUM_CLIENTS):
        begins, ends = np.flatnonzero(edges[client] == 1), np.flatnonzero(edges[client] == -1)
        lasted_s = (ends - begins)[ends < standing.shape[1]] * 0.5
        # A pause of 30 s holds 59 or 60 whole steps of half a second.
        assert np.all((lasted_s >= PAUSE_S - 0.5) & (lasted_s <= PAUSE_S))
    assert (edges == 1).sum() > NUM_CLIENTS


@pytest.mark.parametrize("pause_s", [PAUSE_S, 0.0])
def test_position_does_not_depend_on_earlier_queries(pause_s: float) -> None:
    """Times close together are reached leg by leg; jumps, forward and back, give the same bits."""
    times_s = np.ascontiguousarray(every(20.0, 30_000))
    x_km, y_km = made(pause_s=pause_s).at(ALL, times_s)
    rng, used = np.random.default_rng(0), made(pause_s=pause_s)
    for _ in range(30):
        some = rng.permutation(NUM_CLIENTS)[: rng.integers(1, NUM_CLIENTS)]
        columns = np.sort(rng.integers(0, 1500, (len(some), rng.integers(1, 6))), axis=1)
        x_asked, y_asked = used.at(some, times_s[some[:, None], columns])
        assert np.array_equal(x_asked, x_km[some[:, None], columns])
        assert np.array_equal(y_asked, y_km[some[:, None], columns])


def test_path_does_not_depend_on_the_population() -> None:
    x_km, y_km = made().at(ALL[:10], every(100.0)[:10])
    x_few, y_few = made(num_clients=10).at(ALL[:10], every(100.0)[:10])
    assert np.array_equal(x_few, x_km)
    assert np.array_equal(y_few, y_km)
    assert not np.array_equal(made(seed=2).at(ALL[:10], every(100.0)[:10])[0], x_km)


def test_positions_of_no_client_and_of_one_client_twice() -> None:
    assert made().at(ALL[:0], np.empty((0, 3)))[0].shape == (0, 3)
    times_s = np.array([[500.0, 900.0], [10.0, 700.0]])
    x_twice, _ = made().at(np.array([3, 3]), times_s)
    for row in (0, 1):
        assert np.array_equal(x_twice[[row]], made().at(np.array([3]), times_s[[row]])[0])


def test_position_late_in_a_run_costs_no_more_than_an_early_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump over more than 2,000 legs takes few large draws, and little is drawn after it."""
    sizes: list[int] = []

    def counted(*ids: Any) -> Any:
        drawn = uniforms(*ids)
        sizes.append(drawn.size)
        return drawn

    monkeypatch.setattr("lesson.radio.mobility.uniforms", counted)
    walk, clients = made(), ALL[:20]
    walk.at(clients, np.full((20, 1), 3e5))
    assert len(sizes) < 60
    for time_s in (3e5 + 20, 3e5 + 200):
        sizes.clear()
        walk.at(clients, np.full((20, 1), time_s))
        assert sum(sizes) < 3 * 20 * 200


def test_positions_on_itineraries() -> None:
    # Client 0 walks from (0, 0) at 10 s to (1, 2) at 20 s and to (1, 0) at 40 s. At 15 s it is half way, (0.5, 1); at
    # 18 s at 0.8 of it, (0.8, 1.6); at 25 s a quarter of the way down, (1, 1.5). Client 1 stands at (−3, 4).
    # Client 2 walks from (2, 2) at 0 s to (0, 6) at 8 s: at 2 s it is at (1.5, 3).
    walk = itinerary(
        [
            (np.array([10.0, 20.0, 40.0]), np.array([0.0, 1.0, 1.0]), np.array([0.0, 2.0, 0.0])),
            (np.array([5.0]), np.array([-3.0]), np.array([4.0])),
            (np.array([0.0, 8.0]), np.array([2.0, 0.0]), np.array([2.0, 6.0])),
        ]
    )
    x_km, y_km = walk.at(np.array([0]), np.array([[0.0, 10.0, 15.0, 18.0, 20.0, 25.0, 40.0, 99.0]]))
    assert x_km[0] == pytest.approx([0, 0, 0.5, 0.8, 1, 1, 1, 1])
    assert y_km[0] == pytest.approx([0, 0, 1, 1.6, 2, 1.5, 0, 0])
    x_km, y_km = walk.at(np.array([2, 1, 0]), np.array([[2.0, 9.0], [0.0, 7.0], [15.0, 25.0]]))
    assert x_km == pytest.approx(np.array([[1.5, 0], [-3, -3], [0.5, 1]]))
    assert y_km == pytest.approx(np.array([[3, 6], [4, 4], [1, 1.5]]))


def test_long_itineraries_agree_with_interpolation() -> None:
    rng = np.random.default_rng(4)
    lengths = [1, 2, 3, 7, 8, 9, 100, 1023, 1024, 1025]
    waypoints = [(np.cumsum(rng.uniform(0.1, 5, n)), rng.normal(size=n), rng.normal(size=n)) for n in lengths]
    times_s = np.sort(rng.uniform(0, 3000, (10, 500)), axis=1)
    x_km, y_km = itinerary(waypoints).at(np.arange(10), times_s)
    for client, (seen_s, x_seen, y_seen) in enumerate(waypoints):
        assert x_km[client] == pytest.approx(np.interp(times_s[client], seen_s, x_seen), abs=1e-9)
        assert y_km[client] == pytest.approx(np.interp(times_s[client], seen_s, y_seen), abs=1e-9)
