"""Settings from presets, files and changes, and written back."""

import math
import tomllib
from operator import attrgetter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tomli_w
from hypothesis import given

from lesson import InputError, Settings
from lesson.settings.loading import check_set_once, load_settings


def test_presets_by_name() -> None:
    assert load_settings("released") == Settings()
    assert load_settings("printed") == Settings(preset="printed")
    with pytest.raises(InputError, match="did you mean 'released'"):
        load_settings("relased")


def test_file_holds_only_differences(tmp_path: Path) -> None:
    path = tmp_path / "strong.toml"
    path.write_text(
        'preset = "printed"\n[radio]\npower_w = 2\n[fleet]\ncpu_hz = [1e9, 2e9]\n[training]\nlr_cap = inf\n'
    )
    expected = Settings(preset="printed", power_w=2.0, cpu_hz=(1e9, 2e9), lr_cap=math.inf)
    assert load_settings(str(path)) == expected


def test_changes_win_over_the_file_and_flags_over_changes(tmp_path: Path) -> None:
    path = tmp_path / "few.toml"
    path.write_text("[fleet]\nnum_clients = 5\n[radio]\npower_w = 0.3\n")
    flags = {"fleet.num_clients": 7, "strategy.deadline_s": None}
    settings = load_settings(str(path), ["radio.power_w=0.4", "fleet.num_clients=6"], flags)
    assert (settings.radio.power_w, settings.fleet.num_clients, settings.strategy.deadline_s) == (0.4, 7, 20.0)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("strategy.ensure_first_tier=false", "strategy.ensure_first_tier", False),
        ("fleet.cpu_hz=[1e9, 2e9]", "fleet.cpu_hz", (1e9, 2e9)),
        ("training.weighting=samples", "training.weighting", "samples"),
        ("preset=printed", "radio.noise_dbm", -94.0),
        ("strategy.deadline_s=inf", "strategy.deadline_s", math.inf),
        ("bandwidth_hz=1e5", "radio.bandwidth_hz", 1e5),
        (" deadline_s = 3", "strategy.deadline_s", 3.0),
    ],
)
def test_changes_are_toml_or_plain_text(change: str, name: str, value: object) -> None:
    assert attrgetter(name)(load_settings("released", [change])) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("=1", "a setting must be given as section.key=value"),
        ("radio.power_w", "a setting must be given as section.key=value"),
        ("powr_w=1", "unknown setting 'powr_w'; did you mean 'power_w'?"),
        ("radio.powr_w=1", "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        ("radoi.power_w=1", "unknown section 'radoi'; did you mean 'radio'?"),
        ("learning_rate=1", "learning_rate is a setting of [training] and [server]"),
        ("radio.power_w=abc", "[radio] power_w must be a number, got 'abc'"),
    ],
)
def test_invalid_changes(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_settings("released", [change])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[radio]\npowr_w = 1\n", "unknown setting 'powr_w'"),
        (b"power_w = 1\n", "'power_w' must be inside a section"),
        (b"[radoi]\npower_w = 1\n", "unknown section 'radoi'"),
        (b"[[radio]]\npower_w = 1\n", "radio must be one table"),
        (b"[radio\n", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (None, "does not exist"),
    ],
)
def test_invalid_files(tmp_path: Path, text: bytes | None, message: str) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        load_settings(str(path))
    assert message in str(caught.value)
    assert "bad.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [(["power_w=1", "radio.power_w=2"], {}), (["radio.power_w=1"], {"radio.power_w": 2.0})],
)
def test_setting_must_be_given_only_once(changes: list[str], flags: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="power_w must be set only once"):
        check_set_once(changes, flags)


def read_back(settings: Settings, folder: Path) -> Settings:
    """The settings that config.toml gives after it has been written with these."""
    (folder / "config.toml").write_text(tomli_w.dumps(settings.to_sections()), encoding="utf-8")
    return load_settings(str(folder / "config.toml"))


PLAIN = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), st.just(np.float32(0.5))
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in ("name", "deadline_s", "ensure_first_tier")),
        st.one_of(st.none(), VALUES),
    )
)
def test_accepted_options_are_read_back_unchanged(options: dict[str, Any]) -> None:
    try:
        settings = Settings(strategy={"name": "lesson", **options})
    except InputError:
        return
    written = tomllib.loads(tomli_w.dumps(settings.to_sections()))
    assert Settings(**written) == settings
    assert settings.strategy.options.keys() == {name for name, value in options.items() if value is not None}


def test_none_omits_a_setting_in_every_section(tmp_path: Path) -> None:
    given = {
        "data": {"beta": None},
        "fleet": {"num_clients": 5},
        "strategy": {"name": "lesson", "participation": None},
        "run": {"rounds": None, "seed": None},
        "server": {"learning_rate": None, "optimizer": None},
        "faults": {"offline_s": None},
        "guards": {"norm_limit": None},
    }
    settings = Settings(**given)
    assert settings == Settings(fleet={"num_clients": 5})
    assert settings.strategy.options == {}
    assert read_back(settings, tmp_path) == settings


def test_numpy_values_become_plain_values(tmp_path: Path) -> None:
    settings = Settings(
        fleet={"num_clients": np.int64(5), "cpu_hz": np.array([1e9, 2e9])},
        data={"beta": np.float32(0.5)},
        strategy={
            "name": np.str_("lesson"),
            "participation": np.float64(0.5),
            "tiers": (np.int8(1), [np.int8(2)]),
        },
        run={"rounds": np.uint8(3), "seed": np.array(7)},
        radio={"download": np.bool_(True)},
    )
    assert settings.strategy.options == {"participation": 0.5, "tiers": [1, [2]]}
    assert type(settings.strategy.options["participation"]) is float
    assert (settings.run.rounds, settings.run.seed, settings.fleet.cpu_hz) == (3, 7, (1e9, 2e9))
    assert read_back(settings, tmp_path) == settings
