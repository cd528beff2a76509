"""Flower's own simulation engine: the simulator's numbers, and clients of a drop-in in the order of partitions."""

import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import APP
from local_processes import end, end_all, free_ports, listens, output_of, start, wait

from lesson.flower.config import check_config, settings_of
from lesson.runs.execute import execute

pytestmark = pytest.mark.deployment
CONFIG = {"deadline": "20", "time-budget": 120.0, "eval-every": 40.0}
NUM_NODES = 5

SERVER = """
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from lesson.flower import LessonStrategy
import numpy as np

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = LessonStrategy(10.0, latency_s=[5.0, 15.0, 25.0], min_available_nodes=3)
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


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `flwr` finds a SuperLink that simulates."""
    folder = tmp_path_factory.mktemp("simulation")
    (port,) = free_ports(1)
    env = os.environ | {
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (folder / "config.toml").write_text(connection)
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", port]
    superlink = start(command, env, folder / "superlink.log")
    try:
        wait("the SuperLink to listen", 300, lambda: listens(port))
        yield env
    finally:
        end([superlink])
        end_all("FLWR_HOME", str(folder))


def run(env: dict[str, str], app: Path, num_nodes: int, *changes: str) -> None:
    """Run an app in simulation; it must end well."""
    nodes = f"num-supernodes={num_nodes} client-resources-num-cpus=1"
    settings = [part for change in changes for part in ("-c", change)]
    log = output_of(["flwr", "run", app, "here", "--stream", "--federation-config", nodes, *settings], env, 600)
    (last, *_) = json.loads(output_of(["flwr", "ls", "here", "--format", "json"], env))["runs"]
    assert last["status"] == "finished:completed", log


def test_the_simulation_engine_gives_the_numbers_of_the_simulator(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "flower"
    changes = [f"{name}={json.dumps(value)}" for name, value in (CONFIG | {"out": str(out)}).items()]
    run(env, APP, NUM_NODES, *changes)
    settings = settings_of(check_config(CONFIG), NUM_NODES)
    settings = settings.model_copy(update={"run": settings.run.model_copy(update={"trainer": "reference"})})
    execute(settings, tmp_path / "simulator")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "simulator" / name).read_bytes()
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_drop_in_finds_its_clients_by_partition(env: dict[str, str], tmp_path: Path) -> None:
    """Tiers 1, 2 and 3: in four rounds of 10 s they are sent four models, two and two."""
    app, journal = tmp_path / "app", tmp_path / "journal"
    (app / "plain_app").mkdir(parents=True)
    (app / "pyproject.toml").write_text((APP / "pyproject.toml").read_text().replace("lesson_app", "plain_app"))
    (app / "plain_app" / "__init__.py").touch()
    (app / "plain_app" / "server_app.py").write_text(SERVER)
    (app / "plain_app" / "client_app.py").write_text(CLIENT.replace("JOURNAL", str(journal)))
    run(env, app, 3)
    assert sorted(journal.read_text().splitlines()) == ["0 0.5"] * 4 + ["1 1.0"] * 2 + ["2 1.5"] * 2
