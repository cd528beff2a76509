import math
from operator import attrgetter
from typing import Any

import pytest

from lesson import InputError, Settings
from lesson.settings.loading import load_settings

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
    ("training.charged_passes", math.log2(20), math.log2(20)),
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
        ({"training": {"epsilon": 1.0}}, "[training] epsilon must be < 1"),
        ({"epsilon": 0.1}, "epsilon is a setting of [training] and [server]"),
        ({"deadline_s": math.nan}, "[strategy] deadline_s must be > 0"),
        ({"cpu_hz": (3e9, 1e9)}, "[fleet] cpu_hz must be [low, high]"),
        ({"radio": {"speed_mps": [0.0, 2.0]}}, "[radio] speed_mps must be [low, high]"),
        ({"cpu_hz": 1e9}, "[fleet] cpu_hz must be [low, high], got 1000000000.0"),
        ({"samples_per_client": 0}, "[data] samples_per_client must be >= 1 or [low, high], got 0"),
        ({"samples_per_client": (2, 1)}, "[data] samples_per_client must be [low, high] with low <= high"),
        ({"latency_samples": "all"}, "[training] latency_samples must be a whole number or 'processed', got 'all'"),
        ({"latency_passes": 0.5}, "[training] latency_passes must be a whole number or 'eq4', got 0.5"),
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
        ({"radio": {"bandwidth_hz": 0.0}}, "[radio] bandwidth_hz must be > 0"),
        ({"radio": {"carrier_ghz": 0.1}}, "[radio] carrier_ghz must be >= 0.5"),
        ({"radio": {"coherence_s": 0.0}}, "[radio] coherence_s must be >="),
        ({"radio": {"rician_k_db": 301.0}}, "[radio] rician_k_db must be <= 300"),
        ({"radio": {"shadowing_db": -1.0}}, "[radio] shadowing_db must be >= 0"),
        ({"radio": {"spectrum": "shared"}}, "[radio] spectrum must be"),
        ({"faults": {"disconnect_during": 1.1}}, "[faults] disconnect_during must be <= 1"),
        ({"faults": {"disconnect_before": -0.1}}, "[faults] disconnect_before must be >= 0"),
        ({"faults": {"detection_delay_s": -1.0}}, "[faults] detection_delay_s must be >= 0"),
        ({"faults": {"offline_s": 0.5}}, "[faults] offline_s must be >= 1"),
        ({"guards": {"norm_limit": 0.5}}, "[guards] norm_limit must be >= 1"),
        ({"strategy": {"x": object()}}, "[strategy] x must be text, a number"),
        ({"strategy": {"x": [None]}}, "[strategy] x must be text, a number"),
    ],
)
def test_error_for_an_invalid_value_names_the_setting(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"throughput": "phones", "fading": "rayleigh"}, "throughput"),
        ({"snr_trace": "a.csv", "positions": "b.csv"}, "snr_trace"),
        ({"trace": "a.csv", "slowdown": 0.1}, "trace"),
        ({"positions": "a.csv", "speed_mps": (1.0, 2.0)}, "positions"),
        ({"presence": "a.csv", "spectrum": "in-turn"}, "presence"),
        ({"refresh_estimates_every_s": 9.0, "spectrum": "equal"}, "refresh_estimates_every_s"),
    ],
    ids=str,
)
def test_contradictory_settings(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}.* cannot be combined with"):
        Settings(**changes)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().radio.power_w = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "required"),
    [
        ("line_of_sight", "never", {"path_loss": "uma"}),
        ("shadowing_km", 0.1, {"shadowing_db": 6.0}),
        ("rician_k_db", 3.0, {"fading": "rician"}),
        ("coherence_s", 2.0, {"fading": "rayleigh"}),
        ("pause_s", 5.0, {"speed_mps": (1.0, 2.0)}),
        ("snr_start", "beginning", {"snr_trace": "snr.csv"}),
        ("station_power_w", 10.0, {"download": True}),
        ("adam_epsilon", 1e-6, {"local_optimizer": "adamw"}),
        ("schedule_period", 50.0, {"schedule": "cosine"}),
        ("estimate_window", 3, {"estimate": "mean", "slowdown": 0.5}),
        ("refresh_estimates_every_s", 60.0, {"fading": "rayleigh"}),
        ("offline_s", 50.0, {"disconnect_before": 0.1}),
        ("detection_delay_s", 5.0, {"disconnect_during": 0.1}),
        ("norm_window", 50, {"norm_limit": 2.0}),
        ("carrier_ghz", 28.0, {"channel": "module:Class"}),
    ],
)
def test_setting_without_effect_names_what_it_requires(name: str, value: Any, required: dict[str, Any]) -> None:
    (caveat,) = Settings(**{name: value}).caveats()
    assert f"{name} = {value} has no effect unless" in caveat
    assert next(iter(required)) in caveat
    assert Settings(**{name: value}, **required).caveats() == []


@pytest.mark.parametrize("split", ["iid", "natural"])
def test_beta_has_no_effect_on_a_split_without_it(split: str) -> None:
    (caveat,) = Settings(beta=0.3, split=split).caveats()
    assert "beta = 0.3 has no effect unless split is dirichlet-per-class" in caveat
    assert Settings(beta=0.3).caveats() == Settings(split=split).caveats() == []


@pytest.mark.parametrize("measured", ["throughput=phones", "snr_trace=snr.csv", "latencies=fleet.csv"])
def test_settings_of_the_channel_have_no_effect_on_measurements(measured: str) -> None:
    (caveat,) = load_settings("released", [measured, "noise_dbm=-90.0"]).caveats()
    assert "noise_dbm = -90.0 has no effect" in caveat
    assert load_settings("printed", [measured]).caveats() == [], "only the preset has changed others"


@pytest.mark.parametrize("name", ["theta", "epsilon"])
def test_theta_and_epsilon_have_no_effect_on_a_given_number_of_passes(name: str) -> None:
    (caveat,) = Settings(latency_passes=1, training={name: 0.5}).caveats()
    assert caveat.endswith(f"{name} = 0.5 has no effect unless latency_passes is eq4")
    assert Settings(latency_passes=1).caveats() == Settings(training={name: 0.5}).caveats() == []


def test_training_settings_without_effect_are_reported() -> None:
    assert Settings().caveats() == []
    assert Settings(local_steps=5, latency_samples="processed").caveats() == []
    for values in ({"local_steps": 5}, {"proximal_mu": 0.1}):
        (caveat,) = Settings(**values).caveats()
        assert caveat.startswith(next(iter(values)))
    for more in ({"local_steps": 2}, {"local_epochs": 1}):
        assert Settings(proximal_mu=0.1, latency_samples="processed", **more).caveats() == []
    assert len(Settings(proximal_mu=0.1, batch_size=5).caveats()) == 2
    (caveat,) = Settings(training={"learning_rate": 50.0}).caveats()
    assert caveat.startswith("training.learning_rate = 50 is limited to lr_cap = 1")


def test_fixed_noise_is_noted_when_the_band_changes() -> None:
    (caveat,) = Settings(bandwidth_hz=3e5).caveats()
    assert "-100 dBm" in caveat
    for other in ({"noise_dbm": -90.0}, {"noise_dbm_per_hz": -174.0}):
        assert Settings(bandwidth_hz=3e5, **other).caveats() == []


@pytest.mark.parametrize(("name", "value"), [("path_loss", "hata"), ("channel", "mine")])
def test_names_of_channels_are_checked(name: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"\[radio\] .*{name}.*{value}"):
        Settings(**{name: value})
