"""`lesson sweep`: dry runs, continuing from study.toml, and tuned comparisons."""

import shutil
from pathlib import Path

import pytest

from helpers.tuned import FILE
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.folder import StudyFolder

COMMON = """
[fleet]
num_clients = 5

[data]
dataset = "helpers.small_tasks:tiny_task"
split = "iid"

[run]
rounds = 2
device = "cpu"

"""
SWEEP = COMMON + '[sweep]\n"strategy.deadline_s" = [10.0, 20.0]\n'
NAMES = ["lesson-deadline_s=10-seed0", "lesson-deadline_s=20-seed0"]


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Execute runs in this process, which has already imported torch, and write files to a temporary folder."""
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
    monkeypatch.setattr("lesson.api.make_engine", lambda *_, **__: InProcessEngine())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "tuned.toml").write_text(FILE)


def provenance(out: Path) -> list[int]:
    """Return how many runs each command has executed in a folder."""
    marker = StudyFolder(out).read()
    assert marker is not None
    return [made.runs for made in marker.provenance]


def test_dry_run_counts_runs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["sweep", "sweep.toml", "--dry-run"]) == 0
    assert "2 runs, 0 finished" in capsys.readouterr().out
    # For each of two β, one tuning run of both points; their results decide on the final runs.
    assert main(["sweep", "tuned.toml", "--tune", "--dry-run", "--entries", "lesson"]) == 0
    assert "4 runs, 0 finished" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").touch()
    assert main(["sweep", "sweep.toml", "--out", "out", "--dry-run"]) == 2


def test_sweep_continues_from_its_study_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even without the original file; changes made with --set still apply."""
    assert main(["sweep", "sweep.toml", "--set", "run.rounds=1", "--out", "out"]) == 0
    (tmp_path / "sweep.toml").unlink()
    files = [tmp_path / "out" / name / "metrics.jsonl" for name in NAMES]
    before = [path.read_bytes() for path in files]
    shutil.rmtree(files[1].parent)
    capsys.readouterr()
    assert main(["sweep", "out/study.toml", "--dry-run"]) == 0
    assert "2 runs, 1 finished" in capsys.readouterr().out
    assert main(["sweep", "out/study.toml"]) == 0
    assert [path.read_bytes() for path in files] == before
    assert provenance(tmp_path / "out") == [2, 1]
    assert not (tmp_path / "runs").exists()


def test_comparison_continues_from_its_study_toml(tmp_path: Path) -> None:
    (tmp_path / "common.toml").write_text(COMMON)
    flags = ["--scenario", "common.toml", "--strategies", "lesson,fedavg", "--seeds", "1", "--out", "out"]
    assert main(["compare", *flags]) == 0
    shutil.rmtree(tmp_path / "out" / "fedavg-seed0")
    assert main(["sweep", "out/study.toml"]) == 0
    assert (tmp_path / "out" / "fedavg-seed0" / "summary.json").exists()
