"""What `lesson.load` makes of folders; no run is trained: a few lines of metrics stand in for each."""

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import make_run, make_sweep
from lesson import InputError, load
from lesson.experiments.loading import load_together
from lesson.experiments.study import Run, Study


def test_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    run = load(str(tmp_path / "one"))
    assert isinstance(run, Run)
    assert run.summary["strategy"] == "lesson"
    assert len(run.to_frame()) == 6


def test_a_comparison_is_in_the_order_of_its_table(tmp_path: Path) -> None:
    for name in ("fedavg", "lesson", "tifl"):
        make_run(tmp_path / f"{name}-seed0", strategy={"name": name})
    (tmp_path / "table.json").write_text('{"lesson": {}, "fedavg": {}}')
    study = load(tmp_path)
    assert isinstance(study, Study)
    assert study.by == ("strategy",)
    assert list(study.table().index) == ["lesson", "fedavg", "tifl"]


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


def test_trials_that_are_no_longer_in_the_grid_are_left_out(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    make_run(tmp_path / "old", data={"beta": 7.0})
    assert "old" not in [run.path.name for run in load_together([tmp_path]).runs]


def make_begun(path: Path, **sections: dict[str, Any]) -> None:
    """A run that was broken off."""
    make_run(path, **sections)
    (path / "summary.json").unlink()


NOT_ENDED = "has not ended; the command that began it goes on with it, lesson run and compare with --resume"


def test_runs_of_a_comparison_that_have_not_ended_are_told(tmp_path: Path) -> None:
    make_run(tmp_path / "one" / "lesson-seed0")
    make_begun(tmp_path / "one" / "fedavg-seed0", strategy={"name": "fedavg"})
    make_run(tmp_path / "two", strategy={"name": "tifl"})
    (tmp_path / "one" / "notes").mkdir()
    for study in (load(tmp_path / "one"), load_together([tmp_path / "one", tmp_path / "two"])):
        assert isinstance(study, Study)
        assert study.failures == {"fedavg-seed0": NOT_ENDED}


def test_trials_of_a_sweep_that_have_not_ended_are_told_if_the_grid_has_them(tmp_path: Path) -> None:
    """For one that failed in the middle there is a better reason."""
    make_sweep(tmp_path)
    make_begun(tmp_path / "new", data={"beta": 0.1}, run={"seed": 2})
    make_begun(tmp_path / "x", data={"beta": 0.1}, run={"seed": 3})
    make_begun(tmp_path / "old", data={"beta": 7.0})
    assert load_together([tmp_path]).failures == {"new": NOT_ENDED, "x": "no <reason>"}


def test_folders_taken_together_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    """By β once, not by the batch size that goes with it; the trainer and checkpoints do not matter."""
    for beta, batch, trainer in ((0.1, 10, "auto"), (1.0, 20, "reference")):
        for name in ("lesson", "fedavg"):
            parts = {"training": {"batch_size": batch}, "data": {"beta": beta}, "run": {"trainer": trainer}}
            make_run(tmp_path / f"{beta}" / name, strategy={"name": name}, **parts)
    study = load_together([tmp_path / "0.1", tmp_path / "1.0", str(tmp_path / "1.0" / "lesson")])
    assert len(study.runs) == 4
    assert len(study.by) == 2
    assert len(study.groups()) == 4


def test_the_same_run_in_two_folders_is_rejected(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    with pytest.raises(InputError, match=r"a and .*b are the same run; name one of them"):
        load_together([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "does not exist; it must be the folder of a run, a comparison or a sweep"),
        ("file", "is a file; it must be the folder of a run, a comparison or a sweep"),
        ("empty", "holds no finished run; it must be the folder of a run, a comparison or a sweep"),
        ("begun", "holds no finished run; resume one with 'lesson run --scenario"),
        ("damaged", "damaged/metrics.jsonl line 1 is damaged ("),
    ],
)
def test_folders_of_something_else(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "begun")
    (tmp_path / "begun" / "summary.json").unlink()
    make_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    with pytest.raises(InputError, match=re.escape(message)):
        load_together([tmp_path / name]).curves()
