"""The public API: what `import lesson` offers, and its functions."""

import inspect
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lesson
from helpers.engines import FakeEngine
from helpers.small_tasks import TinyNet, tiny_task
from helpers.trackers import RecordingTracker, Unpicklable
from lesson import InputError, Run, Settings
from lesson.experiments.engines import InProcessEngine
from lesson.experiments.folder import MARKER, StudyFolder

TINY: dict[str, Any] = {"task": tiny_task(600)}
SMALL: dict[str, Any] = {"num_clients": 6, "batch_size": 5, "split": "iid", "device": "cpu"}
SMALL |= {"rounds": 3, "eval_every_s": 20.0}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_public_name_can_be_used() -> None:
    assert set(lesson.__all__) <= set(dir(lesson))
    for name in lesson.__all__:
        assert getattr(lesson, name) is not None
    with pytest.raises(AttributeError):
        lesson.nothing  # noqa: B018


def test_every_path_may_be_text() -> None:
    for function in (getattr(lesson, name) for name in lesson.__all__):
        for name, parameter in inspect.signature(function).parameters.items() if inspect.isfunction(function) else ():
            assert "Path" not in str(parameter.annotation) or "str" in str(parameter.annotation), (function, name)


def test_run_is_executed_once_and_resumed(tmp_path: Path) -> None:
    tracker = RecordingTracker()
    run = lesson.run("fedavg", options={"fraction": 0.5}, seed=3, out="one", trackers=[tracker], **TINY, **SMALL)
    assert isinstance(run, Run)
    assert run.path == Path("one")
    assert run.settings.strategy.options == {"fraction": 0.5}
    assert (run.summary["rounds"], run.seed, run.summary["dataset"]) == (3, 3, "tiny")
    before = (run.path / "summary.json").stat().st_mtime_ns
    again = lesson.run(out=run.path, settings=run.settings, strategy="fedavg", options={"fraction": 0.5}, **TINY)
    assert again.summary == run.summary
    assert (run.path / "summary.json").stat().st_mtime_ns == before
    assert lesson.load(run.path).summary == run.summary  # type: ignore[union-attr]
    assert tracker.calls[1:4] == [1, 2, 3]
    (run.path / "summary.json").unlink()
    with pytest.raises(InputError, match="holds an unfinished run"):
        lesson.run("fedavg", options={"fraction": 0.5}, seed=3, out=run.path, resume=False, **TINY, **SMALL)


def test_comparison_can_be_loaded_from_its_folder(tmp_path: Path) -> None:
    """Changed settings are those of all strategies, options those of one."""
    base = Settings(strategy={"late": "drop"})
    out = tmp_path / "mine"
    options = {"fedavg": {"fraction": 0.5}}
    changed: dict[str, Any] = {"settings": base, "options": options, **TINY, **SMALL}
    study = lesson.compare(["lesson", "fedavg"], num_seeds=2, num_processes=1, out=out, **changed)
    assert [run.name for run in study.runs] == ["lesson-seed0", "lesson-seed1", "fedavg-seed0", "fedavg-seed1"]
    assert {run.settings.strategy.name: run.settings.strategy.options for run in study.runs} == {
        "lesson": {"late": "drop"},
        "fedavg": {"fraction": 0.5},
    }
    assert lesson.load(out).table().equals(study.table())  # type: ignore[union-attr]
    marker = StudyFolder(out).read()
    assert marker is not None
    assert (marker.kind, [made.runs for made in marker.provenance]) == ("comparison", [4])


def test_your_own_task_is_trained_in_several_processes(tmp_path: Path) -> None:
    """Also if its model is a function that other processes cannot import."""
    task = replace(tiny_task(600), model=lambda: TinyNet())
    for num in (1, 2):
        study = lesson.compare(["lesson"], num_seeds=2, num_processes=num, out=f"with-{num}", task=task, **SMALL)
        assert [run.summary["dataset"] for run in study.runs] == ["tiny", "tiny"]
    single, parallel = (tmp_path / f"with-{num}" / "lesson-seed1" for num in (1, 2))
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (single / name).read_bytes() == (parallel / name).read_bytes()


def test_tasks_and_trackers_that_cannot_be_copied_are_rejected(tmp_path: Path) -> None:
    lock = threading.Lock()

    def model() -> TinyNet:
        with lock:
            return TinyNet()

    with pytest.raises(InputError, match="task or trackers cannot be copied"):
        lesson.compare(["lesson"], num_processes=2, out="mine", task=replace(tiny_task(600), model=model), **SMALL)
    with pytest.raises(InputError, match="trackers cannot be copied"):
        lesson.compare(["lesson"], num_processes=2, trackers=[Unpicklable()], **SMALL)
    assert not list(tmp_path.rglob("*.toml")), "something half-written"


def test_sweep_over_a_mapping(tmp_path: Path) -> None:
    """Names that only one section has need no section."""
    engine = InProcessEngine(**TINY)
    axes = {"strategy": ["lesson", "fedavg"], "strategy.late": ["drop"], "beta": [0.5, 1.0]}
    study = lesson.sweep(axes, num_seeds=2, engine=engine, **SMALL)
    assert study.by == ("strategy.name", "strategy.late", "data.beta")
    assert [(name, late) for name, late, _ in study.groups()] == [("lesson", "drop")] * 2 + [("fedavg", None)] * 2
    assert len(study.runs) == 8
    assert lesson.load(tmp_path / "runs" / "sweep").table().equals(study.table())  # type: ignore[union-attr]


def test_sweep_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[run]\ntime_budget_s = 600.0\n[sweep]\nseeds = 2\nbeta = [0.1, 1.0]\n")
    study = lesson.sweep("grid.toml", engine=FakeEngine())
    assert len(study.runs) == 4
    assert (tmp_path / "runs" / "grid" / MARKER).exists()
    again = FakeEngine()
    assert len(lesson.sweep(tmp_path / "runs" / "grid" / MARKER, out="runs/grid", engine=again).runs) == 4
    assert again.asked == []


def test_settings_of_a_file_are_in_the_file() -> None:
    for more in ({"num_seeds": 2}, {"beta": 0.1}, {"settings": Settings()}, TINY):
        with pytest.raises(InputError, match=r"grid\.toml"):
            lesson.sweep("grid.toml", **more)  # type: ignore[arg-type]


def test_plan_needs_no_training() -> None:
    plan = lesson.plan(deadline_s=20.0, num_clients=10, seed=1, num_rounds=5)
    assert (plan.deadline_s, len(plan.fleet)) == (20.0, 10)
    assert lesson.plan(num_clients=10, deadline_s="auto").deadline_s > 0
    fleet = lesson.draw_fleet(Settings(num_clients=4))
    assert len(lesson.plan(fleet).fleet) == 4


def test_table_of_the_paper_is_reproduced(tmp_path: Path) -> None:
    """Table I needs no runs."""
    done = lesson.reproduce("table1", quick=True)
    out = tmp_path / "runs" / "paper-quick"
    assert done.study.runs == []
    assert {"table1.md", "table1.csv", "table1.toml", "README.md", "report.html", MARKER} <= {
        path.name for path in out.iterdir()
    }
    with pytest.raises(InputError, match="seeds = 2"):
        lesson.reproduce("table1", out=out)


def test_task_object_needs_a_folder() -> None:
    """Otherwise a later call with another task would find these results."""
    for call in (lesson.run, partial(lesson.compare, ["lesson"]), partial(lesson.sweep, {"beta": [0.1, 1.0]})):
        with pytest.raises(InputError, match="out must be given with a Task object"):
            call(**TINY, **SMALL)
    assert lesson.run(out="one", **TINY, **SMALL).settings.data.dataset == TINY["task"].name == "tiny"


@pytest.mark.slow
def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Processes that train a part of a run, or a run each, do not execute it again, even if it defines the task.

    Its own strategies must be in a module.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, lesson\n"
        "print('once')\n"
        "class Net(torch.nn.Linear): pass\n"
        "def make_task():\n"
        "    data = torch.randn(100, 4), torch.arange(100) % 2\n"
        "    return lesson.Task(train=data, test=data, model=lambda: Net(4, 2))\n"
        "small = {'task': make_task, 'split': 'iid', 'rounds': 2, 'num_clients': 5}\n"
        "print(lesson.run(trainer='batched', out='one', **small).summary['rounds'])\n"
        "print(len(lesson.compare(['lesson'], num_seeds=3, num_processes=2, out='several', **small).runs))\n"
        "class Mine(lesson.FedAvg): pass\n"
        "lesson.compare(['__main__:Mine'], num_seeds=2, num_processes=2, out='other', rounds=2)\n"
    )
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert ended.stdout.split() == ["once", "2", "3"], ended.stderr
    assert "cannot be imported by other processes" in ended.stderr


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: lesson.run(bta=0.1), "'beta'"),
        (lambda: lesson.run("leson"), "'lesson'"),
        (lambda: lesson.run(settings={"beta": 1}), "settings"),
        (lambda: lesson.run(task=5, out="x"), "task"),
        (lambda: lesson.compare(["lesson"], task="math:pi"), "^task 'math:pi'"),
        (lambda: lesson.run(dataset="mnist", out="x", **TINY), "task must not be given with a dataset"),
        (lambda: lesson.run(trackers=["tb"]), "'tb'"),
        (lambda: lesson.compare("lesson"), "strategies"),
        (lambda: lesson.compare(["lesson"], seeds=2), "num_seeds"),
        (lambda: lesson.compare(["lesson"], num_processes=-1), "num_processes"),
        (lambda: lesson.sweep({"beta": [1.0]}, beta=2.0), "data.beta"),
        (lambda: lesson.sweep({"run.device": ["auto", "cpu"]}), "run.device"),
        (lambda: lesson.plan("lab.csv"), "Fleet"),
        (lambda: lesson.plan(deadline_s="fast"), "deadline_s"),
        (lambda: lesson.reproduce("table3"), "'table3'"),
        (lambda: lesson.load(3), "folder"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(call: Any, key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=key):
        call()
    assert not list(tmp_path.iterdir())
