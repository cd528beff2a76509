"""Drawn fleets, and the figures the design measured independently."""

import math
from dataclasses import replace

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import InputError, Settings, assign_tiers, draw_fleet
from lesson.fleet.fleet import fleet_of
from lesson.fleet.population import draw_population

SEEDS = range(200)


def test_table_2_released() -> None:
    """Mean slowest client 67 ± 3 s (the paper's FedAvg round: 68 s), median 28.7 s, 22 % in tier 1 at 20 s."""
    fleets = [draw_fleet(Settings(), 50, seed) for seed in SEEDS]
    assert np.mean([fleet.slowest_s for fleet in fleets]) == pytest.approx(67, abs=3)
    assert np.mean([np.median(fleet.latency_s) for fleet in fleets]) == pytest.approx(28.7, abs=0.6)
    assert np.mean([np.mean(fleet.latency_s <= 20) for fleet in fleets]) == pytest.approx(0.22, abs=0.02)
    assert np.mean([not np.any(fleet.latency_s <= 10) for fleet in fleets]) == pytest.approx(0.96, abs=0.04)


def test_table_2_printed() -> None:
    """Mean slowest client 18.0 s and median 4.6 s: the printed parameters do not give the printed results."""
    fleets = [draw_fleet(Settings(preset="printed"), 50, seed) for seed in SEEDS]
    assert np.mean([fleet.slowest_s for fleet in fleets]) == pytest.approx(18.0, abs=0.5)
    assert np.mean([np.median(fleet.latency_s) for fleet in fleets]) == pytest.approx(4.6, abs=0.15)


def test_a_client_alone_on_the_shared_channel() -> None:
    """Three clients at 1, 0.5 and 0.25 km, `released`: 3·30 kHz, the noise three times 1e-13 W.

    Path loss 128.1, 116.7813 and 105.4625 dB, so 0.1 W · gain / N0 is 0.154882, 2.09833 and 28.4280; over 3·N0 it is
    0.0516272, 0.699442 and 9.47598. 90000·log2(1 + that) is 6536.11, 68855.5 and 305011 bit/s for 100 kbit.
    """
    people = draw_population(Settings(), 3)
    there = replace(people, x_km=np.array([1.0, -0.5, 0.0]), y_km=np.array([0.0, 0.0, 0.25]))
    fleet = fleet_of(Settings(), there)
    assert fleet.upload_s == pytest.approx([16.0453, 2.04312, 0.683184], rel=1e-5)
    assert fleet.shared_upload_s == pytest.approx([15.2996, 1.45232, 0.327857], rel=1e-5)
    assert fleet.transmit_j == pytest.approx(0.1 * fleet.upload_s)
    assert fleet.shared_transmit_j == pytest.approx([1.52996, 0.145232, 0.0327857], rel=1e-5)


def test_alone_in_the_area_the_channels_are_the_same() -> None:
    fleet = draw_fleet(Settings(), 1)
    assert fleet.shared_upload_s == fleet.upload_s


def test_unreachable_clients_are_infinitely_slow() -> None:
    fleet = draw_fleet(Settings(noise_dbm=1e5))
    assert not fleet.reachable.any()
    assert np.all(np.isinf(fleet.shared_upload_s))
    with pytest.raises(InputError, match="no client can be reached: all 50 latencies are infinite"):
        _ = fleet.slowest_s


def test_latency_follows_the_processed_samples() -> None:
    def compute_s(**work: object) -> np.ndarray:
        return draw_fleet(Settings(samples_per_client=110, latency_samples="processed", **work)).compute_s

    one_step = draw_fleet(Settings()).compute_s
    assert compute_s(local_steps=3) == pytest.approx(3 * one_step)
    assert compute_s(local_epochs=2) == pytest.approx(2 * 110 / 20 * one_step)
    assert compute_s(batch_size=500) == pytest.approx(110 / 20 * one_step)


def test_local_steps_count_minibatches() -> None:
    assert set(draw_fleet(Settings(local_steps=3)).local_steps) == {3}
    # 110 samples in batches of 20 are six minibatches.
    assert set(draw_fleet(Settings(samples_per_client=110, local_epochs=2)).local_steps) == {12}


def test_weights_are_uniform_or_samples() -> None:
    assert set(draw_fleet(Settings(samples_per_client=(5, 9))).client_weight) == {1.0}
    fleet = draw_fleet(Settings(samples_per_client=(5, 9), weighting="samples"))
    assert np.array_equal(fleet.client_weight, fleet.num_samples)


def test_an_empty_first_tier_takes_the_fastest_client() -> None:
    fleet = make_fleet([30.0, 12.0, 25.0], compute_share=0.25, ensure_first_tier=True)
    promoted = fleet.at_deadline(10.0)
    assert promoted.latency_s.tolist() == [30.0, 10.0, 25.0]
    assert promoted.compute_s.tolist() == pytest.approx([7.5, 2.5, 6.25])
    assert promoted.upload_s.tolist() == pytest.approx([22.5, 7.5, 18.75])
    assert promoted.shared_upload_s.tolist() == pytest.approx([22.5, 7.5, 18.75])
    assert promoted.promoted is not None
    assert (promoted.promoted.client, promoted.promoted.latency_s) == (1, 12.0)
    assert fleet.latency_s[1] == 12.0


def test_no_client_is_promoted_if_tier_1_is_not_empty() -> None:
    fleet = make_fleet([30.0, 10.0], ensure_first_tier=True)
    assert fleet.at_deadline(10.0) is fleet
    unreachable = make_fleet([math.inf], ensure_first_tier=True)
    assert unreachable.at_deadline(10.0) is unreachable


def test_tier_1_of_a_promoted_fleet_is_never_empty() -> None:
    for deadline_s in (1e-3, 0.3, 5.0, 10.0):
        fleet = draw_fleet(Settings(ensure_first_tier=True), seed=2).at_deadline(deadline_s)
        assert np.count_nonzero(assign_tiers(fleet.latency_s, deadline_s) == 1) == 1


def test_the_seed_of_the_settings_is_used_unless_another_is_given() -> None:
    first = draw_fleet(Settings(num_clients=5, seed=3))
    assert np.array_equal(first.latency_s, draw_fleet(Settings(num_clients=5), seed=3).latency_s)
    assert not np.array_equal(first.latency_s, draw_fleet(Settings(num_clients=5)).latency_s)
