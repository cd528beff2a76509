"""Drawn populations and fleets, Eqs. (3) to (6) worked by hand, and the figures the design measured independently."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from lesson import InputError, Settings, draw_fleet, draw_population
from lesson.fleet.fleet import fleet_of

SEEDS = range(100)


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


def test_equations_3_to_6() -> None:
    """Three clients at 1, 0.5 and 0.25 km, `released`, with 2, 3 and 2 GHz and 4e8, 3e8 and 4e8 cycles per sample.

    θ·log2(1/ε) = log2 20 = 4.321928. 4e8 cycles · 20 samples / 2 GHz = 4 s, times 4.321928 = 17.2877 s; 3e8 at 3 GHz
    take half as long. Energy: 4.321928 · 4e8 · 20 = 3.457543e10 cycles, times κ·f² = 1e-28 · 4e18 = 4e-10 J, gives
    13.83017 J; 3/4 of the cycles at 9/4 of the energy give 27/16 of that.
    Path loss 128.1, 116.7813 and 105.4625 dB, so 0.1 W · gain / N0 is 0.154882, 2.09833 and 28.4280. Alone on the
    shared channel of 3·30 kHz, over 3·N0, it is 0.0516272, 0.699442 and 9.47598, and 90000·log2(1 + that) is 6536.11,
    68855.5 and 305011 bit/s for 100 kbit.
    """
    population = replace(
        draw_population(Settings(), 3),
        x_km=np.array([1.0, -0.5, 0.0]),
        y_km=np.array([0.0, 0.0, 0.25]),
        cpu_hz=np.array([2e9, 3e9, 2e9]),
        cycles_per_sample=np.array([4e8, 3e8, 4e8]),
    )
    fleet = fleet_of(Settings(), population)
    assert fleet.compute_s == pytest.approx([17.2877, 8.64386, 17.2877], rel=1e-5)
    assert fleet.upload_s == pytest.approx([16.0453, 2.04312, 0.683184], rel=1e-5)
    assert fleet.latency_s == pytest.approx([33.333, 10.68698, 17.970884], rel=1e-5)
    assert fleet.compute_j == pytest.approx([13.83017, 23.33841, 13.83017], rel=1e-6)
    assert fleet.transmit_j == pytest.approx([1.60453, 0.204312, 0.0683184], rel=1e-5)
    assert fleet.shared_upload_s == pytest.approx([15.2996, 1.45232, 0.327857], rel=1e-5)
    assert fleet.shared_transmit_j == pytest.approx([1.52996, 0.145232, 0.0327857], rel=1e-5)


def test_equation_4_with_both_charges() -> None:
    """4e8 cycles · 20 samples at 2 GHz are 8e9 / 2e9 = 4 s per pass, and 1e-28 · (2e9)² · 8e9 = 3.2 J.

    Eq. (4) charges log2(1 / 0.05) = 4.321928 passes, 17.287712 s and 13.830170 J; the trainer makes one. With θ = 2 and
    ε = 1/8, Eq. (4) charges 2 · 3 = 6 passes, 24 s and 19.2 J; a given number of passes does not depend on them.
    """
    population = replace(draw_population(Settings(), 1), cpu_hz=np.array([2e9]), cycles_per_sample=np.array([4e8]))
    other = {"theta": 2.0, "epsilon": 0.125}
    for training, passes, seconds, joules in (
        ({}, 4.321928, 17.287712, 13.830170),
        ({"latency_passes": 1}, 1, 4.0, 3.2),
        (other, 6, 24.0, 19.2),
        ({"latency_passes": 1, **other}, 1, 4.0, 3.2),
    ):
        settings = Settings(training=training)
        fleet = fleet_of(settings, population)
        assert settings.training.charged_passes == pytest.approx(passes, rel=1e-6)
        assert fleet.compute_s == pytest.approx([seconds], rel=1e-6)
        assert fleet.compute_j == pytest.approx([joules], rel=1e-6)
        assert fleet.upload_s == pytest.approx(fleet_of(Settings(), population).upload_s)


def test_unreachable_clients_are_infinitely_slow() -> None:
    fleet = draw_fleet(Settings(noise_dbm=1e5))
    assert not fleet.reachable.any()
    assert np.all(np.isinf(fleet.shared_upload_s))
    with pytest.raises(InputError, match="no client can be reached"):
        _ = fleet.slowest_s


def test_latency_follows_the_processed_samples() -> None:
    def compute_s(**work: object) -> np.ndarray:
        return draw_fleet(Settings(samples_per_client=110, latency_samples="processed", **work)).compute_s

    one_step = draw_fleet(Settings()).compute_s
    assert compute_s(local_steps=3) == pytest.approx(3 * one_step)
    assert compute_s(local_epochs=2) == pytest.approx(2 * 110 / 20 * one_step)
    assert compute_s(batch_size=500) == pytest.approx(110 / 20 * one_step)


def test_local_steps_and_weights() -> None:
    """110 samples in batches of 20 are six minibatches."""
    assert set(draw_fleet(Settings(samples_per_client=110, local_epochs=2)).local_steps) == {12}
    fleet = draw_fleet(Settings(samples_per_client=(5, 9), local_steps=3))
    assert (set(fleet.local_steps), set(fleet.client_weight)) == ({3}, {1.0})
    fleet = draw_fleet(Settings(samples_per_client=(5, 9), weighting="samples"))
    assert np.array_equal(fleet.client_weight, fleet.num_samples)


def test_fastest_client_is_promoted_to_an_empty_first_tier() -> None:
    fleet = make_fleet([30.0, 12.0, 25.0], compute_share=0.25, ensure_first_tier=True)
    promoted = fleet.at_deadline(10.0)
    assert promoted.latency_s.tolist() == [30.0, 10.0, 25.0]
    assert promoted.compute_s == pytest.approx([7.5, 2.5, 6.25])
    assert promoted.upload_s == pytest.approx([22.5, 7.5, 18.75])
    assert promoted.shared_upload_s == pytest.approx([22.5, 7.5, 18.75])
    assert promoted.promoted is not None
    assert (promoted.promoted.client, promoted.promoted.latency_s) == (1, 12.0)
    assert fleet.latency_s[1] == 12.0


def test_no_client_is_promoted_if_tier_1_is_not_empty() -> None:
    fleet = make_fleet([30.0, 10.0], ensure_first_tier=True)
    assert fleet.at_deadline(10.0) is fleet
    unreachable = make_fleet([math.inf], ensure_first_tier=True)
    assert unreachable.at_deadline(10.0) is unreachable


def test_default_seed_is_that_of_the_settings() -> None:
    first, second, other = (draw_fleet(Settings(seed=seed), 5, given) for seed, given in [(3, None), (0, 3), (0, None)])
    assert np.array_equal(first.latency_s, second.latency_s)
    assert not np.array_equal(first.latency_s, other.latency_s)


@given(st.integers(1, 300), st.integers(0, 2**64), st.floats(0.1, 50), st.integers(1, 50), st.integers(0, 500))
def test_populations_stay_inside_their_bounds(count: int, seed: int, area_km: float, low: int, extra: int) -> None:
    settings = Settings(area_km=area_km, samples_per_client=(low, low + extra))
    population = draw_population(settings, count, seed)
    assert len(population) == count
    assert np.all(np.abs([population.x_km, population.y_km]) <= area_km / 2)
    assert np.all((population.cpu_hz >= 0.8e9) & (population.cpu_hz <= 3e9))
    assert np.all((population.cycles_per_sample >= 3e8) & (population.cycles_per_sample <= 5e8))
    assert np.all((population.num_samples >= low) & (population.num_samples <= low + extra))
    assert np.all(population.power_w == 0.1)


def test_clients_are_uniform_in_the_square() -> None:
    population = draw_population(Settings(), 100_000)
    for axis in (population.x_km, population.y_km):
        # Uniform on [-1, 1]: mean 0 ± 1/√(3n), variance 1/3.
        assert abs(axis.mean()) < 5 / math.sqrt(3 * 100_000)
        assert axis.var() == pytest.approx(1 / 3, rel=0.02)
    assert abs(np.corrcoef(population.x_km, population.y_km)[0, 1]) < 0.02


def test_sample_counts_cover_their_range_evenly() -> None:
    counts = np.bincount(draw_population(Settings(samples_per_client=(3, 5)), 30_000).num_samples)
    assert counts[3:].tolist() == pytest.approx([10_000] * 3, rel=0.05)
    assert set(draw_population(Settings()).num_samples) == {1000}


def test_client_is_the_same_in_a_larger_population() -> None:
    few, many = draw_population(Settings(), 50, seed=9), draw_population(Settings(), 1000, seed=9)
    for name, values in vars(many.first(50)).items():
        assert np.array_equal(getattr(few, name), values)


@pytest.mark.parametrize(("count", "seed", "name"), [(0, 0, "num_clients"), (5, -1, "seed")])
def test_invalid_population_is_an_error(count: int, seed: int, name: str) -> None:
    with pytest.raises(InputError, match=name):
        draw_population(Settings(), count, seed)
