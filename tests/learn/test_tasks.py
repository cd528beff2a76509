"""Built-in tasks, and your own by name: options, errors, and settings that fit the task."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from helpers.any_tasks import Mlp, feature_task
from lesson import InputError, Settings, load_task
from lesson.learn.tasks import (
    BUILT_IN,
    Exchanged,
    call_maker,
    count_values,
    task_of,
)
from lesson.learn.template import Template
from lesson.runs.execute import execute

MODULE = """
import numpy as np
from helpers.any_tasks import feature_task

def make(size=160, *, noise=0.0):
    return feature_task(clients=np.array_split(np.arange(size), 5))

def needs(size):
    return feature_task()

def fails():
    raise KeyError("no such column")

def returns():
    return 3

ready = feature_task()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with tasks, in the current folder."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_task_is_loaded_by_name_with_its_options(mine: str) -> None:
    task = load_task(f"{mine}:make", {"size": 100})
    assert [len(part) for part in task.clients or ()] == [20] * 5
    assert load_task(f"{mine}:ready").clients is None
    assert call_maker("own", task, {}) is task
    assert call_maker("own", lambda **options: feature_task(**options), {"model": Mlp}).model is Mlp


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("make", {"sise": 3}, "'sise' .* did you mean 'size'"),
        ("needs", {}, "task.size="),
        ("fails", {}, "KeyError"),
        ("returns", {}, "got int"),
        ("ready", {"size": 3}, "no options"),
        ("missing", {}, "module:function"),
    ],
)
def test_errors_in_a_task_are_reported_in_one_line(mine: str, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load_task(f"{mine}:{name}", options)
    assert "\n" not in str(raised.value)


def test_unknown_names_and_options_of_built_in_tasks_are_errors() -> None:
    with pytest.raises(InputError, match="did you mean 'mnist'"):
        load_task("mnisst")
    with pytest.raises(InputError, match=r"\[task\] unknown option 'gamma' for synthetic"):
        load_task("synthetic", {"gamma": 1.0})
    assert BUILT_IN["synthetic"].options == {"alpha": 1.0, "beta": 1.0, "num_clients": 100, "seed": 0}


@pytest.mark.parametrize("name", ["mnist", "synthetic"])
def test_count_values(name: str) -> None:
    exchanged, template = count_values(Settings(dataset=name)), Template(load_task(name), 0)
    assert exchanged == Exchanged(template.parameter_sizes)
    assert exchanged.bits == 32 * template.num_values


def test_synthetic_data_is_learned_in_seconds(tmp_path: Path) -> None:
    settings = Settings(dataset="synthetic", rounds=60, deadline_s=60.0, device="cpu")
    summary = execute(settings, tmp_path / "run")
    assert summary["accuracy"] > 0.4
    assert summary["wall_trainer"] == "fused"


def test_replaced_task_function_is_called_again(mine: str) -> None:
    settings = Settings(dataset=f"{mine}:make")
    first = task_of(settings)
    assert task_of(settings) is first
    importlib.import_module(mine).make = lambda size=160: feature_task(clients=[[0]])  # type: ignore[attr-defined]
    assert len(task_of(settings).clients or ()) == 1
