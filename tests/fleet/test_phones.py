"""Data rates of phones: the published statistics, and what a client's draws depend on."""

import numpy as np
import pytest

from lesson import Settings, draw_fleet
from lesson.fleet.phones import Direction, PhoneRates, measured_throughput

NUM_DRAWS = 20_000


@pytest.mark.parametrize("direction", ["up", "down"])
def test_drawn_rates_have_the_published_mean_and_standard_deviation(direction: Direction) -> None:
    """For each of the 19 phones, within five standard errors: that of a mean is s/√n, and that of a standard deviation
    about s·√((κ − 1)/4n), where κ is the kurtosis of a log-normal distribution."""
    mean_bps, std_bps = measured_throughput(direction)
    rates = PhoneRates(200, seed=0)
    for phone in range(19):
        client = int(np.flatnonzero(rates.phone == phone)[0])
        drawn = rates.rate_bps(direction, np.full(NUM_DRAWS, client), np.arange(NUM_DRAWS))
        assert drawn.min() > 0
        mean, std, share = mean_bps[phone], std_bps[phone], 1 + (std_bps[phone] / mean_bps[phone]) ** 2
        kurtosis = share**4 + 2 * share**3 + 3 * share**2 - 3
        assert drawn.mean() == pytest.approx(mean, abs=5 * std / np.sqrt(NUM_DRAWS))
        assert drawn.std() == pytest.approx(std, abs=5 * std * np.sqrt((kurtosis - 1) / (4 * NUM_DRAWS)))


def test_file_has_the_published_rates() -> None:
    """19 phones; the extremes of the mean uplink are 430.97 and 6635.41 kbit/s."""
    up, down = measured_throughput("up"), measured_throughput("down")
    assert (len(up.mean_bps), len(down.mean_bps)) == (19, 19)
    assert (up.mean_bps.min(), up.mean_bps.max()) == (430967.74193548384, 6635410.256410257)
    assert (up.mean_bps[0], up.std_bps[0], down.mean_bps[0]) == (4935200.0, 2767319.309367822, 7491400.0)


def test_rates_are_log_normal() -> None:
    """σ² = ln(1 + (s/m)²) and μ = ln m − σ²/2, so that the median is m/√(1 + (s/m)²)."""
    rates = PhoneRates(1, seed=5)
    mean, std = (values[rates.phone[0]] for values in measured_throughput("up"))
    drawn = rates.rate_bps("up", np.zeros(NUM_DRAWS, dtype=np.int64), np.arange(NUM_DRAWS))
    assert np.median(drawn) == pytest.approx(mean / np.sqrt(1 + (std / mean) ** 2), rel=0.03)
    assert np.log(drawn).std() == pytest.approx(np.sqrt(np.log(1 + (std / mean) ** 2)), rel=0.03)


def test_client_is_the_same_phone_with_the_same_rates_in_any_fleet() -> None:
    small, large = PhoneRates(3, seed=2), PhoneRates(5000, seed=2)
    assert small.phone.tolist() == large.phone[:3].tolist()
    clients, index = np.array([2, 0, 2]), np.array([0, 7, 1])
    alone = [small.rate_bps("up", clients[[n]], index[[n]])[0] for n in range(3)]
    assert large.rate_bps("up", clients, index).tolist() == alone
    assert small.rate_bps("down", clients, index).tolist() != alone
    assert PhoneRates(3, seed=3).rate_bps("up", clients, index).tolist() != alone


def test_first_estimate_is_the_upload_at_the_mean_rate() -> None:
    settings = Settings(preset="phones", model_bits=2e6, download=True)
    fleet, rates = draw_fleet(settings, 30, seed=4), PhoneRates(30, seed=4)
    assert fleet.upload_s == pytest.approx(2e6 / rates.mean_bps("up"))
    assert fleet.shared_upload_s.tolist() == fleet.upload_s.tolist()
    assert fleet.download_s == pytest.approx(2e6 / rates.mean_bps("down"))
    assert fleet.transmit_j == pytest.approx(0.1 * fleet.upload_s)
    assert fleet.latency_s == pytest.approx(fleet.download_s + fleet.compute_s + fleet.upload_s)
