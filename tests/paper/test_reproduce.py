"""The command `lesson reproduce`: its runs are executed once, and each item leaves files, claims and a page."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from helpers.engines import FakeEngine
from lesson.cli import main
from lesson.core.errors import InputError
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.folder import StudyFolder
from lesson.experiments.missing import run_missing
from lesson.paper.items import load_item, wanted_runs
from lesson.paper.reproduce import plan_reproduction, read_scale
from lesson.paper.scale import QUICK, make_scale
from lesson.paper.series import by_series
from lesson.report.paper.curves import draw_accuracy

pytestmark = pytest.mark.usefixtures("few_test_images")
TINY = dataclasses.replace(QUICK, seeds=1, max_rounds=4)
FIG5 = [load_item("fig5")]
NAMES = ["fedavg-mnist-seed0", "fedcs-mnist-seed0", "lesson-mnist-seed0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    run_missing(plan_reproduction(FIG5, TINY, out), out, InProcessEngine(), command="lesson reproduce fig5")
    return out


def test_finished_runs_are_not_executed_again(made: Path, tmp_path: Path) -> None:
    """From their folders, or from the archive alone."""
    idle = FakeEngine()
    study = run_missing(plan_reproduction(FIG5, TINY, made), made, idle)
    assert sorted(run.name for run in study.runs) == NAMES
    fedavg = StudyFolder(made).runs()["fedavg-mnist-seed0"]
    assert fedavg.curve["round"].iloc[-1] <= 4
    assert fedavg.curve["uploads"].tolist() == (50 * fedavg.curve["round"]).tolist()
    for name in ("study.toml", "runs.jsonl.gz"):
        shutil.copy(made / name, tmp_path / name)
    archived = run_missing(plan_reproduction(FIG5, TINY, tmp_path), tmp_path, idle)
    assert [(run.name, run.path) for run in archived.runs] == [(run.name, None) for run in study.runs]
    assert idle.asked == []


def test_evaluation_jitter_reaches_every_run(tmp_path: Path) -> None:
    scale = make_scale(quick=False, seeds=2, eval_jitter=0.5)
    assert {settings.run.eval_jitter for settings in wanted_runs(FIG5, scale).values()} == {0.5}
    assert {settings.run.eval_jitter for settings in wanted_runs(FIG5, TINY).values()} == {0.0}
    out = tmp_path / "out"
    assert main(["reproduce", "table1", "--seeds", "2", "--eval-jitter", "0.5", "--out", str(out)]) == 0
    assert read_scale(out) == scale
    with pytest.raises(InputError, match="eval_jitter"):
        plan_reproduction(FIG5, make_scale(quick=False, seeds=2), out)


def test_failed_runs_stop_the_command_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = FakeEngine({name: {"error": "no longer finite", "kind": "RunStoppedError"} for name in NAMES})
    monkeypatch.setattr("lesson.api.make_engine", lambda **_: failing)
    assert main(["reproduce", "fig5", "--quick", "--seeds", "1", "--out", str(tmp_path / "out")]) == 3
    assert "3 runs failed" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in (tmp_path / "out").glob("*.*")] == ["study.toml"]


@pytest.fixture(scope="module")
def with_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table I and Fig. 4, which need no runs, by two commands."""
    out = tmp_path_factory.mktemp("table")
    assert main(["reproduce", "table1", "--seeds", "2", "--out", str(out)]) == 0
    assert main(["reproduce", "fig4", "--seeds", "2", "--out", str(out)]) == 0
    return out


def test_items_write_files_settings_claims_and_a_page(with_table: Path) -> None:
    assert {"fig4.png", "fig4.toml", "table1.md", "table1.csv"} <= {path.name for path in with_table.iterdir()}
    page = (with_table / "README.md").read_text()
    assert (with_table / "table1.md").read_text().rpartition("\n\n")[2] in page
    assert "(fig4.png)" in page
    claims = json.loads((with_table / "claims.json").read_text())
    assert [claim["id"] for claim in claims] == ["networks", "labels-balanced"]
    for claim in claims:  # what scripts may rely on
        assert {"id", "statement", "paper", "ours", "ci95", "seeds", "verdict"} <= claim.keys()
        assert claim["ours"].keys() == claim["ci95"].keys()
    assert claims[0]["ours"]["MNIST"] == 61_706


def test_quick_look_claims_nothing(tmp_path: Path) -> None:
    assert main(["reproduce", "table1", "--quick", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "claims.json").exists()
    assert "not a valid reproduction" in (tmp_path / "README.md").read_text()


def test_damaged_files_are_reported(with_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = Path(shutil.copytree(with_table, tmp_path / "out"))
    (out / "claims.json").write_text("[{")
    assert main(["report", str(out)]) == 2
    assert "claims.json" in capsys.readouterr().err
    (out / "study.toml").write_text("[reproduction]\nquick = 3\n[study]\nformat = 1\nkind = 'reproduction'\n")
    assert main(["reproduce", "table1", "--out", str(out)]) == 2
    assert "study.toml" in capsys.readouterr().err


def test_quick_look_draws_panels_with_the_same_runs_once(made: Path) -> None:
    figure = draw_accuracy(load_item("fig5"), by_series(StudyFolder(made).runs().values()), TINY)
    assert [axes.get_xlabel().partition(" ")[0] for axes in figure.axes] == ["global", "simulated"]
