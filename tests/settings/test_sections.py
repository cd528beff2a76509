import math
from operator import attrgetter
from typing import Any

import pytest

from lesson import InputError, Settings

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


def test_presets() -> None:
    for name, printed, released in TABLE:
        value = attrgetter(name)
        assert value(Settings(preset="printed")) == printed, name
        assert value(Settings()) == value(Settings(preset="released")) == released, name


def test_given_values_win_over_the_preset() -> None:
    settings = Settings(preset="printed", power_w=0.5)
    assert (settings.radio.power_w, settings.radio.noise_dbm) == (0.5, -94.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"power_w": -1.0}, "[radio] power_w must be > 0, got -1.0"),
        ({"power_w": math.nan}, "[radio] power_w must be a finite number"),
        ({"power_w": True}, "[radio] power_w must be a number"),
        ({"num_clients": 2.5}, "[fleet] num_clients must be a whole number"),
        ({"batch_size": 10**9000}, "[training] batch_size must be <= 1000000000"),
        ({"training": {"epsilon": 1.0}}, "[training] epsilon must be < 1"),
        ({"epsilon": 0.1}, "epsilon is a setting of [training] and [server]"),
        ({"deadline_s": math.nan}, "[strategy] deadline_s must be > 0"),
        ({"cpu_hz": (3e9, 1e9)}, "[fleet] cpu_hz must be [low, high]"),
        ({"radio": {"speed_mps": [0.0, 2.0]}}, "[radio] speed_mps must be [low, high]"),
        ({"samples_per_client": 0}, "[data] samples_per_client"),
        ({"latency_samples": "all"}, "[training] latency_samples"),
        ({"weighting": "equal"}, "[training] weighting must be 'uniform' or 'samples'"),
        ({"ensure_first_tier": 1}, "[strategy] ensure_first_tier must be true or false"),
        ({"preset": "relased"}, "unknown preset 'relased'; did you mean 'released'?"),
        ({"powr_w": 1.0}, "unknown setting 'powr_w'; did you mean 'power_w'?"),
        ({"radio": {"powr_w": 1.0}}, "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        ({"radio": 3}, "radio must be a table"),
        ({"radio": {"power_w": 2.0}, "power_w": 1.0}, "radio.power_w must be set only once"),
        ({"strategy": {"name": 3}}, "[strategy] name must be text"),
        ({"run": {"rounds": 0}}, "[run] rounds must be >= 1"),
        ({"run": {"time_budget_s": math.inf}}, "[run] rounds or a finite time_budget_s"),
        ({"server": {"optimizer": "sgd"}}, "[server] optimizer"),
        ({"faults": {"offline_s": 1e10}}, "[faults] offline_s"),
        ({"guards": {"finite": False, "norm": "clip"}}, "[guards] finite"),
        ({"strategy": {"x": object()}}, "[strategy] x must be text, a number"),
        ({"strategy": {"x": [None]}}, "[strategy] x must be text, a number"),
        ({"strategy": {"x": math.nan}}, "[strategy] x must be text, a number"),
    ],
)
def test_bad_values_are_one_line_that_names_the_setting(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().radio.power_w = 1.0  # type: ignore[misc]


def test_settings_without_effect_are_reported() -> None:
    assert Settings().caveats() == []
    assert Settings(local_steps=5, latency_samples="processed").caveats() == []
    for values in ({"local_steps": 5}, {"proximal_mu": 0.1}):
        (caveat,) = Settings(**values).caveats()
        assert caveat.startswith(next(iter(values)))
    for more in ({"local_steps": 2}, {"local_epochs": 1}):
        assert Settings(proximal_mu=0.1, latency_samples="processed", **more).caveats() == []
    assert len(Settings(proximal_mu=0.1, batch_size=5).caveats()) == 2
