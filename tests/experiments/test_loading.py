"""What `lesson.load` makes of folders; no run is trained: a few lines of metrics stand in for each."""

import re
import shutil
from pathlib import Path

import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import begin_run, make_run, make_sweep
from helpers.tuned import small
from lesson import InputError, Run, Settings, Study, load
from lesson.experiments.archive import write_archive
from lesson.experiments.folder import UNFINISHED
from lesson.experiments.grid import compare_strategies
from lesson.experiments.loading import load_study
from lesson.experiments.missing import run_missing
from lesson.experiments.tuned.study import TunedStudy


def test_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    run = load(str(tmp_path / "one"))
    assert isinstance(run, Run)
    assert run.summary["strategy"] == "lesson"
    assert len(run.to_frame()) == 6


def test_a_comparison_is_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    design = compare_strategies(Settings(time_budget_s=600.0), ["lesson", "fedavg", "tifl"], 2)
    run_missing(design, tmp_path / "out", FakeEngine())
    study = load(tmp_path / "out")
    assert isinstance(study, Study)
    assert study.by == ("strategy",)
    assert list(study.table().index) == ["lesson", "fedavg", "tifl"]


def test_runs_in_a_folder_without_study_toml_are_a_study(tmp_path: Path) -> None:
    for name in ("lesson", "fedavg"):
        make_run(tmp_path / name, strategy={"name": name})
    study = load(tmp_path)
    assert isinstance(study, Study)
    assert (study.by, [run.name for run in study.runs]) == (("strategy",), ["fedavg", "lesson"])


def test_a_tuned_comparison_is_labeled_by_entry_with_its_folders_or_from_its_archive(tmp_path: Path) -> None:
    run_missing(small(tmp_path), tmp_path / "out", FakeEngine())
    with_folders = load(tmp_path / "out")
    for folder in (tmp_path / "out").glob("*/"):
        shutil.rmtree(folder)
    archived = load(tmp_path / "out")
    for study in (with_folders, archived):
        assert isinstance(study, TunedStudy)
        assert study.by == ("entry", "group", "data.beta")
        assert list(study.groups())[:3] == [
            ("fedavg", "strategies", 0.1),
            ("fedavg", "strategies", 1.0),
            ("lesson", "strategies", 0.1),
        ]
        assert len(study.done) > len(study.runs), "tuning runs are no results"
    assert archived.table().equals(with_folders.table())  # type: ignore[union-attr]
    assert archived.runs[0].path is None  # type: ignore[union-attr]


def test_runs_of_an_archive_and_of_newer_folders_are_taken_together(tmp_path: Path) -> None:
    """A folder that the archive has, too, gives the details that an archive does not keep."""
    for seed in (0, 1, 2):
        make_run(tmp_path / f"lesson-mnist-seed{seed}", run={"seed": seed})
    runs = [Run.load(tmp_path / f"lesson-mnist-seed{seed}") for seed in (0, 1)]
    write_archive(tmp_path / "runs.jsonl.gz", runs)
    shutil.rmtree(tmp_path / "lesson-mnist-seed0")
    study = load(tmp_path)
    assert isinstance(study, Study)
    assert [(run.seed, run.path and run.path.name) for run in study.runs] == [
        (0, None),
        (1, "lesson-mnist-seed1"),
        (2, "lesson-mnist-seed2"),
    ]
    assert [bool(run.read_clients()) for run in study.runs] == [False, True, True]


def test_a_sweep_has_what_varies_in_the_order_of_its_file(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    study = load(tmp_path)
    assert isinstance(study, Study)
    assert study.by == ("strategy.name", "data.beta", "strategy.late")
    assert list(study.groups()) == [
        ("lesson", 1.0, "drop"),
        ("lesson", 0.1, "drop"),
        ("nowhere:Mine", 1.0, None),
        ("nowhere:Mine", 0.1, None),
    ]
    assert [run.summary["seed"] for run in study.runs[:2]] == [0, 1]
    assert study.failures == {"x": "no <reason>"}


def test_runs_that_are_no_longer_in_the_grid_are_left_out(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    make_run(tmp_path / "old", data={"beta": 7.0})
    assert "old" not in [run.path.name for run in load_study([tmp_path]).runs]


def test_unfinished_runs_of_a_comparison_are_failures(tmp_path: Path) -> None:
    make_run(tmp_path / "one" / "lesson-seed0")
    begin_run(tmp_path / "one" / "fedavg-seed0", Settings(name="fedavg"))
    make_run(tmp_path / "two", strategy={"name": "tifl"})
    (tmp_path / "one" / "notes").mkdir()
    for study in (load(tmp_path / "one"), load_study([tmp_path / "one", tmp_path / "two"])):
        assert isinstance(study, Study)
        assert study.failures == {"fedavg-seed0": UNFINISHED}


def test_unfinished_runs_of_a_sweep_are_failures_if_they_are_in_its_grid(tmp_path: Path) -> None:
    """One that failed in the middle has a better reason."""
    make_sweep(tmp_path)
    begin_run(tmp_path / "new", Settings(beta=0.1, seed=1, time_budget_s=600.0))
    begin_run(tmp_path / "x", Settings(beta=0.1, seed=0, time_budget_s=600.0))
    begin_run(tmp_path / "old", Settings(beta=7.0, time_budget_s=600.0))
    begin_run(tmp_path / "longer", Settings(beta=0.1, time_budget_s=700.0))
    assert load_study([tmp_path]).failures == {"new": UNFINISHED, "x": "no <reason>"}


def test_folders_taken_together_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    """By β once, not by the batch size that goes with it; the trainer and checkpoints do not matter."""
    for beta, batch, trainer in ((0.1, 10, "auto"), (1.0, 20, "reference")):
        for name in ("lesson", "fedavg"):
            parts = {"training": {"batch_size": batch}, "data": {"beta": beta}, "run": {"trainer": trainer}}
            make_run(tmp_path / f"{beta}" / name, strategy={"name": name}, **parts)
    study = load_study([tmp_path / "0.1", tmp_path / "1.0", str(tmp_path / "1.0" / "lesson")])
    assert len(study.runs) == 4
    assert len(study.by) == 2
    assert len(study.groups()) == 4


def test_the_same_run_in_two_folders_is_rejected(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    with pytest.raises(InputError, match=r"a and .*b are the same run; give only one of them"):
        load_study([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "does not exist; it must be the output folder of run, compare, sweep or reproduce"),
        ("file", "is a file; it must be the output folder of run, compare, sweep or reproduce"),
        ("empty", "holds no finished run; it must be the output folder of run, compare, sweep or reproduce"),
        ("begun", "holds no finished run; resume it with the settings in "),
        ("all_begun", "holds no finished run; none of its 2 runs has finished"),
        ("damaged", "damaged/metrics.jsonl line 1 is damaged ("),
    ],
)
def test_folders_of_something_else(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for folder in ("begun", "all_begun/a", "all_begun/b"):
        begin_run(tmp_path / folder, Settings())
    make_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    with pytest.raises(InputError, match=re.escape(message)):
        load_study([tmp_path / name]).curves()
