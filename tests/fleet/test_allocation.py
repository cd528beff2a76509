"""Which band clients get: by hand for two of them, and compared with scipy's optimizer for random fleets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq, minimize

from helpers.fleets import make_radio_fleet
from lesson import Allocation, Fleet, InputError, Settings, draw_fleet
from lesson.fleet.allocation import ALLOCATIONS, checked_allocation, equal, equal_finish, find_allocation


def finishes_s(fleet: Fleet, allocation: Allocation, clients: np.ndarray) -> np.ndarray:
    rate_bps = fleet.rate_with(clients, np.asarray(allocation.bandwidth_hz))
    return fleet.compute_s[clients] + fleet.upload_bits / rate_bps


BOTH = np.arange(2)


def test_equal_by_hand() -> None:
    assert np.asarray(equal(make_radio_fleet([3, 7], [1, 1]), BOTH, 5.0, np.inf).bandwidth_hz).tolist() == [2.5, 2.5]


def test_equal_finish_by_hand() -> None:
    """On b Hz, client 0 sends b·log2(1 + 3/b) bits per second: 2 on 1 Hz. Client 1 sends 2·log2(1 + 14/2) = 6 on 2 Hz.
    They then finish at 2 + 6/2 = 5 s and at 4 + 6/6 = 5 s: with 3 Hz, nobody can finish earlier without delaying the
    other."""
    fleet = make_radio_fleet([3, 14], [2, 4])
    allocation = equal_finish(fleet, BOTH, 3.0, np.inf)
    assert np.asarray(allocation.bandwidth_hz) == pytest.approx([1.0, 2.0])
    assert finishes_s(fleet, allocation, BOTH) == pytest.approx([5.0, 5.0])


def test_equal_finish_with_a_gap_a_maximum_rate_and_a_minimum_snr() -> None:
    """With a gap of 2, client 0 has 1 bit/s on 3 Hz at SNR 6/3: 3·log2(1 + 6/3/2) = 3, so 3 Hz send 6 bits in 2 s.
    Without a gap but at most 1 bit/s per Hz, 3 Hz at SNR 2 also have 3 bits/s. Below SNR 3, nothing is received."""
    alone = np.arange(1)
    for link in {"gap": 2.0}, {"max_bps_per_hz": 1.0}:
        fleet = make_radio_fleet([6], [1], **link)
        allocation = equal_finish(fleet, alone, 3.0, np.inf)
        assert finishes_s(fleet, allocation, alone) == pytest.approx([3.0])
        assert np.asarray(allocation.bandwidth_hz) == pytest.approx([3.0])
    fleet = make_radio_fleet([6], [1], min_snr=3.0)
    for allocate in equal, equal_finish:
        assert np.asarray(allocate(fleet, alone, 3.0, np.inf).bandwidth_hz) == pytest.approx([2.0])


@pytest.mark.parametrize("seed", range(4))
def test_equal_finish_agrees_with_scipy(seed: int) -> None:
    """Of the latest finish time, scipy finds the same minimum: as a root, and by minimizing it over all bands."""
    fleet = draw_fleet(Settings(num_clients=6, seed=seed, snr_gap_db=2.0, noise_dbm=-94.0))
    clients, total_hz = np.array([0, 1, 2, 4, 5]), 150e3
    allocation = equal_finish(fleet, clients, total_hz, np.inf)
    found, finish_s = np.asarray(allocation.bandwidth_hz), finishes_s(fleet, allocation, clients)
    assert found.sum() == pytest.approx(total_hz, rel=1e-9)
    assert finish_s == pytest.approx(np.full(5, finish_s[0]), rel=1e-9)

    def rate_of(client: int) -> Callable[[float], float]:
        return lambda band_hz: float(fleet.rate_with(clients[[client]], np.array([band_hz]))[0])

    def needed_hz(finish_s: float) -> float:
        rates = fleet.upload_bits / (finish_s - fleet.compute_s[clients])
        roots = [brentq(lambda hz, i=i: rate_of(i)(hz) - rates[i], 1e-3, 1e9, xtol=1e-9) for i in range(5)]
        return float(sum(roots))

    low_s, high_s = finish_s[0] * (1 - 1e-6), finish_s[0] * (1 + 1e-6)
    assert brentq(lambda time_s: needed_hz(time_s) - total_hz, low_s, high_s) == pytest.approx(finish_s[0], rel=1e-8)

    def latest_s(bands: np.ndarray) -> np.ndarray:
        return finishes_s(fleet, Allocation(bands[:-1] * total_hz), clients)

    constraints = [
        {"type": "ineq", "fun": lambda x: x[-1] - latest_s(x)},
        {"type": "ineq", "fun": lambda x: 1 - x[:-1].sum()},
    ]
    start = np.append(np.full(5, 0.2), latest_s(np.append(np.full(5, 0.2), 0)).max())
    bounds = [(1e-4, 1.0)] * 5 + [(0.0, None)]
    best = minimize(lambda x: x[-1], start, bounds=bounds, constraints=constraints, method="SLSQP", tol=1e-10)
    assert best.success
    assert best.x[-1] == pytest.approx(finish_s[0], rel=1e-5)
    assert best.x[:-1] * total_hz == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_no_client_gets_more_than_is_free(name: str) -> None:
    """Also if nearly all power is spread over a band on which the rate hardly grows anymore."""
    for num_clients, noise_dbm in (1, -60.0), (50, -100.0), (300, -60.0):
        fleet = draw_fleet(Settings(num_clients=num_clients, noise_dbm=noise_dbm))
        clients = np.arange(num_clients)[::3]
        for free_hz in 1.0, 30e3, 1e8:
            given = ALLOCATIONS[name](fleet, clients, free_hz, np.inf)
            checked_allocation(given, fleet, clients, free_hz, name)


@pytest.mark.parametrize(
    ("allocation", "error"),
    [
        ({}, "must be an Allocation, got {}"),
        (Allocation([1.0]), r"bandwidth_hz must be numbers, one per client \(2\), got \[1.0\]"),
        (Allocation(["a", "b"]), "bandwidth_hz must be numbers"),
        (Allocation([1.0, 0.0]), "bandwidth_hz must be > 0 and at most 3, got 0 for client 1"),
        (Allocation([4.0, 1.0]), "bandwidth_hz must be > 0 and at most 3, got 4 for client 0"),
        (Allocation([2.0, 1.1]), "bandwidth_hz must sum to at most 3, the free band, got 3.1"),
        (Allocation(power_w=[2.0, 2.1]), "power_w must be > 0 and at most 2, got 2.1 for client 1"),
        (Allocation(cpu_hz=[np.nan, 1e9]), r"cpu_hz must be > 0 and at most 2e\+09, got nan for client 0"),
    ],
)
def test_wrong_allocations(allocation: Any, error: str) -> None:
    with pytest.raises(InputError, match=f"^my function:? {error}"):
        checked_allocation(allocation, make_radio_fleet([3, 7], [1, 1]), BOTH, 3.0, "my function")


def test_resources_are_relative_to_the_usual_ones() -> None:
    given = Allocation(np.array([2.0, 0.5]), power_w=np.array([1.0, 2.0]))
    band, power, cpu = checked_allocation(given, make_radio_fleet([3, 7], [1, 1]), BOTH, 3.0, "")
    assert (band.tolist(), power.tolist(), cpu.tolist()) == ([2.0, 0.5], [0.5, 1.0], [1.0, 1.0])


def test_allocations_are_found_by_name() -> None:
    assert find_allocation("") is None
    assert find_allocation("equal") is equal
    assert find_allocation("lesson.fleet.allocation:equal") is equal
    with pytest.raises(InputError, match="unknown allocation 'eqal'; did you mean 'equal'"):
        find_allocation("eqal")
    with pytest.raises(InputError, match="allocation 'lesson:nothing' cannot be loaded"):
        find_allocation("lesson:nothing")


@pytest.mark.parametrize("other", [{"spectrum": "equal"}, {"throughput": "phones"}, {"latencies": "a.csv"}])
def test_settings_that_exclude_an_allocation(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"allocation cannot be combined with|cannot be combined with .* allocation"):
        Settings(allocation="equal", **other)
