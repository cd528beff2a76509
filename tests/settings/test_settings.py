import datetime
import math
import tomllib
from operator import attrgetter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lesson import InputError, Settings
from lesson.core.toml import parse_toml
from lesson.experiments.grid import load_grid, make_grid
from lesson.settings.faults import FaultSettings
from lesson.settings.guards import GuardSettings
from lesson.settings.loading import load_settings
from lesson.settings.migration import MOVED
from lesson.settings.sections import RadioSettings, RunSettings, ServerSettings
from lesson.settings.settings import NAMES
from lesson.settings.toml_text import to_toml
from lesson.strategies import make_strategy


def test_presets_by_name() -> None:
    assert load_settings("released") == Settings()
    assert load_settings("printed") == Settings(preset="printed")


def test_a_file_holds_only_differences(tmp_path: Path) -> None:
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


def test_the_server_section(tmp_path: Path) -> None:
    path = tmp_path / "adam.toml"
    path.write_text('[server]\noptimizer = "adam"\nlearning_rate = 0.01\n')
    server = load_settings(str(path), ["server.epsilon=1e-4", "server.aggregate=updates"]).server
    assert server == ServerSettings(optimizer="adam", learning_rate=0.01, epsilon=1e-4, aggregate="updates")
    assert load_settings("released").server == ServerSettings()
    assert load_settings("released", ["server.beta1=0"]).to_sections()["server"]["beta1"] == 0.0
    with pytest.raises(InputError, match=r"^\[server\] optimizer must be 'none', .* got 'sgd'$"):
        load_settings("released", ["server.optimizer=sgd"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("=1", "a setting must be given as section.key=value, such as radio.power_w=0.2, got '=1'"),
        ("powr_w=1", "unknown setting 'powr_w'; did you mean 'power_w'? 'lesson settings' lists all"),
        (
            "learning_rate=1",
            "learning_rate is a setting of [training] and [server]; use training.learning_rate or ",
        ),
        (
            "scenario.powr_w=1",
            "[scenario] was divided into [fleet], [radio], [training], [data], [upload], [server] and [strategy]",
        ),
        ("scenario.power_w=1", "scenario.power_w is now radio.power_w"),
        ("server.stale=updates", "server.stale is now server.aggregate"),
        ("ask_every_s=5", "ask_every_s is now server.refresh_estimates_every_s"),
        ("replayed=1", "faults.replayed was removed: such uploads were always rejected"),
        ("faults.replayed=1", "faults.replayed was removed: such uploads were always rejected"),
        ("radio.power_w", "a setting must be given as section.key=value"),
        ("radoi.power_w=1", "unknown section 'radoi'; did you mean 'radio'?"),
        ("radio.power_w=abc", "[radio] power_w must be a number, got 'abc'"),
        ("radio.powr_w=1", "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        ("radio.power_w=" + "[" * 5000, "[radio] power_w must be a number, got"),
    ],
)
def test_bad_changes(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_settings("released", [change])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[radio]\npowr_w = 1\n", "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        (b"power_w = 1\n", "'power_w' must be inside a section, one of: [fleet], [radio], [training], [data]"),
        (b"[radoi]\npower_w = 1\n", "unknown section 'radoi'; did you mean 'radio'?"),
        (b"[scenario]\npower_w = 1\n", "[scenario] power_w is now [radio] power_w"),
        (b'[scenario]\npreset = "printed"\n', "[scenario] preset is now preset, before all sections"),
        (
            b"[scenario]\n",
            "[scenario] was divided into [fleet], [radio], [training], [data], [upload], [server] and [strategy]",
        ),
        (b"[run]\ndataset = 'mnist'\n", "[run] dataset is now [data] dataset"),
        (b"[faults]\nwrong_shape = 0.1\n", "faults.wrong_shape was removed: such uploads were always rejected"),
        (b"format = 3\n", "format must be 2, got 3: another version of lesson wrote it"),
        (b"[[radio]]\npower_w = 1\n", "radio must be one table, written [radio]"),
        (b"[radio]\npower_w = " + b"1" * 5000, "cannot be read"),
        (b"[radio\n", "cannot be read: Expected ']'"),
        (b"\xff\xfe", "cannot be read: not TOML in UTF-8"),
        (b"a = " + b"[" * 100_000, "cannot be read"),
        (b"#" * (1 << 20) + b"\n", "cannot be read: it must have at most 1048576 bytes, got 1048577"),
        (b".".join([b"a"] * 500_000) + b" = 1", "cannot be read: a key must have at most 50 parts"),
        (b"[run]\n\"b\" . 'c'" + b" . a" * 60_000 + b" = 1", "cannot be read: a key must have at most 50 parts"),
        (b'"\\""' + b'."\\""' * 60_000 + b" = 1", "cannot be read: a key must have at most 50 parts"),
        (b"a" * 1_000_000, "cannot be read: Expected '='"),
    ],
)
def test_bad_files(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        load_settings(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml does not exist; scenario must be a preset"):
        load_settings(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match=r"folder.toml cannot be read: Is a directory"):
        load_settings(str(tmp_path / "folder.toml"))
    with pytest.raises(InputError, match=r"unknown scenario 'relased'; did you mean 'released'\?"):
        load_settings("relased")


HARD = {
    "escaped quotes": '\\"' * 500_000,
    "a string of escaped quotes": '"' + '\\"' * 500_000,
    "alternating quotes": "\"'" * 500_000,
    "quotes on every line": "'a\n" * 300_000,
    "triple quotes": '"""' * 300_000,
    "an unterminated string with escaped triple quotes": 'a = """' + 'a"\\"""' * 150_000,
    "backslashes": '"' + "\\" * 1_000_000,
    "a dotted key": ".".join(["a"] * 500_000) + " = 1",
    "a dotted key after a quote in a string": 'x = ["""\n \' """, {' + ".".join(["'a'"] * 100_000) + " = 1}]",
    "a dotted key after a comment with a quote": "# it's\n" + ".".join(["'a'"] * 100_000) + " = 1",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_the_time_to_read_toml_grows_with_its_length_alone(text: str) -> None:
    """With a quadratic scan or parser each of these takes from minutes to hours."""
    with pytest.raises(ValueError, match=r"at line|at end|at most"):
        parse_toml(text)


def test_strings_and_comments_may_hold_anything() -> None:
    dots = ".".join(["a"] * 100)
    text = f"""
    # {dots} it's "
    a.'b.c'."d\\"e" = "{dots}"
    f = \'\'\'{dots}'\'\'\'\'
    g = [{"0.5, " * 100}]
    """
    text += f'h = """{dots}""\\""""\n'
    assert list(parse_toml(text)) == ["a", "f", "g", "h"]


@pytest.mark.parametrize("value", ["{" + ".".join("a" * 60_000) + " = 1}", '\\"' * 60_000])
def test_a_value_on_the_command_line_that_is_slow_to_parse_is_text(value: str) -> None:
    with pytest.raises(InputError, match="power_w must be a number"):
        load_settings("released", [f"radio.power_w={value}"])


def read_back(settings: Settings, folder: Path) -> Settings:
    """The settings that config.toml gives after it has been written with these."""
    (folder / "config.toml").write_text(to_toml(settings.to_sections()), encoding="utf-8")
    return load_settings(str(folder / "config.toml"))


NUMPY = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(np.int64),
    st.floats(allow_nan=False, width=32).map(np.float32),
    st.floats(allow_nan=False).map(np.float64),
    st.booleans().map(np.bool_),
    st.lists(st.floats(-1e9, 1e9), max_size=3).map(np.array),
    st.integers(0, 9).map(np.array),
    st.text(max_size=5).map(np.str_),
)
PLAIN = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), st.just(Path("a/b")))
VALUES = st.recursive(
    st.one_of(PLAIN, NUMPY),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in ("name", "deadline_s", "ensure_first_tier", "options")),
        st.one_of(st.none(), VALUES),
    )
)
def test_whatever_options_are_accepted_read_back_equal(options: dict[str, Any]) -> None:
    try:
        settings = Settings(strategy={"name": "lesson", **options})
    except InputError:
        return
    written = tomllib.loads(to_toml(settings.to_sections()))
    assert Settings(**written) == settings
    assert {name: written[name] for name in ("strategy", "run", "server")} == {
        name: settings.to_sections()[name] for name in ("strategy", "run", "server")
    }
    assert settings.strategy.options.keys() == {name for name, value in options.items() if value is not None}


def test_none_leaves_a_setting_out_in_every_section(tmp_path: Path) -> None:
    given = {
        "data": {"beta": None},
        "fleet": {"num_clients": 5},
        "strategy": {"name": "lesson", "participation": None},
        "run": {"rounds": None, "seed": None},
        "server": {"learning_rate": None, "optimizer": None},
        "faults": {"scale": None},
        "guards": {"norm": None},
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
        guards={"finite": np.bool_(True)},
    )
    assert settings.strategy.options == {"participation": 0.5, "tiers": [1, [2]]}
    assert type(settings.strategy.options["participation"]) is float
    assert (settings.run.rounds, settings.run.seed, settings.fleet.cpu_hz) == (3, 7, (1e9, 2e9))
    assert read_back(settings, tmp_path) == settings


@pytest.mark.parametrize(
    "value",
    [object(), {1}, 1j, b"bytes", [None], {"a": None}, {1: 2}, math.nan, 10**5000, "\ud800", datetime.date(2024, 1, 1)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_a_settings_file_cannot_hold_is_rejected_when_settings_are_made(value: object) -> None:
    with pytest.raises(
        InputError, match=r"^\[strategy\] x must be text, a number, true, false, or a list or table of t"
    ):
        Settings(strategy={"x": value})


def test_values_nested_too_deeply_are_rejected() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(InputError, match=r"^\[strategy\] values are nested too deeply$"):
        Settings(strategy={"x": value})
    for depth in range(49):  # whatever is accepted can be read again
        value = [value] if depth else []
    assert tomllib.loads(to_toml(Settings(strategy={"x": value}).to_sections()))["strategy"]["x"] == value


def test_a_grid_of_numpy_values_reads_back_equal(tmp_path: Path) -> None:
    sections = {"run": {"rounds": np.int64(2), "time_budget_s": None}, "strategy": {"late": None}}
    grid = make_grid(sections, {"data.beta": np.array([0.1, 1.0]), "strategy.name": ("lesson", "fedavg")}, np.int64(2))
    (tmp_path / "sweep.toml").write_text(grid.toml)
    assert load_grid(str(tmp_path / "sweep.toml")) == grid
    with pytest.raises(InputError, match=r"data\.beta must be a list of values without None"):
        make_grid({}, {"data.beta": [None, 1.0]})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"radio": {"bandwidth_hz": -30000.0}}, "[radio] bandwidth_hz must be > 0, got -30000.0"),
        ({"radio": {"speed_mps": [0.0, 2.0]}}, "[radio] speed_mps must be [low, high] with 0 < low <= high"),
        ({"fleet": {"cpu_hz": [2e9, 1e9]}}, "[fleet] cpu_hz must be [low, high] with low <= high"),
        ({"preset": "relased"}, "unknown preset 'relased'; did you mean 'released'?"),
        ({"radio": {"powr_w": 1}}, "[radio] unknown setting 'powr_w'; did you mean 'power_w'?"),
        ({"radio": 3}, "radio must be a table, such as {'bandwidth_hz': …}, got 3"),
        ({"strategy": "fedavg"}, 'strategy must be a table, such as {"name": "fedavg"}, got \'fedavg\''),
        ({"radio": {"power_w": 2.0}, "power_w": 1.0}, "radio.power_w must be set only once, got 2.0 and 1.0"),
        ({"strategy": {"name": 3}}, "[strategy] name must be text, got 3"),
        ({"run": {"rounds": 0}}, "[run] rounds must be >= 1, got 0"),
        ({"run": {"time_budget_s": math.inf}}, "[run] rounds or a finite time_budget_s must be given"),
        ({"server": {"beta1": 1.0}}, "[server] beta1 must be < 1, got 1.0"),
        ({"faults": {"offline_s": 1e10}}, "[faults] offline_s must be at most 1e+09"),
        ({"guards": {"finite": False, "norm": "clip"}}, "[guards] finite must be true with norm or aggregation"),
    ],
)
def test_messages_name_the_section(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Settings(**sections)
    assert str(caught.value).startswith(message)


def test_messages_name_the_section_when_a_section_is_made_alone() -> None:
    for kind, section in (
        (RadioSettings, "radio"),
        (RunSettings, "run"),
        (ServerSettings, "server"),
        (FaultSettings, "faults"),
        (GuardSettings, "guards"),
    ):
        with pytest.raises(InputError, match=rf"^\[{section}\] unknown setting 'x'; "):
            kind(x=1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lesson", {"late": "wait"}, "[strategy] late must be 'merge' or 'drop', got 'wait'"),
        ("fedbuff", {"concurrency": 0}, "[strategy] concurrency must be a whole number >= 1, got 0"),
        ("fedasync", {"staleness": "odd"}, "[strategy] staleness must be one of "),
        ("lesson", {"lat": 1}, "[strategy] unknown setting 'lat' for lesson; did you mean 'late'?"),
    ],
)
def test_messages_of_strategies_name_the_section(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_strategy(name, 20.0, options)
    assert str(caught.value).startswith(message)


OLD = """
[scenario]
preset = "printed"
num_clients = 7
fading = "rayleigh"
deadline_s = 3.0
ask_every_s = 40.0
learning_rate = 0.05
[strategy]
name = "lesson"
late = "drop"
[run]
dataset = "cifar10"
rounds = 4
[server]
stale = "updates"
learning_rate = 0.5
[faults]
wrong_clients = 0.25
duplicated = 0.0
[guards]
norm = "refuse"
set_aside_after = 3
[versions]
lesson = "0.1.0"
"""


def test_settings_that_version_0_1_wrote_into_a_run_folder_are_migrated(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OLD)
    assert load_settings(path) == Settings(
        preset="printed",
        fleet={"num_clients": 7},
        radio={"fading": "rayleigh"},
        training={"learning_rate": 0.05},
        data={"dataset": "cifar10"},
        server={"aggregate": "updates", "learning_rate": 0.5, "refresh_estimates_every_s": 40.0},
        strategy={"name": "lesson", "deadline_s": 3.0, "late": "drop"},
        run={"rounds": 4},
        faults={"corrupting_clients": 0.25},
        guards={"norm": "reject", "exclude_after_rejections": 3},
    )


def test_every_old_name_has_a_setting_today() -> None:
    for section, name in MOVED.values():
        assert section in NAMES.get(name, ()) or (section, name) == ("", "preset")
