"""Code on pages of the documentation that needs its own test."""

import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from helpers.local_grid import LocalGrid
from helpers.resuming import StoppedError, stop_after
from helpers.runs import PARTS, settings
from lesson.flower import LessonStrategy, initial_arrays
from lesson.runs.execute import execute

DOCS = Path(__file__).parent.parent.parent / "docs"
Logged = dict[str, list[tuple[int, dict[str, float]]]]


def python(page: str, containing: str) -> dict[str, Any]:
    """Execute the block of a page that contains a text, and return the names it defines."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (code,) = [block for block in blocks if containing in block]
    defined: dict[str, Any] = {}
    exec(compile(code, page, "exec"), defined)
    return defined


def run_with_resume(tracker: type, folder: Path) -> None:
    """Execute a run of five rounds that stops in round 3 and resumes from the checkpoint of round 2."""
    often = settings(rounds=5, checkpoint_every_s=1e-9)
    with pytest.raises(StoppedError):
        execute(often, folder, trackers=[tracker()], progress=stop_after(3), **PARTS)
    execute(often, folder, resume=True, trackers=[tracker()], **PARTS)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    made = ModuleType(name)
    vars(made).update(parts)
    monkeypatch.setitem(sys.modules, name, made)


def test_custom_tracker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_with_resume(python("how-to/trackers.md", "class Printed")["Printed"], tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["run lesson starts", "interrupted", "run lesson resumes"]
    assert said[3].startswith("5 100.0 ")


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged, params, ends = defaultdict[str, list[Any]](list), dict[str, Any](), list[str]()
    going = SimpleNamespace(info=SimpleNamespace(run_id="none"))

    def start_run(*, run_id: str | None, run_name: str) -> SimpleNamespace:
        going.info.run_id = run_id or f"id of {run_name}"
        return going

    def get_metric_history(run_id: str, key: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(step=step) for step, values in logged[run_id] if key in values]

    module(
        monkeypatch,
        "mlflow",
        start_run=start_run,
        end_run=ends.append,
        log_params=params.update,
        log_metrics=lambda values, step: logged[going.info.run_id].append((step, values)),
        MlflowClient=lambda: SimpleNamespace(get_metric_history=get_metric_history),
    )
    run_with_resume(python("how-to/trackers.md", "class MLflow")["MLflow"], tmp_path / "run")
    assert [step for step, _ in logged["id of run"]] == [1, 2, 3, 4, 5]
    assert logged["id of run"][4][1]["time_s"] == 100.0
    assert params["fleet.num_clients"] == 6
    assert ends == ["KILLED", "FINISHED"]


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Logged = {}
    ends: list[int] = []

    def init(*, project: str, id: str, name: str, resume: str, config: dict[str, Any]) -> SimpleNamespace:
        assert (project, name, resume, config["fleet.num_clients"]) == ("lesson", id, "allow", 6)
        resumed, lines = id in runs, runs.setdefault(id, [])
        return SimpleNamespace(
            resumed=resumed,
            step=lines[-1][0] + 1 if lines else 0,
            define_metric=lambda name, step_metric: None,
            log=lambda values, step: lines.append((step, values)),
            finish=lambda exit_code: ends.append(exit_code),
        )

    module(monkeypatch, "wandb", init=init)
    run_with_resume(python("how-to/trackers.md", "class WandB")["WandB"], tmp_path / "run")
    (lines,) = runs.values()
    assert [step for step, _ in lines] == [1, 2, 3, 4, 5]
    assert ends == [1, 0]


def test_client_that_trains_a_task(few_test_images: None) -> None:
    names = python("how-to/flower.md", "TaskClient(SETTINGS")
    arrays, grid = initial_arrays(names["SETTINGS"]), LocalGrid(names["app"], 2)
    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 6.0], sends_index=True, fraction_evaluate=0.0)
    try:
        result = strategy.start(grid, arrays, 1, train_config=ConfigRecord({"lr": 0.1, "local-steps": 2}))
    finally:
        grid.close()
    before, after = (record.to_numpy_ndarrays()[0] for record in (arrays, result.arrays))
    assert not np.array_equal(before, after)
