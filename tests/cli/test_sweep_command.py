"""`lesson sweep`: dry runs, continuing from study.toml, and tuned comparisons."""

import shutil
from pathlib import Path

import pytest

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
TUNED = """
[rules]
dataset = "mnist"
betas = [1.0]
tuning_seed = 100
seeds = [0]
tuning_s = 40.0
final_s = 60.0
eval_every_s = 20.0
looks_s = [60.0]
targets = [0.5]

[groups.all]
title = "All"
references = ["fedavg"]

[[entries]]
name = "fedavg"
group = "all"
fleet = { num_clients = 5 }
strategy = { name = "fedavg" }

[[entries]]
name = "lesson"
group = "all"
fleet = { num_clients = 5 }
strategy = { name = "lesson" }
grid = { "strategy.deadline_s" = [20.0, 10.0] }
"""


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Execute runs in this process, which has already imported torch, and write files to a temporary folder."""
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "tuned.toml").write_text(TUNED)


def provenance(out: Path) -> list[int]:
    """Return how many runs each command has executed in a folder."""
    marker = StudyFolder(out).read()
    assert marker is not None
    return [made.runs for made in marker.provenance]


def test_a_dry_run_counts_runs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["sweep", "sweep.toml", "--dry-run"]) == 0
    assert "2 runs, 0 done" in capsys.readouterr().out
    # One run of fedavg; two tuning runs of lesson, and its final run.
    assert main(["sweep", "tuned.toml", "--tune", "--dry-run"]) == 0
    assert "4 runs, 0 done" in capsys.readouterr().out
    assert main(["sweep", "tuned.toml", "--tune", "--dry-run", "--entries", "fedavg"]) == 0
    assert "1 run, 0 done" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").touch()
    assert main(["sweep", "sweep.toml", "--out", "out", "--dry-run"]) == 2


def test_a_sweep_continues_from_its_study_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also without the file that began it, and with what --set changed then."""
    assert main(["sweep", "sweep.toml", "--set", "run.rounds=1", "--out", "out"]) == 0
    (tmp_path / "sweep.toml").unlink()
    files = [tmp_path / "out" / name / "metrics.jsonl" for name in NAMES]
    before = [path.read_bytes() for path in files]
    shutil.rmtree(files[1].parent)
    capsys.readouterr()
    assert main(["sweep", "out/study.toml", "--dry-run"]) == 0
    assert "2 runs, 1 done" in capsys.readouterr().out
    assert main(["sweep", "out/study.toml"]) == 0
    assert [path.read_bytes() for path in files] == before
    assert provenance(tmp_path / "out") == [2, 1]
    assert not (tmp_path / "runs").exists()


def test_a_comparison_continues_from_its_study_toml(tmp_path: Path) -> None:
    (tmp_path / "common.toml").write_text(COMMON)
    flags = ["--scenario", "common.toml", "--strategies", "lesson,fedavg", "--seeds", "1", "--out", "out"]
    assert main(["compare", *flags]) == 0
    shutil.rmtree(tmp_path / "out" / "fedavg-seed0")
    assert main(["sweep", "out/study.toml"]) == 0
    assert (tmp_path / "out" / "fedavg-seed0" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("few_test_images")
def test_a_tuned_comparison(tmp_path: Path) -> None:
    """Finished runs are known from the archive alone; redrawing gives the same files."""
    tuned = tmp_path / "tuned"
    assert main(["sweep", "tuned.toml", "--tune", "--out", str(tuned)]) == 0
    assert len(list(tuned.glob("*/summary.json"))) == 4
    assert provenance(tuned) == [4]
    for run in tuned.glob("*/"):
        shutil.rmtree(run)
    before = {path.name: path.read_bytes() for path in tuned.glob("[!.]*")}
    assert {"README.md", "board.html", "runs.jsonl.gz", "study.toml", "table.csv"} <= before.keys()
    (tuned / "table.csv").unlink()
    assert main(["sweep", str(tuned / "study.toml"), "--tune"]) == 0
    assert not list(tuned.glob("*/"))
    for name in ("README.md", "runs.jsonl.gz", "settings.md", "study.toml", "table.csv", "table-all.md"):
        assert (tuned / name).read_bytes() == before[name], name
    assert main(["report", str(tuned), "-o", "page.html"]) == 0
    assert main(["report", str(tuned), "--figures", "figures", "--format", "svg"]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["accuracy-all.svg", "times-all.svg"]
