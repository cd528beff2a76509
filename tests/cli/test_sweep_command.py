"""`lesson sweep`: dry runs, continuing from study.toml, and tuned comparisons."""

import re
import shutil
from pathlib import Path

import pytest

from lesson.cli import main
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.folder import StudyFolder

pytestmark = pytest.mark.usefixtures("few_test_images")
SWEEP = """
[fleet]
num_clients = 5

[run]
rounds = 2
device = "cpu"

[sweep]
"data.beta" = [0.1, 1.0]
"""
NAMES = ["lesson-beta=0.1-seed0", "lesson-beta=1-seed0"]
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


def test_a_dry_run_of_a_sweep_counts_its_runs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["sweep", "sweep.toml", "--dry-run"]) == 0
    counted, estimated = capsys.readouterr().out.splitlines()
    assert counted == "2 runs, 0 done"
    found = re.fullmatch(r"about (\d+) (s|min) in \d+ process(es)?, with (\d+\.\d) GB of memory", estimated)
    assert found is not None
    assert 0.1 < float(found[4]) < 100
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_dry_run_knows_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "sweep.toml", "--out", "out"]) == 0
    shutil.rmtree(tmp_path / "out" / NAMES[0])
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["sweep", "sweep.toml", "--out", "out", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("2 runs, 1 done\nabout ")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == files
    assert main(["sweep", "out/study.toml"]) == 0
    capsys.readouterr()
    assert main(["sweep", "out/study.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == "2 runs, 2 done\n"


def test_a_dry_run_of_a_tuned_comparison_counts_the_final_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One run of fedavg; two tuning runs of lesson, whose final run is not known yet."""
    assert main(["sweep", "tuned.toml", "--tune", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("4 runs, 0 done\n")
    assert main(["sweep", "tuned.toml", "--tune", "--dry-run", "--entries", "fedavg"]) == 0
    assert capsys.readouterr().out.startswith("1 run, 0 done\n")


def test_a_dry_run_rejects_the_folder_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").touch()
    assert main(["sweep", "sweep.toml", "--out", "out", "--dry-run"]) == 2
    assert "is not empty and holds no study" in capsys.readouterr().err


def test_a_sweep_continues_from_its_study_toml_in_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without the file that began it, and with what --set changed then."""
    assert main(["sweep", "sweep.toml", "--set", "run.rounds=1", "--out", "out"]) == 0
    (tmp_path / "sweep.toml").unlink()
    files = [tmp_path / "out" / name / "metrics.jsonl" for name in NAMES]
    before = [path.read_bytes() for path in files]
    shutil.rmtree(files[1].parent)
    capsys.readouterr()
    assert main(["sweep", "out/study.toml"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 runs done\n" in said
    assert said.endswith("folder: out\n")
    assert [path.read_bytes() for path in files] == before
    assert provenance(tmp_path / "out") == [2, 1]
    assert not (tmp_path / "runs").exists()


def test_a_comparison_continues_from_its_study_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rounds", "2", "--set", "fleet.num_clients=5", "--device", "cpu", "--out", "out"]
    assert main(["compare", "--strategies", "lesson,fedavg", "--seeds", "1", *flags]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["lesson seed 0", "fedavg seed 0"]
    assert [line.partition("(")[2] for line in said] == ["1 of 2 runs)", "2 of 2 runs)"]
    shutil.rmtree(tmp_path / "out" / "fedavg-seed0")
    assert main(["sweep", "out/study.toml"]) == 0
    assert "2 of 2 runs done\n" in capsys.readouterr().out
    assert (tmp_path / "out" / "fedavg-seed0" / "summary.json").exists()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
        (folder / "tuned.toml").write_text(TUNED)
        assert main(["sweep", str(folder / "tuned.toml"), "--tune", "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_a_tuned_comparison_leaves_runs_tables_and_figures(tuned: Path) -> None:
    assert {path.name for path in tuned.glob("[!.]*") if path.is_file()} == {
        "README.md",
        "accuracy-all.png",
        "board.html",
        "runs.jsonl.gz",
        "settings.md",
        "study.toml",
        "table-all.md",
        "table.csv",
        "times-all.png",
    }
    assert len(list(tuned.glob("*/summary.json"))) == 4
    assert "Command: `lesson sweep study.toml --tune`." in (tuned / "README.md").read_text()
    assert provenance(tuned) == [4]


def test_a_tuned_comparison_continues_from_its_study_toml(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished runs are known from the archive alone; redrawing gives the same files."""
    for path in tuned.glob("[!.]*"):
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    (tmp_path / "table.csv").unlink()
    assert main(["sweep", "study.toml", "--tune"]) == 0
    assert "page: README.md\nboard: board.html\nfolder: .\n" in capsys.readouterr().out
    for name in ("README.md", "runs.jsonl.gz", "settings.md", "study.toml", "table.csv", "table-all.md"):
        assert (tmp_path / name).read_bytes() == (tuned / name).read_bytes(), name
    assert not list(tmp_path.glob("*/"))


def test_invalid_input_of_one_entry_stops_a_tuned_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody meets a deadline of 1 ms, which FedCS finds out in its first round."""
    strategy = 'strategy = { name = "fedcs", deadline_s = 0.001, ensure_first_tier = false }'
    (tmp_path / "tuned.toml").write_text(TUNED.replace('strategy = { name = "fedavg" }', strategy))
    assert main(["sweep", "tuned.toml", "--tune", "--entries", "fedavg", "--out", "out"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lesson: fedcs-mnist-")
    assert not (tmp_path / "out").exists()


def test_the_report_of_a_tuned_comparison(tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tuned), "-o", "page.html"]) == 0
    assert f"lesson sweep {tuned / 'study.toml'} --out runs/again --tune" in (tmp_path / "page.html").read_text()
    assert main(["report", str(tuned), "--figures", "figures", "--format", "pdf,svg"]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "accuracy-all.pdf",
        "accuracy-all.svg",
        "times-all.pdf",
        "times-all.svg",
    ]
