import math
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lesson import InputError, Settings, draw_population

# The design's table, row by row: (setting, printed, released).
TABLE: list[tuple[str, Any, Any]] = [
    ("radio.power_w", 1.0, 0.1),
    ("radio.noise_dbm", -94.0, -100.0),
    ("fleet.cycles_per_sample", (3e5, 5e5), (3e8, 5e8)),
    ("training.latency_samples", 1000, 20),
    ("training.weighting", "samples", "uniform"),
    ("data.split", "dirichlet-per-client", "dirichlet-per-class"),
    ("training.lr_cap", math.inf, 1.0),
    ("strategy.ensure_first_tier", False, False),
    ("radio.path_loss_1km_db", 128.1, 128.1),
    ("radio.path_loss_slope_db", 37.6, 37.6),
    ("fleet.num_clients", 50, 50),
    ("fleet.area_km", 2.0, 2.0),
    ("radio.bandwidth_hz", 30e3, 30e3),
    ("upload.model_bits", 100e3, 100e3),
    ("fleet.cpu_hz", (0.8e9, 3e9), (0.8e9, 3e9)),
    ("training.local_iterations", math.log2(20), math.log2(20)),
    ("data.samples_per_client", 1000, 1000),
    ("training.learning_rate", 0.1, 0.1),
    ("training.batch_size", 20, 20),
    ("training.local_steps", 1, 1),
    ("data.beta", 1.0, 1.0),
]


@pytest.mark.parametrize(("name", "printed", "released"), TABLE)
def test_presets(name: str, printed: Any, released: Any) -> None:
    value = attrgetter(name)
    assert value(Settings(preset="printed")) == printed
    assert value(Settings(preset="released")) == released
    assert value(Settings()) == released


def test_given_values_win_over_the_preset() -> None:
    settings = Settings(preset="printed", power_w=0.5)
    assert (settings.radio.power_w, settings.radio.noise_dbm) == (0.5, -94.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"power_w": -1.0}, "[radio] power_w must be > 0, got -1.0"),
        ({"power_w": math.nan}, "[radio] power_w must be a finite number, got nan"),
        ({"noise_dbm": math.inf}, "[radio] noise_dbm must be a finite number, got inf"),
        ({"power_w": "0.1"}, "[radio] power_w must be a number, got '0.1'"),
        ({"power_w": True}, "[radio] power_w must be a number, got True"),
        ({"num_clients": 0}, "[fleet] num_clients must be >= 1, got 0"),
        ({"num_clients": 10**12}, "[fleet] num_clients must be <= 10000000, got 1000000000000"),
        ({"num_clients": 2.5}, "[fleet] num_clients must be a whole number, got 2.5"),
        ({"local_steps": 10**30}, "[training] local_steps must be <= 1000000000, got 1000000000000000000000000000000"),
        ({"batch_size": 10**9000}, "[training] batch_size must be <= 1000000000, got a huge number"),
        ({"training": {"epsilon": 1.0}}, "[training] epsilon must be < 1, got 1.0"),
        ({"epsilon": 0.1}, "epsilon is a setting of [training] and [server]; use training.epsilon or server.ep"),
        ({"radio": {"powr_w": 1.0}}, "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        ({"deadline_s": 0.0}, "[strategy] deadline_s must be > 0, got 0.0"),
        ({"deadline_s": math.nan}, "[strategy] deadline_s must be > 0, got nan"),
        (
            {"cpu_hz": (3e9, 1e9)},
            "[fleet] cpu_hz must be [low, high] with low <= high, got [3000000000.0, 1000000000.0]",
        ),
        ({"cpu_hz": 2e9}, "[fleet] cpu_hz must be [low, high], both > 0, got 2000000000.0"),
        ({"cpu_hz": (1e9, -1.0)}, "[fleet] cpu_hz must be [low, high], both > 0, got -1.0"),
        ({"cpu_hz": (1e9,)}, "[fleet] cpu_hz must be [low, high], both > 0, got (1000000000.0,)"),
        ({"samples_per_client": 0}, "[data] samples_per_client must be a whole number from 1 to 1000000000"),
        (
            {"latency_samples": "all"},
            "[training] latency_samples must be a whole number from 1 to 1000000000 or 'processed'",
        ),
        ({"proximal_mu": -0.1}, "[training] proximal_mu must be >= 0, got -0.1"),
        ({"proximal_mu": math.inf}, "[training] proximal_mu must be a finite number, got inf"),
        ({"weighting": "equal"}, "[training] weighting must be 'uniform' or 'samples', got 'equal'"),
        ({"ensure_first_tier": 1}, "[strategy] ensure_first_tier must be true or false, got 1"),
        ({"preset": "relased"}, "unknown preset 'relased'; did you mean 'released'? Available: phones, printed"),
        ({"self": 1.0}, "unknown setting 'self'; 'lesson settings' lists all"),
        ({"powr_w": 1.0}, "unknown setting 'powr_w'; did you mean 'power_w'? 'lesson settings' lists all"),
    ],
)
def test_bad_values_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().radio.power_w = 1.0  # type: ignore[misc]


def test_deadline_may_be_infinite() -> None:
    assert Settings(deadline_s=math.inf).strategy.deadline_s == math.inf


def test_local_training_that_does_not_affect_the_latency_is_reported() -> None:
    assert Settings().caveats() == []
    assert Settings(local_steps=5, latency_samples="processed").caveats() == []
    (caveat,) = Settings(local_steps=5).caveats()
    assert caveat.startswith("local_steps = 5 does not change the compute latency, which is charged for 20 samples")


def test_a_proximal_term_without_effect_on_one_step_is_reported() -> None:
    (caveat,) = Settings(proximal_mu=0.1).caveats()
    assert caveat.startswith("proximal_mu = 0.1 has no effect on a single local step")
    for more in ({"local_steps": 2}, {"local_epochs": 1}):
        assert Settings(proximal_mu=0.1, latency_samples="processed", **more).caveats() == []
    assert len(Settings(proximal_mu=0.1, batch_size=5).caveats()) == 2


@given(st.integers(1, 300), st.integers(0, 2**64), st.floats(0.1, 50), st.integers(1, 50), st.integers(0, 500))
def test_populations_stay_inside_their_bounds(count: int, seed: int, area_km: float, low: int, extra: int) -> None:
    settings = Settings(area_km=area_km, samples_per_client=(low, low + extra))
    people = draw_population(settings, count, seed)
    assert len(people) == count
    assert np.all(np.abs([people.x_km, people.y_km]) <= area_km / 2)
    assert np.all((people.cpu_hz >= 0.8e9) & (people.cpu_hz <= 3e9))
    assert np.all((people.cycles_per_sample >= 3e8) & (people.cycles_per_sample <= 5e8))
    assert np.all((people.num_samples >= low) & (people.num_samples <= low + extra))
    assert np.all(people.power_w == 0.1)


def test_clients_are_uniform_in_the_square() -> None:
    people = draw_population(Settings(), 100_000)
    for axis in (people.x_km, people.y_km):
        # Uniform on [-1, 1]: mean 0 ± 1/√(3n), variance 1/3.
        assert abs(axis.mean()) < 5 / math.sqrt(3 * 100_000)
        assert axis.var() == pytest.approx(1 / 3, rel=0.02)
    assert abs(np.corrcoef(people.x_km, people.y_km)[0, 1]) < 0.02


def test_sample_counts_cover_their_range_evenly() -> None:
    counts = np.bincount(draw_population(Settings(samples_per_client=(3, 5)), 30_000).num_samples)
    assert counts[3:].tolist() == pytest.approx([10_000] * 3, rel=0.05)
    assert set(draw_population(Settings()).num_samples) == {1000}


def test_a_client_is_the_same_in_a_larger_population() -> None:
    few, many = draw_population(Settings(), 50, seed=9), draw_population(Settings(), 1000, seed=9)
    assert vars(few).keys() == vars(many.first(50)).keys()
    for name, values in vars(many.first(50)).items():
        assert np.array_equal(getattr(few, name), values)


def test_seeds_differ() -> None:
    assert not np.array_equal(draw_population(Settings(), seed=0).x_km, draw_population(Settings(), seed=1).x_km)


@pytest.mark.parametrize(
    ("count", "seed", "message"),
    [(0, 0, "num_clients must be from 1 to 10000000, got 0"), (5, -1, "seed must be >= 0, got -1")],
)
def test_bad_draws(count: int, seed: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_population(Settings(), count, seed)
