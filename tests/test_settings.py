import math
from pathlib import Path

import pytest

from lesson import InputError, Scenario
from lesson.settings import ServerSettings, load_settings
from lesson.toml_files import parse_toml


def load_scenario(source: str, changes: list[str] | tuple[str, ...] = (), **flags: object) -> Scenario:
    return load_settings(source, changes, scenario=flags).scenario


def test_presets_by_name() -> None:
    assert load_scenario("released") == Scenario()
    assert load_scenario("printed") == Scenario(preset="printed")


def test_a_file_holds_only_differences(tmp_path: Path) -> None:
    path = tmp_path / "strong.toml"
    path.write_text('[scenario]\npreset = "printed"\npower_w = 2\ncpu_hz = [1e9, 2e9]\nlr_cap = inf\n')
    expected = Scenario(preset="printed", power_w=2.0, cpu_hz=(1e9, 2e9), lr_cap=math.inf)
    assert load_scenario(str(path)) == expected


def test_changes_win_over_the_file_and_flags_over_changes(tmp_path: Path) -> None:
    path = tmp_path / "few.toml"
    path.write_text("[scenario]\nnum_clients = 5\npower_w = 0.3\n")
    scenario = load_scenario(
        str(path), ["scenario.power_w=0.4", "scenario.num_clients=6"], num_clients=7, deadline_s=None
    )
    assert (scenario.power_w, scenario.num_clients, scenario.deadline_s) == (0.4, 7, 20.0)


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("scenario.ensure_first_tier=false", "ensure_first_tier", False),
        ("scenario.cpu_hz=[1e9, 2e9]", "cpu_hz", (1e9, 2e9)),
        ("scenario.weighting=samples", "weighting", "samples"),
        ("scenario.preset=printed", "noise_dbm", -94.0),
        ("scenario.deadline_s=inf", "deadline_s", math.inf),
    ],
)
def test_changes_are_toml_or_plain_text(change: str, name: str, value: object) -> None:
    assert getattr(load_scenario("released", [change]), name) == value


def test_the_server_section(tmp_path: Path) -> None:
    path = tmp_path / "adam.toml"
    path.write_text('[server]\noptimizer = "adam"\nlearning_rate = 0.01\n')
    server = load_settings(str(path), ["server.epsilon=1e-4", "server.stale=updates"]).server
    assert server == ServerSettings(optimizer="adam", learning_rate=0.01, epsilon=1e-4, stale="updates")
    assert load_settings("released").server == ServerSettings()
    assert load_settings("released", ["server.beta1=0"]).to_sections()["server"]["beta1"] == 0.0
    with pytest.raises(InputError, match=r"^optimizer must be 'none', .* got 'sgd'$"):
        load_settings("released", ["server.optimizer=sgd"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("power_w=1", "--set must be section.key=value, such as scenario.power_w=0.2, got 'power_w=1'"),
        ("scenario.power_w", "--set must be section.key=value"),
        ("scenaro.power_w=1", "section 'scenaro' is unknown; did you mean 'scenario'?"),
        ("scenario.power_w=abc", "power_w must be a number, got 'abc'"),
        ("scenario.powr_w=1", "setting 'powr_w' is unknown; did you mean 'power_w'?"),
        ("scenario.power_w=" + "[" * 5000, "power_w must be a number, got"),
    ],
)
def test_bad_changes(change: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("released", [change])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[scenario]\npowr_w = 1\n", "setting 'powr_w' is unknown; did you mean 'power_w'?"),
        (b"power_w = 1\n", "'power_w' must be inside a section, one of: [scenario], [strategy], [run]"),
        (b"[scenari]\npower_w = 1\n", "section 'scenari' is unknown; did you mean 'scenario'?"),
        (b"[[scenario]]\npower_w = 1\n", "scenario must be one table, written [scenario]"),
        (b"[scenario]\npower_w = " + b"1" * 5000, "cannot be read"),
        (b"[scenario\n", "cannot be read: Expected ']'"),
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
        load_scenario(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml does not exist; scenario must be a preset"):
        load_scenario(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match=r"folder.toml cannot be read: Is a directory"):
        load_scenario(str(tmp_path / "folder.toml"))
    with pytest.raises(InputError, match=r"scenario 'relased' is unknown; did you mean 'released'\?"):
        load_scenario("relased")


HARD = {
    "escaped quotes": '\\"' * 500_000,
    "a string of escaped quotes": '"' + '\\"' * 500_000,
    "alternating quotes": "\"'" * 500_000,
    "quotes on every line": "'a\n" * 300_000,
    "triple quotes": '"""' * 300_000,
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
        load_settings("released", [f"scenario.power_w={value}"])
