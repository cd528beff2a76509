"""Engines: which options select which one, and how runs in one or several processes begin, fail and end."""

import math
import time
from pathlib import Path

import pytest

from helpers.runs import settings
from helpers.small_tasks import tiny_task
from helpers.trackers import RecordingTracker
from lesson import Settings
from lesson.experiments.engines import InProcessEngine, Line, LocalEngine, RayEngine, make_engine
from lesson.experiments.engines.trial import execute_trial
from lesson.runs.folder import RunFolder

STRATEGIES = """
import os
from pathlib import Path
from lesson import FedAvg


def first_time(name):
    found = Path(name).exists()
    Path(name).touch()
    return not found


class Once(FedAvg):
    def open_round(self, view, rng):
        with Path("rounds.txt").open("a") as file:
            file.write(f"{view.round}\\n")
        if view.round == 4 and first_time("once"):
            os.kill(os.getpid(), 9)
        return super().open_round(view, rng)


class Always(FedAvg):
    def open_round(self, view, rng):
        os.kill(os.getpid(), 9)


class Exits(FedAvg):
    def open_round(self, view, rng):
        os._exit(1)


class Raises(FedAvg):
    def open_round(self, view, rng):
        raise ZeroDivisionError("nobody\\nthere")


class Hungry(FedAvg):
    def open_round(self, view, rng):
        if first_time("hungry"):
            raise MemoryError
        return super().open_round(view, rng)
"""


def test_options_select_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single process is this one, unless it has to stop in time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    task = tiny_task()
    shared = make_engine(cpus_per_trial=3, task=task)
    assert isinstance(shared, LocalEngine)
    assert (shared.num_processes, shared.stop_at_s, shared.task) == (2, math.inf, task)
    assert isinstance(make_engine(num_processes=1, task=task), InProcessEngine)
    limited = make_engine(num_processes=1, seconds=3600.0)
    assert isinstance(limited, LocalEngine)
    assert 3000 < limited.left_s <= 3600
    ray = make_engine("ray", address="auto", cpus_per_trial=2, gpus_per_trial=0.25, task=task)
    assert isinstance(ray, RayEngine)
    assert (ray.address, ray.cpus_per_trial, ray.gpus_per_trial, ray.task) == ("auto", 2, 0.25, task)


def test_failure_does_not_stop_other_runs(tmp_path: Path) -> None:
    plan = {tmp_path / name: settings(rounds=rounds) for name, rounds in (("a", 2), ("b", 3), ("c", 1))}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    reported: list[tuple[str, Line]] = []
    tracker = RecordingTracker()
    InProcessEngine(task=tiny_task()).run(plan, lambda path, line: reported.append((path.name, line)), [tracker])
    assert [(name, line["round"]) for name, line in reported if "round" in line] == [("a", 1), ("a", 2), ("c", 1)]
    assert [(name, line.get("kind", "done")) for name, line in reported if "round" not in line] == [
        ("a", "done"),
        ("b", "InputError"),
        ("c", "done"),
    ]
    assert tracker.calls[1:4] == [1, 2, 2]


def test_invalid_option_of_a_task_is_invalid_input(tmp_path: Path) -> None:
    """It is an ArgumentError, which must stop a comparison like any other InputError."""
    wrong = Settings(dataset="synthetic", task={"num_clients": 0}, rounds=1)
    line = execute_trial(tmp_path / "run", wrong, progress=None)
    assert (line["error"], line["kind"]) == ("num_clients must be >= 1, got 0", "InputError")


def test_run_resumes_after_an_interruption(tmp_path: Path) -> None:
    heard: list[Line] = []

    def hear(_: Path, line: Line) -> None:
        heard.append(line)
        if line.get("round") == 2:
            raise KeyboardInterrupt

    engine = InProcessEngine(task=tiny_task())
    with pytest.raises(KeyboardInterrupt):
        engine.run({tmp_path / "a": settings(rounds=3), tmp_path / "b": settings(rounds=3)}, hear)
    assert [line["round"] for line in heard] == [1, 2]
    assert not (tmp_path / "b").exists()
    engine.run({tmp_path / "a": settings(rounds=3)}, lambda _, line: heard.append(line))
    assert heard[-1]["done"]


@pytest.mark.slow
def test_killed_runs_are_resumed_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run continues from its checkpoint, in the round in which it was killed. One that is always killed fails."""
    (tmp_path / "dies.py").write_text(STRATEGIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("Hungry", "Once", "Always", "Exits", "Raises")
    plan = {tmp_path / name: settings(f"dies:{name}", rounds=6, checkpoint_every_s=1e-9) for name in names}
    reported: dict[str, list[Line]] = {name: [] for name in names}
    monkeypatch.setattr("lesson.experiments.engines.local.MAX_RESTARTS", 1)
    engine = LocalEngine(2, task=tiny_task())
    engine.run(plan, lambda path, line: reported[path.name].append(line) if "round" not in line else None)
    ends = {name: lines[-1] for name, lines in reported.items()}
    assert "postponed" in reported["Hungry"][0]
    assert [reported[name][0].get("killed") for name in ("Once", "Always")] == [1, 1]
    assert [ends[name].get("done") for name in names] == [True, True, None, None, None]
    assert ends["Raises"]["kind"] == "ZeroDivisionError"
    assert ends["Raises"]["error"].startswith("ZeroDivisionError: nobody there (dies.py, line ")
    assert "killed 2 times" in ends["Always"]["error"]
    assert "status 1" in ends["Exits"]["error"]
    assert [int(line) for line in (tmp_path / "rounds.txt").read_text().split()] == [1, 2, 3, 4, 4, 5, 6]
    alone = tmp_path / "alone"
    InProcessEngine(task=tiny_task()).run({alone: settings("fedavg", rounds=6)}, lambda *_: None)
    assert (tmp_path / "Once" / "metrics.jsonl").read_bytes() == (alone / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_runs_stop_at_a_time_with_a_checkpoint(tmp_path: Path) -> None:
    long = settings("fedcs", rounds=None, time_budget_s=1e9, eval_every_s=1e6)
    paths, engine, begun = [tmp_path / name for name in "abc"], LocalEngine(2, task=tiny_task()), set[Path]()

    def hear(path: Path, _: Line) -> None:
        begun.add(path)
        if len(begun) == 2 and engine.stop_at_s == math.inf:
            object.__setattr__(engine, "stop_at_s", time.monotonic() + 0.1)

    engine.run(dict.fromkeys(paths, long), hear)
    assert [RunFolder(path).checkpoint.exists() for path in paths] == [True, True, False]
