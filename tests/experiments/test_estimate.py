"""How many runs are left, and how long they take: measured here, so only bounds can be checked."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import FakeEngine
from helpers.run_folders import make_run
from helpers.tuned import small
from lesson import InputError, Settings
from lesson.experiments import estimate as module
from lesson.experiments.estimate import estimate
from lesson.experiments.grid import Grid, make_grid
from lesson.experiments.missing import run_missing


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Sequence[Settings]:
    """The runs that were timed; each takes 60 s."""
    found: list[Settings] = []

    def seconds(settings: Settings, *_: Any) -> float:
        found.append(settings)
        return 60.0

    monkeypatch.setattr(module, "_seconds", seconds)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    return found


def grid(num_seeds: int = 3, betas: Sequence[float] = (0.1, 1.0)) -> Grid:
    return make_grid({"run": {"time_budget_s": 600.0}}, {"data.beta": list(betas)}, num_seeds)


def test_runs_that_are_left_are_counted_and_nothing_is_written(timed: Sequence[Settings], tmp_path: Path) -> None:
    """Seeds take the same time: one of them is timed."""
    found = estimate(grid(), tmp_path / "out")
    assert (found.num_runs, found.num_done, found.num_left, found.num_processes) == (6, 0, 6, 2)
    assert found.minutes == 6 / 2
    assert 0 < found.memory_gb < 100
    assert sorted(settings.data.beta for settings in timed) == [0.1, 1.0]
    assert list(tmp_path.iterdir()) == []
    run_missing(grid(2), tmp_path / "out", FakeEngine())
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
    found = estimate(grid(), tmp_path / "out")
    assert (found.num_runs, found.num_done, found.minutes) == (6, 4, 2 / 2)
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*")) == before


def test_nothing_is_timed_if_all_is_done(timed: Sequence[Settings], tmp_path: Path) -> None:
    run_missing(grid(1), tmp_path, FakeEngine())
    found = estimate(grid(1), tmp_path)
    assert (found.num_left, found.minutes, len(timed)) == (0, 0.0, 0)


def test_at_most_eight_runs_are_timed(timed: Sequence[Settings], tmp_path: Path) -> None:
    found = estimate(grid(2, range(1, 101)), tmp_path / "out", cpus_per_trial=2)
    assert (found.num_runs, found.num_processes, found.minutes) == (200, 1, 200.0)
    assert len(timed) <= 8
    assert max(settings.data.beta for settings in timed) > 80, "not spread over the sweep"


def test_the_runs_that_follow_tuning_are_counted(timed: Sequence[Settings], tmp_path: Path) -> None:
    """FedAvg: four tuning runs and two final runs at each of two β; it does not matter which settings win."""
    design = small(tmp_path).select(["fedavg"])
    assert estimate(design, tmp_path / "out").num_runs == 2 * (4 + 2)
    assert {settings.run.time_budget_s for settings in timed} == {400.0, 800.0}, "tuning and final runs differ"
    run_missing(design, tmp_path / "out", FakeEngine(at_most=8))
    found = estimate(design, tmp_path / "out")
    assert (found.num_runs, found.num_done) == (12, 8)
    run_missing(design, tmp_path / "out", FakeEngine())
    assert estimate(design, tmp_path / "out").num_left == 0


def test_a_folder_of_something_else_is_an_error(timed: Sequence[Settings], tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    with pytest.raises(InputError, match="holds a single run"):
        estimate(grid(), tmp_path / "run")
    assert not timed


def test_a_run_is_timed_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds take less than it takes to time them; twenty million are extrapolated."""
    monkeypatch.setattr(module, "TIMED_S", 0.05)
    monkeypatch.chdir(tmp_path)
    sections = {"fleet": {"num_clients": 5}, "data": {"samples_per_client": 100}, "strategy": {"name": "fedcs"}}
    short, long = (
        estimate(make_grid(sections | {"run": {"rounds": rounds}}, {"data.beta": [1.0]}), tmp_path / "out").minutes
        for rounds in (2, 20_000_000)
    )
    assert 0 < short < 10
    assert 10 < long < math.inf
    assert list(tmp_path.iterdir()) == []
