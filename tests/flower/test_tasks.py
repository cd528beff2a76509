"""The complete server and client app: the simulator's numbers, run folders, and which nodes take part."""

import json
import math
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from lesson.flower.config import DEFAULTS, check_config, deadline_of, settings_of
from lesson.flower.profile import Profile, Profiler
from lesson.flower.server import clock_of, find_clients

from helpers.any_tasks import Mlp, feature_task
from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import LocalGrid, MakeGrid, fail
from lesson import InputError
from lesson.flight.recording import ARRIVED, read_recording
from lesson.flower import LessonStrategy, make_client_app, make_server_app, serve
from lesson.learn.remote import initial_arrays
from lesson.runs.execute import execute

CLIENTS = 4
PARTS = [list(range(40 * client, 40 * client + 10 * (client + 1))) for client in range(CLIENTS)]
TASK = feature_task(partial(Mlp, norm=True, dropout=0.2), clients=PARTS)
SET = "training.batch_size=4 training.local_steps=2"
VIRTUAL: dict[str, Any] = {"deadline": 15, "clock": "virtual", "rounds": 5, "eval-every": 1e9, "set": SET}
WALL: dict[str, Any] = {"deadline": 0.3, "clock": "wall", "rounds": 7, "eval-every": 1e9, "set": SET}
SLOW_S = [0.01, 0.02, 0.03, 0.1]
"""Seconds that clients sleep per minibatch, of which there are two: tiers 1, 1, 1 and 2 or more at 0.15 s."""


def context(config: dict[str, Any]) -> Context:
    return Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def make(make_grid: MakeGrid, config: dict[str, Any]) -> LocalGrid:
    grid = make_grid(make_client_app(TASK), CLIENTS, config)
    if config["clock"] == "wall":
        grid.configure("slow-s", *SLOW_S)
    return grid


def served(make_grid: MakeGrid, config: dict[str, Any], out: Path) -> dict[str, Any]:
    config = config | {"out": str(out)}
    return serve(make(make_grid, config), context(config), TASK)


def simulated(config: dict[str, Any], out: Path) -> None:
    """Execute the same run without Flower, by the trainer that real clients use."""
    settings = settings_of(check_config(config), CLIENTS)
    reference = settings.model_copy(update={"run": settings.run.model_copy(update={"trainer": "reference"})})
    execute(reference, out, task=TASK)


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("strategy", "rounds", "changes"),
    [
        ("lesson", 14, "faults.disconnect_during=0.2 guards.norm_limit=1.2"),
        ("tifl", 5, "strategy.num_tiers=2 strategy.interval=3"),
    ],
)
def test_virtual_clock_is_bit_identical_to_the_simulator(
    make_grid: MakeGrid, tmp_path: Path, strategy: str, rounds: int, changes: str
) -> None:
    """Bit by bit; on Flower, the notes of a line say more. TiFL needs the accuracy of clients on samples held out."""
    config = VIRTUAL | {"strategy": strategy, "rounds": rounds, "set": f"{SET} {changes}"}
    served(make_grid, config, tmp_path / "flower")
    simulated(config, tmp_path / "simulated")
    folders = tmp_path / "flower", tmp_path / "simulated"
    flower, other = (lines(folder) for folder in folders)
    notes = [[line.pop("note", "") for line in some] for some in (flower, other)]
    assert flower == other
    assert all(note in longer for longer, note in zip(*notes, strict=True))
    assert any("rejections" in line for line in flower) == (strategy == "lesson")
    models = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert models[0] == models[1]


def test_killed_run_resumes_bit_identically(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Checkpoints after every round; killed among the messages of a later one. The server app itself resumes it."""
    config = VIRTUAL | {"set": f"{SET} run.checkpoint_every_s=0.001", "out": str(tmp_path / "flower")}
    grid = make(make_grid, config)
    kill_after(grid, CLIENTS + 6)  # each client is asked for its profile first
    with pytest.raises(KilledError):
        serve(grid, context(config), TASK)
    assert 1 <= len(lines(tmp_path / "flower")) < 5
    again = config | {"resume": True}
    make_server_app(TASK)(grid=make(make_grid, again), context=context(again))
    simulated(config, tmp_path / "simulated")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes()


def test_run_on_the_wall_clock(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The slow client is aggregated in at most every second round, so its updates are stale."""
    config = WALL | {"deadline": 0.15, "out": str(tmp_path)}
    grid = make(make_grid, config)
    grid.names[grid.node(1)] = "greenhouse"
    summary = serve(grid, context(config), TASK)
    rounds = lines(tmp_path)
    assert (summary["rounds"], len(rounds), summary["clock"]) == (7, 7, "wall")
    assert all(after["time_s"] - before["time_s"] > 0.15 - 1e-9 for before, after in pairwise(rounds))
    assert any(line["staleness"] for line in rounds)
    assert not any("rejected" in line for line in rounds)
    sent = sum(array.nbytes + 128 for array in initial_arrays(TASK, 0).values())  # each with its header
    assert {line["bytes_up"] / line["uploads"] for line in rounds if line["uploads"]} == {sent}
    rows = [row.split(",") for row in (tmp_path / "latencies.csv").read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "greenhouse", "2", "3"]
    assert all(float(row[1]) > 2 * slow_s for row, slow_s in zip(rows, SLOW_S, strict=True))
    found = read_recording(tmp_path / "flight.jsonl")
    assert [len(one.merged or ()) for one in found.rounds] == [len(line["merged"]) for line in rounds]
    assert (found.jobs.compute_s[found.jobs.outcome == ARRIVED] >= 2 * min(SLOW_S) - 0.001).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"strateg": "lesson"}, "did you mean 'strategy'"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"strategy": "leson"}, "did you mean 'lesson'"),
        ({"beta": "1"}, "beta must be a number"),
        ({"resume": 1}, "resume must be true or false"),
        ({"clock": "sundial"}, "unknown clock 'sundial'"),
        ({"deadline": "soon"}, "deadline must be"),
        ({"dataset": "minst"}, "minst"),
        ({"set": "fleet.latencies=fleet.csv"}, "latencies"),
        ({"set": "'open"}, "set must be"),
        ({"set": "faults.disconnect_before=0.1"}, "disconnect_before"),
        ({"strategy": "fedcs", "deadline": "inf"}, "deadline_s must be a finite number"),
        ({"min-nodes": 9}, "min-nodes is 9, but only 4 nodes are connected"),
    ],
)
def test_invalid_run_config_is_a_one_line_error(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("lesson.flower.server.WAIT_S", -1.0)
    config = WALL | {"out": str(tmp_path / "run")} | changed
    grid = make_grid(ClientApp(), CLIENTS)
    with pytest.raises(InputError, match=message) as caught:
        serve(grid, context(config), TASK)
    assert "\n" not in str(caught.value)
    assert grid.num_pushed == 0
    assert not (tmp_path / "run").exists()


def test_settings_of_a_run_config() -> None:
    assert check_config({}) == DEFAULTS
    deadlines = {"auto": None, 20: 20.0, "7.5": 7.5, "inf": math.inf}
    assert {given: deadline_of(check_config({"deadline": given})) for given in deadlines} == deadlines
    config = {"strategy": "fedbuff", "deadline": 15, "rounds": 4, "eval-every": 50, "beta": 2, "seed": 7}
    config |= {"set": "strategy.buffer_size=3 'strategy.concurrency=2' training.batch_size=5", "time-budget": 90}
    settings = settings_of(check_config(config), 6)
    run, data, strategy = settings.run, settings.data, settings.strategy
    assert (settings.fleet.num_clients, data.beta, settings.training.batch_size) == (6, 2.0, 5)
    assert (strategy.name, strategy.deadline_s) == ("fedbuff", 15.0)
    assert strategy.options == {"buffer_size": 3, "concurrency": 2}
    assert (run.rounds, run.eval_every_s, run.seed, run.device, run.time_budget_s) == (4, 50.0, 7, "cpu", 90.0)


def test_clients_import_nothing_that_a_server_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted.py").write_text("raise SystemExit('this code must not run')\n")
    with pytest.raises(InputError, match="unknown dataset 'planted:make_task'"):
        check_config(VIRTUAL | {"dataset": "planted:make_task"})
    check_config(VIRTUAL | {"strategy": "planted:Strategy"})
    assert "planted" not in sys.modules


def test_clients_evaluate_on_their_own_samples(make_grid: MakeGrid) -> None:
    """If all parameters are 0, all classes are equally likely and class 0 is predicted: the loss is ln 3."""
    zeros = ArrayRecord({name: Array(np.zeros_like(values)) for name, values in initial_arrays(TASK, 0).items()})
    grid, strategy = make(make_grid, VIRTUAL), LessonStrategy(1.0)
    messages = strategy.configure_evaluate(1, zeros, ConfigRecord(), grid)
    metrics = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert metrics is not None
    zero_share = float((TASK.train[1][np.concatenate(PARTS)] == 0).float().mean())
    assert dict(metrics) == pytest.approx({"loss": math.log(3), "accuracy": zero_share}, rel=1e-5)


MODEL = ArrayRecord([np.zeros(2)])
PROFILE = {"client": 0, "num-clients": 3, "num-examples": 20, "compute-s": 1.0, "busy-s": 3.0}


def answer_profile(message: Message, context: Context) -> Message:
    profile = PROFILE | {
        "client": context.node_config["partition-id"],
        "num-clients": context.node_config["num-partitions"],
    }
    return Message(RecordDict({"metrics": MetricRecord(profile)}), reply_to=message)


def test_invalid_profile_is_ignored() -> None:
    profiler = Profiler(MODEL)

    def read(**changed: Any) -> Profile | None:
        message = profiler.question(5)
        message.metadata.__dict__["_message_id"] = "1"
        reply = Message(RecordDict({"metrics": MetricRecord(PROFILE | changed)}), reply_to=message)
        return profiler.read(5, reply, took_s=7.0)

    assert read() == Profile(5, 0, 3, 20, compute_s=1.0, upload_s=4.0)
    for name, value in {"client": 3, "num-clients": 10**15, "num-examples": 0, "busy-s": math.inf}.items():
        assert read(**{name: value}) is None
    assert read(**{"compute-s": -1.0}) is read(**{"compute-s": 4.0}) is None, "longer than the client was busy"


@pytest.fixture
def three(make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    """Nodes 1000, 1007 and 1014, registered in this order, which answer profile requests."""
    monkeypatch.setattr("lesson.flower.server.WAIT_S", -1.0)
    monkeypatch.setattr("lesson.flower.profile.POLL_S", 0.002)
    grid = make_grid(ClientApp(), 3)
    grid.handle = answer_profile
    return grid


def find(grid: LocalGrid, min_nodes: int = 2, everybody: bool = False) -> dict[int, int]:
    profiles = find_clients(grid, Profiler(MODEL, patience_s=5.0), min_nodes, everybody=everybody)
    return {client: profile.node for client, profile in profiles.items()}


@pytest.mark.parametrize("later", [1014, 1000])
def test_first_registered_node_keeps_its_partition(three: LocalGrid, later: int) -> None:
    """Whatever its id, which is drawn when a node registers: a hostile one could register until it has the smallest."""
    three.nodes[later].node_config["partition-id"] = 1
    three.registered[later] = "later"
    assert find(three)[1] == 1007


def test_error_for_too_few_usable_nodes_says_why(three: LocalGrid) -> None:
    three.intercept(fail, partition=0)
    assert find(three) == {1: 1007, 2: 1014}
    with pytest.raises(InputError, match="min-nodes is 3, but only 2 of 3 nodes are usable: node 1000"):
        find(three, 3)
    with pytest.raises(InputError, match="1 did not: node 1000"):
        find(three, everybody=True)


def test_node_that_reports_another_number_of_partitions_is_left_out(three: LocalGrid) -> None:
    three.nodes[1000].node_config["num-partitions"] = 999
    assert find(three) == {1: 1007, 2: 1014}


def test_default_clock_depends_on_the_nodes(three: LocalGrid) -> None:
    assert (clock_of("auto", three, 1.0), clock_of("virtual", three, 1.0)) == ("wall", "virtual")
    three.simulated = True
    assert (clock_of("auto", three, 1.0), clock_of("wall", three, 1.0)) == ("virtual", "wall")
    three.offline |= set(three.nodes)
    with pytest.raises(InputError, match="only 0 nodes are connected"):
        clock_of("auto", three, 0.01)
