"""Uploads that fail, on the simulated clock."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import resume, steps, traced
from lesson import FedAvg, Settings, draw_fleet, make_loop, simulate
from lesson.clock.worlds.airtime import Airtime
from lesson.core.random import key, uniforms
from lesson.settings.settings import LIGHT_MPS

ERRORS: dict[str, Any] = {"packet_error": "exponential", "waterfall_db": 3.0, "num_clients": 9, "power_w": 5.0}


def error_rates(settings: Settings) -> np.ndarray:
    """1 − exp(−m/SNR) on a client's own band, with m = 10^0.3 and the SNR of released."""
    distance_km = draw_fleet(settings).population.distance_km
    snr = 5.0 * 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10) / 1e-13
    return 1 - np.exp(-(10**0.3) / snr)


def test_corrupted_uploads_are_lost_and_cost_energy() -> None:
    settings = Settings(**ERRORS)
    fleet, rates, lost = draw_fleet(settings), error_rates(settings), 0
    assert fleet.error_rate == pytest.approx(rates)
    for number, record in enumerate(simulate(FedAvg(), fleet, rounds=5, settings=settings)):
        fails = uniforms(key(0, "packet errors"), np.arange(9), np.full(9, number)) < rates
        lost += record.lost
        assert sorted(record.merged) == np.flatnonzero(~fails).tolist()
        assert record.end_s - record.start_s == pytest.approx(fleet.latency_s.max())
        assert record.transmit_j == pytest.approx(fleet.transmit_j.sum())
    assert lost > 0


def test_corrupted_uploads_are_sent_again() -> None:
    """An upload is sent more than n times with probability q^n, at most 100 times; the server expects the mean."""
    settings = Settings(on_error="retransmit", **ERRORS)
    plain, fleet, rates = draw_fleet(Settings(num_clients=9, power_w=5.0)), draw_fleet(settings), error_rates(settings)
    assert fleet.upload_s == pytest.approx(plain.upload_s * sum(rates**count for count in range(100)))
    drawn = uniforms(key(0, "packet errors"), np.arange(9), np.zeros(9, dtype=np.int64))
    times_sent = 1 + sum(drawn < rates**count for count in range(1, 100))
    record = next(simulate(FedAvg(), fleet, rounds=1, settings=settings))
    order = np.argsort(record.merged)
    assert record.merged_arrived_s[order] == pytest.approx(plain.compute_s + times_sent * plain.upload_s)
    assert record.transmit_j == pytest.approx((5.0 * times_sent * plain.upload_s).sum())


@pytest.mark.parametrize(
    "changes",
    [
        {"fading": "rayleigh", "speed_mps": (1.0, 5.0)},
        {"spectrum": "equal", "on_error": "retransmit"},
        {"spectrum": "in-turn"},
    ],
    ids=str,
)
def test_errors_with_fading_mobility_and_a_shared_band(changes: dict[str, Any]) -> None:
    """Each run loses or repeats uploads, and a restored one continues alike."""
    settings = Settings(**ERRORS, **changes)
    whole, restored = (make_loop(FedAvg(), draw_fleet(settings), settings=settings) for _ in range(2))
    before = steps(whole, 4)
    assert sum(record.lost for record in before) > 0 or settings.radio.on_error == "retransmit"
    (one,), (other,) = steps(resume(whole, restored), 1), steps(whole, 1)
    assert (one.end_s, one.lost, one.transmit_j) == (other.end_s, other.lost, other.transmit_j)


def test_errors_of_uploads_in_turn_are_those_on_the_whole_band() -> None:
    """Nine clients have nine times the noise on their common band."""
    settings = Settings(spectrum="in-turn", **ERRORS)
    fails = uniforms(key(0, "packet errors"), np.arange(9), np.zeros(9, dtype=np.int64))
    corrupted = fails < 1 - (1 - error_rates(settings)) ** 9
    record = next(simulate(FedAvg(), draw_fleet(settings), rounds=1, settings=settings))
    assert sorted(record.merged) == np.flatnonzero(~corrupted).tolist()
    assert corrupted.sum() > (fails < error_rates(settings)).sum()


def test_upload_that_is_always_corrupted_is_lost() -> None:
    """It is sent a hundred times."""
    settings = Settings(packet_error="exponential", on_error="retransmit", waterfall_db=60.0, num_clients=2)
    plain = draw_fleet(Settings(num_clients=2))
    record = next(simulate(FedAvg(), plain, rounds=1, settings=settings))
    assert (record.lost, record.merged.tolist()) == (2, [])
    assert record.transmit_j == pytest.approx(100 * plain.transmit_j.sum())


def test_server_expects_uploads_to_be_sent_again_when_it_asks_for_times() -> None:
    settings = Settings(on_error="retransmit", refresh_estimates_every_s=1.0, **ERRORS)
    loop = make_loop(FedAvg(clients_per_round=1), draw_fleet(settings), settings=settings)
    others = np.delete(np.arange(9), steps(loop, 2)[1].merged)
    assert loop.fleet.upload_s[others] == pytest.approx(draw_fleet(settings).upload_s[others])


def test_errors_on_snr_traces(tmp_path: Path) -> None:
    """10 dB and 20 dB, each for half of the time, with m = 1: error rates and useful rates are means; two clients
    have twice the noise on their common band."""
    trace = traced(tmp_path / "snr.csv", "trace,time_s,snr_db a,0,10 a,1,20")
    settings = Settings(
        snr_trace=trace, num_clients=2, packet_error="exponential", waterfall_db=0.0, on_error="retransmit"
    )
    fleet = draw_fleet(settings)
    assert fleet.error_rate == pytest.approx([1 - (np.exp(-0.1) + np.exp(-0.01)) / 2] * 2)
    for bands, upload_s in ((1, fleet.upload_s), (2, fleet.shared_upload_s)):
        useful = [np.exp(-bands / snr) * np.log2(1 + snr / bands) for snr in (10.0, 100.0)]
        assert upload_s == pytest.approx([100e3 / (bands * 30e3 * np.mean(useful))] * 2)


def test_outage_makes_clients_unreachable() -> None:
    """Below −6.7 dB, nothing arrives: 17 of the 50 clients with seed 0, 34 % as in all seeds."""
    settings = Settings(packet_error="outage")
    fleet = draw_fleet(settings)
    assert not settings.varies
    assert fleet.reachable.tolist() == (fleet.snr_db >= -6.7).tolist()
    assert 0.2 < 1 - fleet.reachable.mean() < 0.5


def test_coherence_time_follows_from_speed_and_carrier() -> None:
    """At 8 m/s and 2 GHz, f_d = 8·2e9/c = 53.37 Hz, and 0.423/f_d = 7.926 ms; standing clients count as 3 km/h."""
    assert Settings(fading="rayleigh", speed_mps=(1.0, 15.0)).coherence_s == pytest.approx(7.926e-3, rel=1e-3)
    assert Settings(fading="rayleigh").coherence_s == pytest.approx(0.423 * LIGHT_MPS / (3 / 3.6 * 2e9))
    assert Settings(fading="rayleigh", coherence_s=2.0).coherence_s == 2.0
    assert Settings(fading="rayleigh").block_s == np.inf
    assert Settings(fading="rayleigh", speed_mps=(1.0, 15.0)).block_s == 1.0


def test_long_uploads_have_the_mean_rate() -> None:
    """An upload of well over 1,000 coherence times has the mean rate; shorter ones approach it as they get longer."""
    settings = Settings(fading="rayleigh", coherence_s=0.01, num_clients=1)
    fleet = draw_fleet(settings)
    channel = Airtime(settings, fleet, fleet.population, seed=0)
    rate_bps = 100e3 / fleet.upload_s[0]
    begins_s = np.arange(0.0, 800.0, 20.0)
    for blocks, spread in ((1500.0, 0.0), (700.0, 0.05), (99.0, 0.12)):
        bits = np.full(40, rate_bps * 0.01 * blocks)
        taken_s = channel.ends_s(np.zeros(40, dtype=np.int64), bits, begins_s) - begins_s
        ratio = taken_s / (0.01 * blocks)
        assert ratio.mean() == pytest.approx(1.0, abs=spread / 2 + 1e-9)
        assert ratio.std() <= spread + 1e-9
        assert (ratio.std() > 1e-9) == (spread > 0)
