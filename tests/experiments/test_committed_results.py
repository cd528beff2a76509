"""The results under experiments/: `lesson.load` reads them, and the committed tables follow from the archived runs."""

import shutil
from pathlib import Path

import pytest

from lesson import Study, load
from lesson.experiments.folder import StudyFolder
from lesson.experiments.tuned.study import TunedStudy
from lesson.paper.items import select_items
from lesson.paper.reproduce import Reproduction, read_scale
from lesson.report.paper.write import write_reproduction
from lesson.report.tuned.write import missing_runs, write_tuned

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TUNED = ("strategies/results", "radio/results/mnist", "radio/results/cifar10", "faults/results/mnist")
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


def test_all_results_are_tested() -> None:
    found = {path.parent.relative_to(EXPERIMENTS).as_posix() for path in EXPERIMENTS.rglob("runs.jsonl.gz")}
    assert found == {"paper/results", *TUNED}


@pytest.mark.slow
@pytest.mark.parametrize("name", TUNED)
def test_the_tables_of_tuned_comparisons_follow_from_their_runs(name: str, tmp_path: Path) -> None:
    study = load_copy(EXPERIMENTS / name, tmp_path / "out")
    assert isinstance(study, TunedStudy)
    assert not missing_runs(study)
    assert not study.failures
    assert study.table().to_csv(index=False) == (EXPERIMENTS / name / "table.csv").read_text()
    write_tuned(study, tmp_path / "out", suffixes=())
    assert texts(tmp_path / "out") == texts(EXPERIMENTS / name)


@pytest.mark.slow
def test_the_papers_tables_and_claims_follow_from_its_runs(tmp_path: Path) -> None:
    folder, out = EXPERIMENTS / "paper" / "results", tmp_path / "out"
    study, scale = load_copy(folder, out), read_scale(folder)
    assert scale is not None
    design = Reproduction(select_items([]), scale)
    assert design.runs({}).keys() == {run.name for run in study.runs}
    write_reproduction(design, study, out)
    assert texts(out) == texts(folder)
    assert {path.name for path in out.glob("*.png")} == {path.name for path in folder.glob("*.png")}


def test_a_committed_study_can_be_filtered() -> None:
    study = load(EXPERIMENTS / "radio" / "results" / "mnist")
    assert isinstance(study, TunedStudy)
    some = study.filter(strategy="lesson", seed=[0, 1], shadowing_db=lambda spread_db: spread_db > 0)
    assert {run.settings.strategy.name for run in some.runs} == {"lesson"}
    assert {run.seed for run in some.runs} == {0, 1}
    assert len(some.to_frame()) == len(some.runs) > 0
    assert set(some.curves()["entry"]) == set(some.to_frame()["entry"])
