"""Files of a run that were cut off or edited by mistake: one line that names the file and the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.resuming import StoppedError, stop_after
from helpers.run_folders import make_run
from helpers.runs import PARTS, settings
from lesson import InputError, load
from lesson.cli import main
from lesson.experiments.run import Run
from lesson.runs.execute import execute


def edit(path: Path, change: dict[str, Any], line: int = 0) -> None:
    """Change fields of a JSON file, or of one line of a JSONL file."""
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("metrics.jsonl", {"uploads": "x"}, "uploads"),
        ("metrics.jsonl", {"round": 2}, "round"),
        ("summary.json", {"rejected_by": 5}, "rejected_by"),
        ("summary.json", {"loss": float("nan")}, "loss"),
        ("clients.json", {"clients": 3}, "clients"),
    ],
)
def test_edited_files_are_reported_in_one_line(
    tmp_path: Path, name: str, change: dict[str, Any], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run")
    edit(tmp_path / "run" / name, change, line=2 if name == "metrics.jsonl" else 0)
    assert main(["report", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (name in error, field in error) == (True, True)


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "clients.json"])
def test_truncated_files_are_reported(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_text(path.read_text()[:-30])
    assert main(["report", str(tmp_path / "run")]) == 2
    assert name in capsys.readouterr().err


def test_fields_of_newer_versions_are_kept(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text()) | {"something_new": [1]}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    read = load(tmp_path / "run")
    assert isinstance(read, Run)
    assert read.summary == summary


def test_resumed_run_reports_an_edited_line(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        execute(settings(rounds=8, checkpoint_every_s=1e-9), tmp_path / "run", progress=stop_after(5), **PARTS)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 2', '"round": 7'))
    with pytest.raises(InputError, match=r"metrics.jsonl line 2"):
        execute(settings(rounds=8), tmp_path / "run", resume=True, **PARTS)
    assert (tmp_path / "run" / "config.toml").exists()
