"""The preset `chen`: what FLMIN.m of github.com/mzchen0/Wireless-FL computes, at fixed distances.

Z = 39,760 · 16 / 2²⁰ = 0.606689 Mbit. On the resource block with interference I, the SINR is P·d⁻²/I with P = 0.01 W,
the rate log2(1 + SINR) Mbit/s, q = 1 − exp(−1.08·I·d²/P), and the energy 10⁻²⁷·40·10¹⁸·Z + P·Z/rate.
"""

from dataclasses import replace

import numpy as np
import pytest

from lesson import Settings, draw_population
from lesson.fleet.fleet import fleet_of

DISTANCES_M = np.array([100.0, 200.0, 300.0, 400.0, 500.0])
BLOCKS = {
    1e-8: (
        [6.65821, 4.70044, 3.59826, 2.85798, 2.32193],
        [0.01074, 0.04228, 0.09263, 0.15869, 0.23662],
        [0.91121, 1.29073, 1.68609, 2.12281, 2.61289],
        5,
    ),
    3e-8: (
        [5.10154, 3.22239, 2.23380, 1.62449, 1.22239],
        [0.03188, 0.12155, 0.25293, 0.40453, 0.55514],
        [1.18925, 1.88275, 2.71598, 3.73467, 4.96316],
        3,
    ),
    9e-8: (
        [3.59826, 1.91754, 1.16000, 0.76081, 0.53051],
        [0.09263, 0.32213, 0.58305, 0.78885, 0.91196],
        [1.68609, 3.16392, 5.23012, 7.97426, 11.43589],
        1,
    ),
}
"""By interference: rate in Mbit/s, probability of an error, energy in mJ, and how many distances meet the 3 mJ."""


@pytest.mark.parametrize("interference_w", BLOCKS)
def test_rates_errors_and_energies(interference_w: float) -> None:
    rate_mbps, error_rate, energy_mj, num_allowed = BLOCKS[interference_w]
    settings = Settings(preset="chen", noise_dbm=10 * np.log10(interference_w) + 30)
    clients = draw_population(settings, num_clients=5)
    fleet = fleet_of(settings, replace(clients, x_km=DISTANCES_M / 1000, y_km=np.zeros(5)))
    assert fleet.rate_bps == pytest.approx(1e6 * np.array(rate_mbps), rel=1e-5)
    assert fleet.error_rate == pytest.approx(error_rate, abs=1e-5)
    assert 1000 * (fleet.compute_j + fleet.transmit_j) == pytest.approx(energy_mj, rel=1e-5)
    assert fleet.reachable.tolist() == [True] * num_allowed + [False] * (5 - num_allowed)
    assert fleet.latency_s[:num_allowed] == pytest.approx(0.606689 / np.array(rate_mbps)[:num_allowed], rel=1e-5)
