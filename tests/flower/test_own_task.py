"""Your own task on Flower: server and clients name it in their own code; clients import nothing a server names."""

import json
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from flwr.app import Context, RecordDict

from helpers.any_tasks import Mlp, feature_task, regression_task, rmse
from helpers.local_grid import MakeGrid
from lesson import InputError, Task
from lesson.flower import make_client_app, serve
from lesson.flower.client import _ClientTask
from lesson.flower.config import check_config, settings_of
from lesson.runs.execute import execute

CLIENTS = 4
PARTS = [list(range(40 * client, 40 * client + 10 * (client + 1))) for client in range(CLIENTS)]
CONFIG: dict[str, Any] = {
    "deadline": 15,
    "clock": "virtual",
    "rounds": 5,
    "eval-every": 1e9,
    "set": "training.batch_size=4 training.local_steps=2",
}
TASKS = {
    "batch norm and dropout": feature_task(partial(Mlp, norm=True, dropout=0.2), clients=PARTS),
    "regression": regression_task(clients=PARTS, metrics=rmse, metric="rmse", higher_is_better=False),
}


def context(config: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)


@pytest.mark.parametrize("name", TASKS)
def test_a_run_on_the_virtual_clock_is_bit_identical_to_a_simulated_one(
    name: str, make_grid: MakeGrid, tmp_path: Path
) -> None:
    task, config = TASKS[name], CONFIG | {"out": str(tmp_path / "served")}
    serve(make_grid(make_client_app(task), CLIENTS, config), context(config), task)
    settings = settings_of(check_config(CONFIG), CLIENTS)
    reference = settings.model_copy(update={"run": settings.run.model_copy(update={"trainer": "reference"})})
    execute(reference, tmp_path / "simulated", task=task)
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "served" / file).read_bytes() == (tmp_path / "simulated" / file).read_bytes()


def test_a_function_gets_the_options_of_the_run_config(make_grid: MakeGrid, tmp_path: Path) -> None:
    asked: list[int] = []

    def make(num_clients: int) -> Task:
        asked.append(num_clients)
        return feature_task(clients=PARTS[:num_clients])

    config = CONFIG | {"out": str(tmp_path / "served"), "set": f"{CONFIG['set']} task.num_clients={CLIENTS}"}
    serve(make_grid(make_client_app(make), CLIENTS, config), context(config), make)
    assert set(asked) == {CLIENTS}
    assert len(asked) > 1


def test_clients_import_nothing_that_a_server_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.py").write_text("raise SystemExit('this code must not run')\n")
    with pytest.raises(InputError, match="unknown dataset 'planted:make_task'"):
        check_config(CONFIG | {"dataset": "planted:make_task"})
    check_config(CONFIG | {"strategy": "planted:Strategy"})
    assert "planted" not in sys.modules


@pytest.mark.parametrize("change", ["data.dataset=antigravity:fly", "dataset=antigravity:fly"])
def test_no_setting_of_a_run_config_names_a_module_to_import(change: str) -> None:
    with pytest.raises(InputError, match="unknown dataset 'antigravity:fly'"):
        settings_of(check_config({"set": change}), CLIENTS)


def test_a_settings_file_of_a_run_config_does_not_name_one_either(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[data]\ndataset = "antigravity:fly"\n')
    with pytest.raises(InputError, match="unknown dataset 'antigravity:fly'"):
        settings_of(check_config({"scenario": str(file)}), CLIENTS)


def test_copies_of_an_app_share_one_workload() -> None:
    """Flower's simulation copies the client app into its processes for every message."""
    task = _ClientTask(TASKS["regression"])
    once, again = (pickle.loads(cloudpickle.dumps(task)) for _ in range(2))
    assert once is again
    made = once._make(json.dumps(CONFIG), CLIENTS)
    assert made.template.num_values == 193
