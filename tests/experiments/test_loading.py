"""Loading runs, studies and archives with `lesson.load`."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import begin_run, load_as_study, make_run, make_sweep
from helpers.tuned import small
from lesson import InputError, Run, Settings, load
from lesson.experiments.archive import write_archive
from lesson.experiments.grid import compare_strategies
from lesson.experiments.loading import UNFINISHED, load_study
from lesson.experiments.missing import run_missing
from lesson.experiments.tuning.tune import tune


def test_comparison_keeps_the_order_of_its_strategies(tmp_path: Path) -> None:
    design = compare_strategies(Settings(time_budget_s=600.0), ["lesson", "fedavg", "tifl"], 2)
    run_missing(design, tmp_path / "out", FakeEngine())
    study = load_as_study(tmp_path / "out")
    assert study.by == ("strategy",)
    assert list(study.table().index) == ["lesson", "fedavg", "tifl"]


def test_runs_in_a_folder_without_study_toml_are_a_study(tmp_path: Path) -> None:
    """One that has not finished is a failure."""
    for name in ("lesson", "fedavg"):
        make_run(tmp_path / name, strategy={"name": name})
    begin_run(tmp_path / "fedcs", Settings(name="fedcs"))
    (tmp_path / "notes").mkdir()
    study = load_as_study(tmp_path)
    assert (study.by, [run.name for run in study.runs]) == (("strategy",), ["fedavg", "lesson"])
    assert study.failures == {"fedcs": UNFINISHED}


def test_tuned_comparison_is_labeled_by_entry(tmp_path: Path) -> None:
    tune(small(tmp_path), tmp_path / "out", FakeEngine())
    study = load_as_study(tmp_path / "out")
    assert study.by == ("entry", "group", "data.beta")
    assert list(study.groups())[:2] == [("fedavg", "strategies", 0.1), ("fedavg", "strategies", 1.0)]
    assert {run.seed for run in study.runs} == {0, 1}, "tuning runs are no results"


def test_archived_runs_and_newer_folders_are_combined(tmp_path: Path) -> None:
    """A folder has details that an archive does not keep."""
    for seed in (0, 1, 2):
        make_run(tmp_path / f"lesson-mnist-seed{seed}", run={"seed": seed})
    write_archive(tmp_path / "runs.jsonl.gz", [Run.load(tmp_path / f"lesson-mnist-seed{seed}") for seed in (0, 1)])
    shutil.rmtree(tmp_path / "lesson-mnist-seed0")
    study = load_as_study(tmp_path)
    assert [run.seed for run in study.runs] == [0, 1, 2]
    assert [bool(run.read_clients()) for run in study.runs] == [False, True, True]


def test_varied_settings_of_a_sweep_keep_their_order(tmp_path: Path) -> None:
    """Runs that are no longer listed are left out; unfinished ones that are listed are failures."""
    make_sweep(tmp_path)
    make_run(tmp_path / "old", data={"beta": 7.0})
    begin_run(tmp_path / "new", Settings(beta=0.1, seed=1, time_budget_s=600.0))
    begin_run(tmp_path / "longer", Settings(beta=0.1, time_budget_s=700.0))
    study = load_as_study(tmp_path)
    assert study.by == ("strategy.name", "data.beta", "strategy.late")
    strategies = (("lesson", "drop"), ("nowhere:Mine", None))
    assert list(study.groups()) == [(name, beta, late) for name, late in strategies for beta in (1.0, 0.1)]
    assert [run.summary["seed"] for run in study.runs[:2]] == [0, 1]
    assert study.failures == {"new": UNFINISHED, "x": "no <reason>"}


def test_folders_are_labeled_by_what_differs(tmp_path: Path) -> None:
    """By β once, not by the batch size that goes with it; the trainer does not matter."""
    for beta, batch, trainer in ((0.1, 10, "auto"), (1.0, 20, "reference")):
        for name in ("lesson", "fedavg"):
            parts = {"training": {"batch_size": batch}, "data": {"beta": beta}, "run": {"trainer": trainer}}
            make_run(tmp_path / f"{beta}" / name, strategy={"name": name}, **parts)
    study = load_study([tmp_path / "0.1", tmp_path / "1.0", str(tmp_path / "1.0" / "lesson")])
    assert (len(study.runs), len(study.by), len(study.groups())) == (4, 2, 4)
    assert load_as_study(tmp_path / "0.1").by == ("strategy",)


def test_same_run_in_two_folders_is_rejected(tmp_path: Path) -> None:
    """The interval of a mean would be too narrow."""
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    with pytest.raises(InputError, match="are the same run"):
        load_study([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "does not exist"),
        ("file", "is a file"),
        ("empty", "holds no finished run"),
        ("begun", "resume it"),
        ("all_begun", "none of its 2 runs has finished"),
        ("damaged", r"metrics.jsonl line 1 is damaged"),
    ],
)
def test_folders_that_cannot_be_loaded(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for folder in ("begun", "all_begun/a", "all_begun/b"):
        begin_run(tmp_path / folder, Settings())
    make_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    with pytest.raises(InputError, match=message):
        load_study([tmp_path / name]).curves()


@pytest.mark.parametrize("name", ["lesson-beta=0.1-seed0/config.toml", "study.toml", "runs.jsonl.gz"])
def test_files_of_another_format_are_rejected_in_one_line(name: str, tmp_path: Path) -> None:
    make_sweep(tmp_path)
    write_archive(tmp_path / "runs.jsonl.gz", [Run.load(tmp_path / "lesson-beta=0.1-seed1")])
    path = tmp_path / name
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content, count = re.subn(rb'("?format"?(?: = |: ))\d', rb"\g<1>99", content, count=1)
    assert count == 1
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert re.match(rf"{re.escape(str(path))}: format must be \d, got 99", str(caught.value))
    assert "\n" not in str(caught.value)
