"""`lesson settings` lists all settings and explains one."""

import re

import pytest

from lesson.cli import main
from lesson.settings.reference import describe_section
from lesson.settings.settings import SECTIONS


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["settings", *argv]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_every_setting_has_one_line_that_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys).splitlines()[:-1]
    assert max(map(len, lines)) <= 80
    for section in SECTIONS:
        begin = next(number for number, line in enumerate(lines) if line.startswith(f" [{section}] "))
        settings = describe_section(section)
        rows = [re.split(r"  +", line.strip()) for line in lines[begin + 2 : begin + 2 + len(settings)]]
        assert [row[:2] for row in rows] == [[setting.name, setting.default or "unset"] for setting in settings]
    (row,) = (line for line in lines if line.startswith(" noise_dbm "))
    assert re.split(r"  +", row.strip())[2:] == ["dBm", "noise plus inter-cell interference…"]


@pytest.mark.parametrize("name", ["noise_dbm", "radio.noise_dbm"])
def test_a_setting_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, name).splitlines() == [
        "radio.noise_dbm",
        "  noise plus inter-cell interference N0 on a client's band",
        "  unit               dBm",
        "  default            -100",
        "  in preset printed  -94",
        "  allowed            number",
        "  set it with        --set radio.noise_dbm=-100",
    ]


def test_lines_without_content_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "trace").splitlines()[2:] == [
        "  default            unset",
        "  allowed            text",
        "  set it with        --set fleet.trace=VALUE",
    ]


def test_a_section_shows_all_of_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "guards").split("\n\n")
    assert [block.splitlines()[0] for block in shown] == [one.full_name for one in describe_section("guards")]


def test_a_name_that_two_sections_share_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = printed(capsys, "learning_rate").split("\n\n")
    assert first.startswith("training.learning_rate\n")
    assert second.startswith("server.learning_rate\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noise_db", "unknown setting 'noise_db'; did you mean 'noise_dbm'? 'lesson settings' lists all"),
        ("scenario.deadline_s", "scenario.deadline_s is now strategy.deadline_s"),
        ("set_aside_after", "set_aside_after is now guards.exclude_after_rejections"),
        ("scenario", "[scenario] was divided into [fleet], "),
    ],
)
def test_unknown_and_old_names_are_errors_of_one_line(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["settings", name]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lesson: {message}")
    assert output.err.count("\n") == 1
