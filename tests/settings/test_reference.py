"""Descriptions of settings: units, defaults, bounds, and looking them up by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from lesson.core.errors import InputError
from lesson.core.validation import Share
from lesson.settings.loading import load_settings
from lesson.settings.reference import describe, describe_options, describe_section, find_descriptions
from lesson.settings.settings import NAMES, SECTIONS, Settings
from lesson.strategies.base import CheckedOptions

EVERY = [setting for section in SECTIONS for setting in describe_section(section)]


def test_every_setting_is_described_once() -> None:
    assert sorted(setting.full_name for setting in EVERY) == sorted(
        f"{section}.{name}" for name, sections in NAMES.items() for section in sections
    )
    assert [setting.full_name for setting in EVERY if not setting.meaning or not setting.allowed] == []


def test_setting_has_meaning_unit_defaults_and_bounds() -> None:
    noise = describe("radio", "noise_dbm")
    assert (noise.unit, noise.default, noise.allowed) == ("dBm", "-100", "number")
    assert noise.presets == {"printed": "-94", "chen": "-50"}
    assert noise.example == "radio.noise_dbm=-100"


@pytest.mark.parametrize(
    ("name", "unit", "allowed"),
    [
        ("training.lr_cap", "", "number > 0 or inf"),
        ("training.latency_samples", "", "whole number from 1 to 1,000,000,000 or processed"),
        ("fleet.cpu_hz", "Hz", "[low, high], each a number > 0"),
        ("radio.fading", "", "none, rayleigh, rician"),
        ("run.eval_every_s", "s", "auto or number >= 0.001"),
    ],
)
def test_units_and_bounds_in_words(name: str, unit: str, allowed: str) -> None:
    setting = describe(*name.split("."))
    assert (setting.unit, setting.allowed) == (unit, allowed)


@dataclass(frozen=True)
class Custom(CheckedOptions):
    share: Share = 0.5
    level: Literal[1, 2] = 1
    sizes: list[int] = field(default_factory=list)
    table: dict[str, float] | None = None
    anything: Any = None


@dataclass(frozen=True)
class WithFunction(CheckedOptions):
    function: Callable[[int], int] = abs


def test_options_of_custom_strategies_are_described() -> None:
    allowed = {one.name: one.allowed for one in describe_options(Custom)}
    assert allowed == {
        "share": "number from 0 to 1",
        "level": "1, 2",
        "sizes": "list",
        "table": "table",
        "anything": "",
    }
    assert [one.allowed for one in describe_options(WithFunction)] == [""]
    assert Custom(share=1).share == 1.0


def test_setting_every_default_changes_nothing() -> None:
    changes = [setting.example.strip("'") for setting in EVERY if setting.default]
    assert load_settings("released", changes) == Settings()


@pytest.mark.parametrize(("preset", "num_changed"), [("printed", 7), ("phones", 8)])
def test_only_settings_changed_by_a_preset_have_a_second_default(preset: str, num_changed: int) -> None:
    others = [f"{setting.full_name}={setting.presets[preset]}" for setting in EVERY if preset in setting.presets]
    assert len(others) == num_changed
    assert load_settings("released", others).to_sections() | {"preset": preset} == Settings(preset=preset).to_sections()


def test_settings_are_found_by_name_or_section() -> None:
    assert find_descriptions("noise_dbm") == find_descriptions("radio.noise_dbm") == [describe("radio", "noise_dbm")]
    assert find_descriptions("upload") == describe_section("upload")
    assert [one.full_name for one in find_descriptions("epsilon")] == ["training.epsilon", "server.epsilon"]
    assert [one.example for one in find_descriptions("preset")] == ["preset=released"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noise_db", "did you mean 'noise_dbm'"),
        ("radio.nois", "did you mean 'noise_dbm'"),
        ("radioo.noise_dbm", "did you mean 'radio'"),
    ],
)
def test_unknown_names_are_errors(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_descriptions(name)
