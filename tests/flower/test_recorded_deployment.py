"""A plain Flower app with FedAvg, recorded on real SuperNodes with TLS and registered keys."""

import numpy as np
import pytest
from federation import Federation

from lesson.flight.recording import ARRIVED, FAILED, Recording, read_recording

pytestmark = pytest.mark.deployment
ROUNDS, SLOW, BAD = 2, 1, 2
"""Node SLOW sleeps, and node BAD fails in round 2."""
PROJECT = """
[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "plain_app.server_app:app"
clientapp = "plain_app.client_app:app"

[tool.flwr.app.config]
flight = ""
rounds = 1
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from lesson.flower import RecordingGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    grid = RecordingGrid(grid, context.run_config["flight"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(1000)]), num_rounds=context.run_config["rounds"])
"""
CLIENT = """
import time

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lesson.flower import report_times

app = ClientApp(mods=[report_times])


@app.train()
def train(message, context):
    if context.node_config["bad"] and message.content["config"]["server-round"] == 2:
        raise RuntimeError("out of battery")
    time.sleep(context.node_config["slow-s"])
    metrics = MetricRecord({"num-examples": 10 + context.node_config["partition-id"], "loss": 0.5})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recorded")
    package = folder / "plain" / "plain_app"
    package.mkdir(parents=True)
    (folder / "plain" / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "server_app": SERVER, "client_app": CLIENT}.items():
        (package / f"{name}.py").write_text(text)
    nodes = [{"slow-s": 5.0 if number == SLOW else 0.0, "bad": number == BAD} for number in range(3)]
    told: list[str] = []
    with Federation(nodes, folder / "federation", told.append) as federation:
        config = {"flight": str(folder / "flight.jsonl"), "rounds": ROUNDS}
        status = federation.follow(federation.begin(config, folder / "plain"), 600)
    assert status == "finished:completed", "\n".join(told)
    assert any(f"recording: {folder / 'flight.jsonl'}" in line for line in told)
    return read_recording(folder / "flight.jsonl")


def test_the_recording_has_every_job(recorded: Recording) -> None:
    jobs = recorded.jobs
    assert len(recorded.names) == 3
    assert all(name.startswith("key-") for name in recorded.names), "nodes are registered by their keys"
    assert len(jobs) == 3 * ROUNDS
    assert np.bincount(jobs.client).tolist() == [ROUNDS] * 3
    assert sorted(jobs.num_samples[jobs.round == 1].tolist()) == [10, 11, 12]
    (bad,) = np.flatnonzero(jobs.outcome == FAILED)
    assert jobs.round[bad] == 2
    assert "out of battery" in jobs.reason[bad]
    assert jobs.client[bad] == jobs.client[jobs.num_samples == 10 + BAD][0]
    assert np.count_nonzero(jobs.outcome == ARRIVED) == 3 * ROUNDS - 1


def test_the_recording_has_rounds_and_connections(recorded: Recording) -> None:
    assert [(one.round, len(one.merged or ())) for one in recorded.rounds] == [(1, 3), (2, 2)]
    assert [client for client, _, _ in recorded.intervals] == [0, 1, 2]


def test_clients_report_their_times(recorded: Recording) -> None:
    """On one machine, all clocks agree."""
    jobs = recorded.jobs
    arrived = jobs.outcome == ARRIVED
    assert np.isfinite(jobs.download_s[arrived]).all()
    slow = jobs.num_samples == 10 + SLOW
    assert (jobs.compute_s[slow] >= 5.0 - 0.001).all(), "it sleeps that long"
    assert (jobs.compute_s[arrived & ~slow] < jobs.compute_s[slow].min()).all()
