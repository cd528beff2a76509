"""Worked values of Eq. (3) and (4): θ·log2(1/ε) = log2 20 = 4.321928.

4e8 cycles · 20 samples / 2 GHz = 4 s, times 4.321928 = 17.2877 s. Energy: 4.321928 · 4e8 · 20 = 3.457543e10 cycles,
times κ·f² = 1e-28 · 4e18 = 4e-10 J per cycle, gives 13.83017 J; sending at 0.1 W for 16.0453 s costs 1.60453 J.
"""

import numpy as np
import pytest

from lesson import Settings
from lesson.fleet import latency
from lesson.fleet.fleet import draw_fleet


def one(value: float) -> np.ndarray:
    return np.array([value])


ITERATIONS = Settings().training.local_iterations


def test_number_of_local_iterations() -> None:
    assert pytest.approx(4.321928, rel=1e-6) == ITERATIONS


@pytest.mark.parametrize(
    ("cycles_per_sample", "num_samples", "cpu_hz", "expected_s"),
    [(4e8, 20, 2e9, 17.2877), (3e8, 20, 3e9, 8.64386), (4e5, 1000, 2e9, 0.864386)],
)
def test_compute_time(cycles_per_sample: float, num_samples: int, cpu_hz: float, expected_s: float) -> None:
    cycles = latency.num_cycles(ITERATIONS, one(cycles_per_sample), np.array([num_samples]))
    assert latency.compute_s(cycles, one(cpu_hz))[0] == pytest.approx(expected_s, rel=1e-5)


def test_total_latency() -> None:
    assert latency.latency_s(one(17.2877), one(16.0453))[0] == pytest.approx(33.333, rel=1e-5)


def test_energy() -> None:
    cycles = latency.num_cycles(ITERATIONS, one(4e8), np.array([20]))
    assert latency.compute_j(1e-28, cycles, one(2e9))[0] == pytest.approx(13.83017, rel=1e-6)
    assert latency.transmit_j(one(0.1), one(16.0453))[0] == pytest.approx(1.60453, rel=1e-6)


def test_a_drawn_fleet_follows_the_equations_client_by_client() -> None:
    fleet = draw_fleet(Settings(), seed=4)
    people = fleet.population
    assert people is not None
    for client in range(len(fleet)):
        distance_km = np.hypot(people.x_km[client], people.y_km[client])
        snr = 0.1 * 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10) / 1e-13
        upload = 100e3 / (30e3 * np.log2(1 + snr))
        compute = np.log2(20) * people.cycles_per_sample[client] * 20 / people.cpu_hz[client]
        assert fleet.upload_s[client] == pytest.approx(upload, rel=1e-9)
        assert fleet.compute_s[client] == pytest.approx(compute, rel=1e-9)
        assert fleet.latency_s[client] == fleet.compute_s[client] + fleet.upload_s[client]
        assert fleet.compute_j[client] == pytest.approx(1e-28 * people.cpu_hz[client] ** 3 * compute, rel=1e-9)
        assert fleet.transmit_j[client] == pytest.approx(0.1 * upload, rel=1e-9)
