"""Built-in tasks, and your own by name: options, errors, and settings that fit the task."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.any_tasks import Mlp, feature_task
from lesson import InputError, Settings, Task, load_task
from lesson.learn.tasks import (
    BUILT_IN,
    call_maker,
    count_values,
    fit_to_task,
    prepare_task,
    settle_split,
    task_of,
    with_actual_bits,
)
from lesson.learn.template import Template

MODULE = """
import numpy as np
import lesson
from helpers.any_tasks import Mlp, feature_task

def make(size=160, *, noise=0.0):
    return feature_task(clients=np.array_split(np.arange(size), 5))

def needs(size):
    return feature_task()

def fails():
    raise KeyError("no such column")

def stops():
    raise SystemExit("bye")

def returns():
    return 3

ready = feature_task()
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with tasks, in the current folder."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_task_is_loaded_by_name_with_its_options(mine: str) -> None:
    task = load_task(f"{mine}:make", {"size": 100})
    assert task.clients is not None
    assert [len(part) for part in task.clients] == [20] * 5
    assert load_task(f"{mine}:ready").clients is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("make", {"sise": 3}, r"\[task\] unknown option 'sise' for .*:make; did you mean 'size'"),
        ("fails", {"size": 3}, r"\[task\] unknown option 'size' for .*:fails, which has none"),
        ("needs", {}, "needs the argument size; set it with --set task.size=VALUE"),
        ("fails", {}, "task '.*:fails' failed: KeyError"),
        ("stops", {}, "task '.*:stops' failed: SystemExit"),
        ("returns", {}, "task '.*:returns' must return a lesson.Task, got int"),
        ("number", {}, "task '.*:number' must be a function that returns a lesson.Task, got int"),
        ("ready", {"size": 3}, r"\[task\] must be empty for a Task object, which takes no options, got size"),
        ("missing", {}, "task '.*:missing' cannot be loaded: .*; the name must be module:function"),
    ],
)
def test_errors_in_a_task_are_one_line(mine: str, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        load_task(f"{mine}:{name}", options)
    assert "\n" not in str(raised.value)


def test_unknown_names_and_options_of_built_in_tasks() -> None:
    with pytest.raises(InputError, match="unknown dataset 'mnisst'; did you mean 'mnist'"):
        load_task("mnisst")
    with pytest.raises(InputError, match=r"\[task\] unknown option 'gamma' for synthetic; .*available: alpha, beta"):
        load_task("synthetic", {"gamma": 1.0})
    assert BUILT_IN["synthetic"].options == {"alpha": 1.0, "beta": 1.0, "num_clients": 100, "seed": 0}


@pytest.mark.parametrize("name", ["mnist", "synthetic"])
def test_networks_are_those_of_the_tasks(name: str) -> None:
    """`network` is used where the data is not loaded."""
    network = BUILT_IN[name].network()
    task = load_task(name)
    assert sum(one.numel() for one in network.parameters()) == Template(task, 0).num_values
    assert count_values(Settings(dataset=name)) == Template(task, 0).num_values


def test_synthetic_data_is_learned_in_seconds(tmp_path: Path) -> None:
    from lesson.runs.execute import execute

    settings = Settings(dataset="synthetic", rounds=60, deadline_s=60.0, device="cpu")
    summary = execute(settings, tmp_path / "run")
    assert summary["accuracy"] > 0.4
    assert summary["wall_trainer"] == "fused"


def test_a_fleet_has_no_more_clients_than_the_task() -> None:
    task = feature_task(clients=np.array_split(np.arange(160), 5))
    assert fit_to_task(Settings(), task).fleet.num_clients == 5
    assert fit_to_task(Settings(num_clients=3), task).fleet.num_clients == 3
    assert fit_to_task(Settings(), feature_task()).fleet.num_clients == 50


def test_remarks_about_clients_and_the_size_of_uploads(mine: str) -> None:
    """LeNet has 61,706 parameters, 1,975 kbit: 20 times the preset's 100 kbit. 227 parameters have 7.3 kbit."""
    settings, (size,) = prepare_task(Settings())
    assert settings == Settings()
    assert size == (
        "an upload is charged as 100 kbit, but the 61,706 values that clients exchange have 1,974.6 kbit; with "
        'model_bits = "actual", their actual size is charged'
    )
    assert prepare_task(Settings(model_bits=2e6))[1] == []
    assert prepare_task(Settings(model_bits="actual"))[1] == []
    fitted, told = prepare_task(Settings(dataset=f"{mine}:make"))
    assert fitted.fleet.num_clients == 5
    assert told[0] == "num_clients = 5, the number of clients of the task"
    assert told[1].startswith("split = natural")
    assert told[2].startswith("an upload is charged as 100 kbit, but the 227 values that clients exchange have 7.3 kb")


def test_the_size_of_an_upload_counts_only_as_traffic_if_times_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "lab.csv").write_text("client,latency_s\na,3\nb,9\n")
    (size,) = prepare_task(Settings(latencies=str(tmp_path / "lab.csv")))[1]
    assert "traffic" in size
    assert "charged" not in size
    traced = Settings(trace="trace.csv")
    assert "traffic" in prepare_task(traced)[1][0]
    assert "charged" in prepare_task(traced.with_changes(download=True))[1][0]


@pytest.mark.parametrize("preset", ["released", "printed", "phones"])
def test_the_natural_split_replaces_only_an_unset_split(preset: str) -> None:
    settings = Settings(preset=preset, dataset="femnist")
    assert settle_split(settings).data.split == "natural"
    assert settle_split(settings.with_changes(beta=0.1)).data.split == "natural"
    assert settle_split(Settings(**settle_split(settings).to_sections())).data.split == "natural"
    for split in ("dirichlet-per-class", "dirichlet-per-client"):
        chosen = settings.with_changes(split=split)
        assert settle_split(chosen.with_changes(beta=0.1)).data.split == split
        assert settle_split(Settings(**chosen.to_sections())).data.split == split


def test_the_actual_size_of_an_upload_is_known_without_the_data() -> None:
    assert with_actual_bits(Settings(model_bits="actual", dataset="cifar10")).upload.bits == 32 * 1_144_650
    with pytest.raises(InputError, match="model_bits must be a number here, got 'actual'"):
        _ = Settings(model_bits="actual").upload.bits


def test_a_task_object_is_returned_as_it_is() -> None:
    task = Task(train=([[1.0]], [0]), test=([[1.0]], [0]), model=lambda: torch.nn.Linear(1, 1))
    assert call_maker("own", task, {}) is task
    assert call_maker("own", lambda **options: feature_task(**options), {"model": Mlp}).model is Mlp


def test_an_edited_and_reloaded_function_makes_another_task(mine: str, tmp_path: Path) -> None:
    settings = Settings(dataset=f"{mine}:make")
    first = task_of(settings)
    assert task_of(settings) is first
    module = importlib.import_module(mine)
    module.make = lambda size=160: feature_task(clients=[[0]])
    assert len(task_of(settings).clients or ()) == 1


def test_options_change_what_clients_exchange_and_how_many_there_are() -> None:
    fitted, (clients, split) = prepare_task(Settings(dataset="synthetic", task={"num_clients": 20}))
    assert (fitted.fleet.num_clients, fitted.data.split) == (20, "natural")
    assert clients == "num_clients = 20, the number of clients of the task"
    assert split == "split = natural: the task lists the samples of its clients; another split ignores them"
