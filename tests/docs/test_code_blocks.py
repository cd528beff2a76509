"""Code blocks of the README and of docs/ are executed, shortened, and print what is shown below them."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.code_blocks import (
    ROOT,
    Block,
    blocks,
    check_other_command,
    commands,
    shortened,
    shortened_command,
    shortened_study,
)
from helpers.run_folders import make_comparison
from lesson.cli import cli, main
from lesson.experiments.grid import load_grid
from lesson.experiments.tuning.file import Tuning
from lesson.settings import load_settings

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if any(block.kind in ("python", "console", "toml") for block in blocks(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_test_images: None) -> Path:
    """A folder like a clone in which `make demo` was run, on a machine with one core and an 80-column terminal."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    make_comparison(tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    for path in (ROOT / "examples", tmp_path):
        monkeypatch.syspath_prepend(path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_runs(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    printed = None
    for block in blocks(page):
        before, printed = printed, None
        if block.test:
            check_test_exists(block.test)
        elif block.kind == "python":
            printed = run_python(block, names, page, folder, capsys)
        elif block.kind == "console":
            for words, output in commands(block.text):
                run_command(words, output, capsys)
        elif block.kind == "toml":
            read_settings(block, folder)
        elif block.kind == "text" and before is not None:
            assert block.text == before


def run_python(
    block: Block, names: dict[str, object], page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> str | None:
    """Execute a block and return what it prints; a first line `# mine.py` also saves it as that file."""
    if named := re.match(r"# (\w+)\.py\n", block.text):
        (folder / f"{named[1]}.py").write_text(shortened(block.text))
        sys.modules.pop(named[1], None)  # an earlier version of the file, which a later block would import
    capsys.readouterr()
    code = shortened(block.text)
    exec(compile(code, str(page), "exec"), names)
    output = capsys.readouterr().out
    return output if code == block.text else None


def run_command(words: list[str], output: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "cat":
        check_shown_file(Path(words[1]), output)
        return
    if words[0] != "lesson":
        check_other_command(words)
        return
    command = words[1:]
    capsys.readouterr()
    saved = command[0] == "sweep" and Path(command[1]).exists()  # by an earlier block
    # downloads, hours of training, a cluster, CIFAR-10, and figures that tests/experiments draws
    if "--tune" in command and saved and not command[1].startswith("experiments/"):
        assert main(command) == 0, words
        return
    if command[0] in ("data", "reproduce") or any(re.match(r"ray$|--tune$|experiments/", word) for word in command):
        with cli.make_context("lesson", list(command)) as context:
            subcommand = cli.get_command(context, command[0])
            assert subcommand is not None
            subcommand.make_context(command[0], command[1:], parent=context)
        return
    if command[0] == "sweep" and "--dry-run" not in command:
        command = [*command, "--dry-run"]
    if command[0] == "compare" and "runs/demo" in command:
        shutil.rmtree("runs/demo")
    assert main(shortened_command(command)) == 0, words
    if command[0] == "plan" and output:
        shown = [line for line in output if line != "…"]
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert lines[: len(shown)] == shown


def check_shown_file(path: Path, lines: list[str]) -> None:
    """Check that `cat FILE` shows the file; one that does not exist yet is the reader's own, and is saved."""
    text = "".join(f"{line}\n" for line in lines)
    if not path.exists():
        path.write_text(text)
    assert path.read_text() == text, path


def read_settings(block: Block, folder: Path) -> None:
    """Read a settings file as the program would; a first line `# mine.toml` also saves it as that file."""
    values = tomllib.loads(block.text)
    named = re.match(r"# ([\w-]+\.toml)\n", block.text)
    path = folder / (named[1] if named else "block.toml")
    path.write_text(block.text)
    if "rules" in values:
        path.write_text(shortened_study(block.text))
        Tuning.load(path)
        return
    if "tool" in values or "project" in values or "entries" in values or "entry" in values:
        return  # a package or a part of a tuned comparison, which other tests read
    if "sweep" in values:
        load_grid(path)
    else:
        load_settings(path)


def check_test_exists(name: str) -> None:
    file, function = name.split("::")
    assert f"def {function}(" in (ROOT / file).read_text(), f"there is no {name}"
