"""The results under experiments/: `lesson.load` reads them, and the committed tables follow from the archived runs."""

import gzip
import json
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from lesson import Run, Study, draw_fleet, load, simulate
from lesson.experiments.folder import StudyFolder
from lesson.experiments.naming import run_name
from lesson.experiments.tuned.study import TunedStudy
from lesson.paper.fleets import towards_zero
from lesson.paper.items import select_items
from lesson.paper.reproduce import Reproduction, read_scale
from lesson.report.page.board import BOARD
from lesson.report.page.study_data import study_data
from lesson.report.paper.items import items_in
from lesson.report.paper.write import write_reproduction
from lesson.report.tuned.write import missing_runs, write_tuned
from lesson.strategies import make_strategy

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TUNED = (
    "strategies/results",
    "radio/results/mnist",
    "radio/results/cifar10",
    "faults/results/mnist",
    "faults/results/extended",
    "tasks/results/shakespeare",
    "tasks/results/resnet",
)
BOARDS = ("strategies/results",)
"""Tuned comparisons whose board is committed, although it is 1.5 MB."""
TEXTS = (".md", ".csv", ".json", ".toml")


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in TEXTS}


def load_copy(folder: Path, copy: Path) -> Study:
    """Load a study from the files that its outputs are made of, in another folder."""
    copy.mkdir()
    for path in (StudyFolder(folder).marker, StudyFolder(folder).archive):
        shutil.copy(path, copy)
    study = load(copy)
    assert isinstance(study, Study)
    return study


def data_of(page: Path) -> Any:
    """Return the data inside a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def check_names(runs: Collection[Run], folder: Path) -> None:
    """Check that all runs of an archive have the names of their settings: otherwise, they would be executed again."""
    lines = gzip.decompress(StudyFolder(folder).archive.read_bytes()).splitlines()
    assert [json.loads(line)["name"] for line in lines] == sorted(run.name for run in runs)
    assert all(run.name == run_name(run.settings) for run in runs)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose figures, but do not render them: only names are compared, and tests/report renders every kind."""

    def write(files: Mapping[str, Figure], folder: Path) -> None:
        for name in files:
            (folder / name).write_bytes(b"not rendered")

    monkeypatch.setattr("lesson.report.files._save", write)
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda _: None)


def test_all_results_are_tested() -> None:
    found = {path.parent.relative_to(EXPERIMENTS).as_posix() for path in EXPERIMENTS.rglob("runs.jsonl.gz")}
    assert found == {"paper/results", *TUNED}


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("name", TUNED)
def test_tables_figures_and_the_page_of_tuned_comparisons_follow_from_their_runs(name: str, tmp_path: Path) -> None:
    """One test, since it takes seconds to read an archive."""
    folder, out = EXPERIMENTS / name, tmp_path / "out"
    study = load_copy(folder, out)
    assert isinstance(study, TunedStudy)
    assert not missing_runs(study)
    wanted = study.design.runs(study.done)
    assert not [name for name, run in study.done.items() if wanted[name].differences(run.settings)]
    assert not study.failures
    check_names(study.done.values(), folder)
    write_tuned(study, out, suffixes=(".svg",))
    assert texts(out) == texts(folder)
    assert {path.stem for path in out.glob("*.svg")} == {path.stem for path in folder.glob("*.png")}
    assert (folder / BOARD).exists() == (name in BOARDS)
    if name in BOARDS:
        assert data_of(out / BOARD) == data_of(folder / BOARD)
    rows, rules = study_data(study, "")["verdict"]["rows"], study.design.rules
    assert len(rows) >= len(study.design.entries) * len(rules.betas)
    assert {row[1] for row in rows} == {str(len(rules.seeds))}


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_the_papers_tables_claims_and_figures_follow_from_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation behind one of the figures is shortened."""
    monkeypatch.setattr("lesson.report.paper.curves.towards_zero", lambda **_: towards_zero(num_draws=2, until_s=60.0))
    folder, out = EXPERIMENTS / "paper" / "results", tmp_path / "out"
    study, scale = load_copy(folder, out), read_scale(folder)
    assert scale is not None
    design = Reproduction(items_in(folder), scale)
    assert {item.name for item in select_items([])} <= {item.name for item in design.items}
    wanted = design.runs({})
    assert wanted.keys() == {run.name for run in study.runs}
    assert not [run.name for run in study.runs if wanted[run.name].differences(run.settings)]
    write_reproduction(design, study, out)
    assert texts(out) == texts(folder)
    assert {path.name for path in out.glob("*.png")} == {path.name for path in folder.glob("*.png")}


@pytest.mark.slow
def test_the_schedule_in_the_archive_follows_from_the_clock() -> None:
    """The runs were made on a GPU with an earlier version; rounds, times and uploads need no training."""
    study = load(EXPERIMENTS / "strategies" / "results")
    assert isinstance(study, TunedStudy)
    for entry in ("fedavg", "fedcs", "lesson τ=20"):
        run = next(run for run in study.runs if run.labels["entry"] == entry)
        chosen, until_s = run.settings.strategy, run.settings.run.time_budget_s
        strategy = make_strategy(chosen.name, chosen.deadline_s, chosen.options)
        records = list(simulate(strategy, draw_fleet(run.settings), until_s=until_s, seed=run.seed))
        uploads = np.cumsum([record.uploads for record in records])
        evaluated = [(round(records[at - 1].end_s, 3), uploads[at - 1]) for at in run.curve["round"]]
        assert evaluated == list(zip(run.curve["time_s"], run.curve["uploads"], strict=True)), entry


def test_a_committed_study_can_be_filtered() -> None:
    study = load(EXPERIMENTS / "radio" / "results" / "mnist")
    assert isinstance(study, TunedStudy)
    some = study.filter(strategy="lesson", seed=[0, 1], shadowing_db=lambda spread_db: spread_db > 0)
    assert {run.settings.strategy.name for run in some.runs} == {"lesson"}
    assert {run.seed for run in some.runs} == {0, 1}
    assert len(some.to_frame()) == len(some.runs) > 0
    assert set(some.curves()["entry"]) == set(some.to_frame()["entry"])
