"""Descriptions of settings: units, defaults, bounds, and looking them up by name."""

import re
from pathlib import Path

import pytest

from lesson.core.errors import InputError
from lesson.settings.loading import load_settings
from lesson.settings.migration import MOVED, REMOVED
from lesson.settings.reference import as_text, describe, describe_section, find_descriptions
from lesson.settings.settings import NAMES, SECTIONS, Settings

EVERY = [setting for section in SECTIONS for setting in describe_section(section)]


def test_every_setting_is_described_once() -> None:
    assert sorted(setting.full_name for setting in EVERY) == sorted(
        f"{section}.{name}" for name, sections in NAMES.items() for section in sections
    )
    assert [setting.full_name for setting in EVERY if not setting.meaning or not setting.allowed] == []


def test_a_setting_has_meaning_unit_defaults_and_bounds() -> None:
    noise = describe("radio", "noise_dbm")
    assert (noise.unit, noise.default, noise.presets, noise.allowed) == ("dBm", "-100", {"printed": "-94"}, "number")
    assert noise.meaning == "noise plus inter-cell interference N0 on a client's band"
    assert noise.example == "radio.noise_dbm=-100"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("strategy.deadline_s", "s"),
        ("radio.bandwidth_hz", "Hz"),
        ("radio.carrier_ghz", "GHz"),
        ("radio.power_w", "W"),
        ("radio.shadowing_db", "dB"),
        ("fleet.area_km", "km"),
        ("radio.speed_mps", "m/s"),
        ("upload.model_bits", "bit"),
        ("training.local_steps", ""),
        ("server.epsilon", ""),
    ],
)
def test_the_unit_follows_from_the_name(name: str, unit: str) -> None:
    assert describe(*name.split(".")).unit == unit


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("training.epsilon", "number > 0 and < 1"),
        ("training.lr_cap", "number > 0 or inf"),
        ("training.latency_samples", "whole number from 1 to 1,000,000,000 or processed"),
        ("fleet.cpu_hz", "[low, high], each a number > 0"),
        ("radio.fading", "none, rayleigh, rician"),
        ("radio.download", "true or false"),
        ("run.rounds", "whole number from 1 to 1,000,000,000"),
        ("run.eval_every_s", "auto or number >= 0.001"),
        ("faults.nan", "number from 0 to 1"),
        ("strategy.name", "text"),
    ],
)
def test_bounds_are_given_in_words(name: str, allowed: str) -> None:
    assert describe(*name.split(".")).allowed == allowed


def test_setting_every_default_changes_nothing() -> None:
    changes = [setting.example.strip("'") for setting in EVERY if setting.default]
    assert load_settings("released", changes) == Settings()


@pytest.mark.parametrize(("preset", "num_changed"), [("printed", 7), ("phones", 8)])
def test_only_settings_that_a_preset_changes_have_another_default(preset: str, num_changed: int) -> None:
    others = [f"{setting.full_name}={setting.presets[preset]}" for setting in EVERY if preset in setting.presets]
    assert len(others) == num_changed
    assert load_settings("released", others).to_sections() | {"preset": preset} == Settings(preset=preset).to_sections()


def test_values_are_shown_as_set_takes_them() -> None:
    assert [as_text(value) for value in (None, "", True, 0.1, 30e3, 7, "mnist", (0.8e9, 3e9))] == [
        "",
        "",
        "true",
        "0.1",
        "30000",
        "7",
        "mnist",
        "[8e+08, 3e+09]",
    ]


def test_settings_are_found_by_name_by_section_and_name_or_by_section() -> None:
    assert find_descriptions("noise_dbm") == find_descriptions("radio.noise_dbm") == [describe("radio", "noise_dbm")]
    assert find_descriptions("upload") == describe_section("upload")
    assert [one.full_name for one in find_descriptions("epsilon")] == ["training.epsilon", "server.epsilon"]
    assert [one.example for one in find_descriptions("preset")] == ["preset=released"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noise_db", "unknown setting 'noise_db'; did you mean 'noise_dbm'? 'lesson settings' lists all"),
        ("radio.nois", "[radio] unknown setting 'nois'; did you mean 'noise_dbm'? Available: "),
        ("radioo.noise_dbm", "unknown section 'radioo'; did you mean 'radio'? Available: "),
        ("strategy.options", "[strategy] unknown setting 'options'; available: deadline_s, ensure_first_tier, name"),
        ("scenario.noise_dbm", "scenario.noise_dbm is now radio.noise_dbm"),
        ("away_s", "away_s is now faults.offline_s"),
        ("faults.duplicated", "faults.duplicated was removed: "),
        ("scenario", "[scenario] was divided into [fleet], "),
    ],
)
def test_unknown_and_old_names_are_errors(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        find_descriptions(name)
    assert str(error.value).startswith(message)


def test_the_migration_page_lists_every_old_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "migrate-from-0.1.md").read_text()
    for (section, name), (place, new) in MOVED.items():
        kept = re.search(rf"^\| `\[{place}\]` \| .*`{new}`", page, re.MULTILINE)
        assert kept or f"| `{section}.{name}` | `{place}.{new}` |" in page or name == "preset", name
    assert [name for section, name in REMOVED if f"`{section}.{name}`" not in page] == []
