"""Apps of the documentation and of examples/, in this process and with Flower's own commands."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from federation import APP as READY_APP
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from local_processes import end_all, free_ports, output_of
from torch import nn

from helpers.code_blocks import ROOT, blocks
from helpers.local_grid import MakeGrid
from helpers.small_tasks import tiny_task
from lesson.flight.recording import read_recording

QUICKSTART, FLEET = ROOT / "examples" / "flower-app", ROOT / "examples" / "fleet-trial"


def context(config: dict[str, Any] | None = None) -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config or {})


LoadApp = Callable[[Path, str], list[Any]]


@pytest.fixture
def load_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadApp]:
    """Imports the client and the server app of a package in a folder, even if another copy was imported before."""
    packages = []

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]

    def load(folder: Path, package: str) -> list[Any]:
        packages.append(package)
        forget()
        monkeypatch.syspath_prepend(folder)
        return [import_module(f"{package}.{name}_app").app for name in ("client", "server")]

    yield load
    forget()


@pytest.fixture(scope="module")
def page() -> list[str]:
    return [block.text for block in blocks(ROOT / "docs" / "how-to" / "flower.md") if block.kind == "python"]


def test_documented_app_trains(make_grid: MakeGrid, page: list[str]) -> None:
    (server,) = [text for text in page if "was: FedAvg()" in text]
    (step_size,) = [text for text in page if text.startswith("lr = ")]
    client, rates, rounds = ClientApp(), list[float](), list[int]()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        names: dict[str, Any] = {"message": message}
        exec(step_size, names)
        rates.append(names["lr"])
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 20})}
        return Message(RecordDict(content), reply_to=message)

    exec(server, names := {"Net": lambda: nn.Linear(2, 1), "evaluate": lambda number, _: rounds.append(number)})
    names["app"](make_grid(client, 2), context())
    assert rates == [0.01] * 2 * 20, "both clients are in tier 1"
    assert rounds == list(range(21))


def test_documented_app_of_a_task_trains(
    make_grid: MakeGrid, page: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ModuleType("mine")
    vars(mine)["make_task"] = tiny_task
    monkeypatch.setitem(sys.modules, "mine", mine)
    client, server = dict[str, Any](), dict[str, Any]()
    for names, function in ((client, "make_client_app(task"), (server, "make_server_app(task")):
        (code,) = [text for text in page if function in text]
        exec(code, names)
    chosen = "data.split=iid training.batch_size=4"
    config = {"clock": "virtual", "deadline": 20.0, "rounds": 2, "set": chosen, "out": str(tmp_path / "run")}
    server["app"](make_grid(client["app"], 3, config), context(config))
    assert (tmp_path / "run" / "summary.json").exists()


def test_quickstart_app_trains(
    make_grid: MakeGrid, load_app: LoadApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds on two nodes; clients evaluate the model on their own data after the last."""
    images, labels = torch.zeros((100, 28, 28, 1), dtype=torch.uint8), torch.arange(100) % 10
    few = SimpleNamespace(train=(images, labels), test=(images[:20], labels[:20]))
    monkeypatch.setattr("lesson.load_task", lambda _: few)
    client, server = load_app(QUICKSTART, "lesson_quickstart")
    project = tomllib.loads((QUICKSTART / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"] | {"num-server-rounds": 2, "local-steps": 2}
    grid = make_grid(client, 2, config)
    grid.simulated = True
    server(grid=grid, context=context(config))
    shown = capsys.readouterr().out
    assert re.search(r"ClientApp-side Evaluate Metrics:\s+\{2: \{'eval_accuracy': .*'eval_loss': ", shown)
    assert re.search(r"ServerApp-side Evaluate Metrics:\s+\{ 0: .*\s+1: .*\s+2: ", shown)


def test_switched_fleet_app_is_recorded(make_grid: MakeGrid, load_app: LoadApp, tmp_path: Path) -> None:
    trial = runpy.run_path(str(FLEET / "trial.py"))
    client, server = load_app(trial["copy_app"](tmp_path / "app", trial["RECORD"] + trial["SWITCH"]), "fleet_app")
    config = {"num-server-rounds": 2, "min-nodes": 2, "learning-rate": 0.1, "local-steps": 2, "deadline": 0.5}
    config |= {"data": str(trial["DATA"]), "flight": str(tmp_path / "flight.jsonl")}
    grid = make_grid(client, 2, config)
    for node in grid.nodes.values():
        node.node_config |= {"data": str(trial["DATA"]), "slow-s": 0.0}
    server(grid=grid, context=context(config))
    recording = read_recording(tmp_path / "flight.jsonl")
    assert [one.round for one in recording.rounds] == [1, 2]
    assert len(recording.rounds[0].merged or ()) == 2
    assert np.isfinite(recording.jobs.compute_s[recording.jobs.round == 1]).all(), "clients report their times"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The user's environment, except that `flwr` starts its own SuperLink on free ports."""
    http, control = free_ports(2)
    home = str(tmp_path_factory.mktemp("home"))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    yield variables | {
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": home,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    }
    end_all("FLWR_HOME", home)


def flwr_run(command: str, env: dict[str, str], folder: Path) -> str:
    """Run a command as typed in a shell; return the output of a run that has completed."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    last, *_ = json.loads(output_of(["flwr", "ls", "--format", "json"], env))["runs"]
    assert last["status"] == "finished:completed", done.stdout
    return done.stdout


@pytest.mark.deployment
def test_documented_command_works(env: dict[str, str], tmp_path: Path) -> None:
    """In a clone, without settings for Flower: it installs nothing, trains and completes."""
    command = "flwr run examples/flower_app --stream"
    assert f"$ {command}\n" in (QUICKSTART / "README.md").read_text()
    shutil.copytree(ROOT / "examples", tmp_path / "examples", symlinks=True)
    shown = flwr_run(command, env, tmp_path)
    assert "round 5: 2 clients evaluated the model: eval_accuracy" in shown, shown
    assert "No additional application dependencies needed installation" in shown


SERVER = """
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from lesson.flower import LessonStrategy
import numpy as np

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = LessonStrategy(10.0, latency_s=[5.0, 15.0, 25.0], min_available_nodes=3, fraction_evaluate=0.0)
    arrays = ArrayRecord({"w": Array(np.zeros(2, dtype=np.float32))})
    strategy.start(grid, arrays, num_rounds=4, train_config=ConfigRecord({"lr": 0.5}))
"""
CLIENT = """
from pathlib import Path
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    with Path("JOURNAL").open("a") as file:
        file.write(f"{context.node_config['partition-id']} {message.content['config']['lr']}\\n")
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
"""


@pytest.mark.deployment
def test_simulated_partitions_have_their_latencies(env: dict[str, str], tmp_path: Path) -> None:
    """Tiers 1, 2 and 3: in four rounds of 10 s they are sent four models, two and two."""
    app, journal = tmp_path / "app", tmp_path / "journal"
    (app / "plain_app").mkdir(parents=True)
    (app / "pyproject.toml").write_text((READY_APP / "pyproject.toml").read_text().replace("lesson_app", "plain_app"))
    (app / "plain_app" / "__init__.py").touch()
    (app / "plain_app" / "server_app.py").write_text(SERVER)
    (app / "plain_app" / "client_app.py").write_text(CLIENT.replace("JOURNAL", str(journal)))
    flwr_run(f'flwr run {app} --stream --federation-config "num-supernodes=3"', env, tmp_path)
    assert sorted(journal.read_text().splitlines()) == ["0 0.5"] * 4 + ["1 1.0"] * 2 + ["2 1.5"] * 2


@pytest.mark.deployment
def test_short_fleet_trial_on_real_nodes(tmp_path: Path) -> None:
    """It ends with a predicted and a measured gain. On a busy machine the gain itself may be anything."""
    out = tmp_path / "trial"
    command = [sys.executable, str(FLEET / "trial.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    number = r"\d+\.\d\d times"
    assert re.search(f"updates per hour: predicted {number} .*, measured {number}", done.stdout)
    assert "all processes have ended" in done.stdout
    fedavg, switched = (read_recording(out / f"{name}.jsonl") for name in ("fedavg", "lesson"))
    assert fedavg.names == switched.names == ("phone-ana", "pi-roof", "tablet-lab")
    assert [len(one.merged or ()) for one in fedavg.rounds] == [3] * 4
    compute_s = [np.median(fedavg.jobs.compute_s[fedavg.jobs.client == client]) for client in range(3)]
    assert np.argsort(compute_s).tolist() == [0, 2, 1], "phone, tablet, Pi"
