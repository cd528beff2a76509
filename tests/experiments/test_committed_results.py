"""The results under experiments/: `lesson.load` reads them, and the committed tables follow from the archived runs."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.run_folders import load_as_study
from lesson import Settings, draw_fleet, simulate
from lesson.experiments.folder import StudyFolder
from lesson.experiments.naming import run_name
from lesson.paper.fleets import towards_zero
from lesson.paper.items import wanted_runs
from lesson.paper.reproduce import read_scale
from lesson.report.paper.write import items_in, write_reproduction
from lesson.strategies import make_strategy

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPER = EXPERIMENTS / "paper" / "results"
ARCHIVES = sorted(path.parent for path in EXPERIMENTS.glob("*/results/**/runs.jsonl.gz"))
TUNED = sorted(path.parent for path in EXPERIMENTS.glob("[rstu]*/results/**/runs.jsonl.gz"))


@pytest.mark.parametrize("folder", ARCHIVES, ids=lambda folder: folder.relative_to(EXPERIMENTS).as_posix())
def test_archive_is_read(folder: Path) -> None:
    study = load_as_study(folder)
    assert study.runs
    assert not study.failures


@pytest.mark.slow
@pytest.mark.parametrize("folder", TUNED, ids=lambda folder: folder.relative_to(EXPERIMENTS).as_posix())
def test_tuned_tables_follow_from_their_runs(folder: Path) -> None:
    """All runs have the names of their settings: otherwise, they would be executed again."""
    study = load_as_study(folder)
    assert not study.failures
    assert all(run.name == run_name(Settings(**run.settings.given_sections())) for run in study.runs)
    assert study.table().to_csv(index=False) == (folder / "table.csv").read_text()


@pytest.mark.slow
def test_results_of_the_paper_follow_from_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed but not rendered, and the simulation behind one of them is shortened."""

    def write(files: Mapping[str, Figure], folder: Path) -> None:
        for name in files:
            (folder / name).write_bytes(b"not rendered")

    monkeypatch.setattr("lesson.report.files._save", write)
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda _: None)
    monkeypatch.setattr("lesson.report.paper.curves.towards_zero", lambda **_: towards_zero(num_draws=2, until_s=60.0))
    for path in (StudyFolder(PAPER).marker, StudyFolder(PAPER).archive):
        shutil.copy(path, tmp_path)
    study, scale = load_as_study(tmp_path), read_scale(PAPER)
    assert scale is not None
    items = items_in(PAPER)
    wanted = wanted_runs(items, scale)
    assert wanted.keys() == {run.name for run in study.runs}
    assert not [run.name for run in study.runs if wanted[run.name].differences(run.settings)]
    write_reproduction(items, scale, study, tmp_path)

    def texts(folder: Path) -> dict[str, bytes]:
        kinds = (".md", ".csv", ".json", ".toml")
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in kinds}

    assert texts(tmp_path) == texts(PAPER)
    assert {path.name for path in tmp_path.glob("*.png")} == {path.name for path in PAPER.glob("*.png")}


@pytest.mark.slow
def test_schedule_in_the_archive_follows_from_the_clock() -> None:
    """The runs were made on a GPU with an earlier version; rounds, times and uploads need no training."""
    study = load_as_study(EXPERIMENTS / "strategies" / "results")
    for entry in ("fedavg", "fedcs", "lesson τ=20"):
        run = study.filter(entry=entry).runs[0]
        chosen, until_s = run.settings.strategy, run.settings.run.time_budget_s
        strategy = make_strategy(chosen.name, chosen.deadline_s, chosen.options)
        records = list(simulate(strategy, draw_fleet(run.settings), until_s=until_s, seed=run.seed))
        uploads = np.cumsum([record.uploads for record in records])
        evaluated = [(round(records[at - 1].end_s, 3), uploads[at - 1]) for at in run.curve["round"]]
        assert evaluated == list(zip(run.curve["time_s"], run.curve["uploads"], strict=True)), entry


def test_committed_study_can_be_filtered() -> None:
    study = load_as_study(EXPERIMENTS / "radio" / "results" / "mnist")
    some = study.filter(strategy="lesson", seed=[0, 1], shadowing_db=8.0)
    assert {(run.settings.strategy.name, run.seed) for run in some.runs} == {("lesson", 0), ("lesson", 1)}
    assert set(some.curves()["entry"]) == set(some.to_frame()["entry"])
