"""The command line as a whole: help, completion, terminals, and commands that only print."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lesson import __version__
from lesson.cli import cli, main
from lesson.flight.recording import read_recording
from lesson.settings.reference import describe_section
from lesson.settings.settings import SECTIONS
from lesson.strategies import STRATEGIES, setting_names

COMMAND = [sys.executable, "-m", "lesson"]


def run(*argv: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process."""
    return subprocess.run(
        [*COMMAND, *argv], capture_output=True, text=True, timeout=120, env=os.environ | (environment or {})
    )


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_help_describes_every_command_and_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all(name in printed(capsys) for name in cli.commands)
    for name, command in cli.commands.items():
        shown = printed(capsys, name, "--help")
        assert f"lesson {name} " in shown
        assert max(map(len, shown.splitlines())) <= 80, name
        assert shown.isascii(), name  # click would print anything else as UTF-8, whatever the terminal
        for param in command.params:
            assert (param.human_readable_name if isinstance(param, click.Argument) else param.opts[-1]) in shown
            assert param.help


def test_commands_in_their_own_process() -> None:
    """Help imports no heavy library; ASCII terminals and closed pipes cause no errors."""
    code = """
import sys
from lesson.cli import main
assert main(["strategies"]) == main(["run", "--help"]) == 0
assert not {"torch", "pandas", "scipy", "matplotlib"} & sys.modules.keys()
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0
    plain = run("plan", environment={"PYTHONIOENCODING": "ascii"})
    assert (plain.returncode, plain.stderr, "?" in plain.stdout) == (0, "", False)
    bad = run("plan", "--deadline", "-1")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    command = [*COMMAND, "plan", "--json", "--clients", "50000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as producer:
        assert producer.stdout is not None
        assert producer.stderr is not None
        producer.stdout.read(10)
        producer.stdout.close()
        assert producer.stderr.read() == b""
        assert producer.wait(60) == 0


COMPLETED = {
    "pl": ["plan"],
    "run --time": ["--time-budget"],
    "run --strategy fedb": ["fedbuff"],
    "strategies --nothing": [],
}
TABS = {
    "bash -ec": """
COMPREPLY=(); COMP_WORDS=(lesson {typed}); COMP_CWORD={place}; _lesson_completion lesson; echo "${{COMPREPLY[@]}}"
""",
    "fish --no-config -c": "; complete -C 'lesson {typed}'",
    "zsh -fc": "\nwords=(lesson {typed}); CURRENT=$#words; _lesson_completion",
}
"""How each shell is asked for completions."""
ZSH = """
compadd() { print -rl -- $completions }
_describe() { print -rl -- ${completions_with_descriptions%%:*} }
"""
"""Outside of its line editor, zsh cannot be asked: functions that record completions stand in."""


@pytest.mark.slow
@pytest.mark.parametrize("shell", TABS)
def test_completion_of_commands_options_and_strategies(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *flags = shell.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; on Debian: apt install {program}")
    (tmp_path / "_lesson").write_text(printed(capsys, "--print-completion", program))
    (tmp_path / "lesson").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (tmp_path / "lesson").chmod(0o755)
    load = f"autoload -U compinit; compinit -u -D; source ./_lesson{ZSH}" if program == "zsh" else "source ./_lesson"
    code = load + "".join(TABS[shell].format(typed=typed, place=len(typed.split())) for typed in COMPLETED)
    environment = os.environ | {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    result = subprocess.run(
        [program, *flags, code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    offered = [line.partition("\t")[0] for line in result.stdout.splitlines() if line]
    assert offered == [word for words in COMPLETED.values() for word in words]


def test_last_of_several_strategies_is_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_LESSON_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "lesson compare --strategies lesson,fedb")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert printed(capsys) == "plain,lesson,fedbuff\n"


def test_version_tasks_and_strategies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version") == f"lesson {__version__}\n"
    assert "mnist" in printed(capsys, "tasks")
    listed = printed(capsys, "strategies")
    for name, kind in STRATEGIES.items():
        assert name in listed
        explained = printed(capsys, "strategies", name)
        assert all(f"\n  {option} (" in explained for option in setting_names(kind)), name


def test_settings_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    listed = printed(capsys, "settings")
    for section in SECTIONS:
        assert all(f"\n {setting.name} " in listed for setting in describe_section(section))
    for name in ("noise_dbm", "radio.noise_dbm"):
        explained = printed(capsys, "settings", name)
        assert all(word in explained for word in ("radio.noise_dbm", "dBm", "-100", "-94"))
    assert [name in printed(capsys, "settings", "learning_rate") for name in ("training.", "server.")] == [True, True]
    assert all(one.full_name in printed(capsys, "settings", "guards") for one in describe_section("guards"))


def test_log_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("client,asked_s,arrived_s\npi,3,5\nphone,3,9.5\n")
    assert "2 jobs of 2 clients" in printed(capsys, "record", "import", "log.csv")
    assert read_recording("flight.jsonl").jobs.latency_s.tolist() == [2.0, 6.5]
    printed(capsys, "record", "import", "log.csv", "-o", "other.jsonl")
    assert Path("other.jsonl").read_text() == Path("flight.jsonl").read_text()
