"""A run on real clients in a folder, on the wall: what is asked first, what is written, how it resumes."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import MakeGrid
from lesson import InputError
from lesson.core.errors import RunStoppedError
from lesson.flight.recording import ARRIVED, FAILED, RESTARTED, read_recording
from lesson.flower import make_client_app, serve
from lesson.flower.config import check_config, settings_of
from lesson.flower.profile import TYPE, Profiler
from lesson.flower.server import find_clients, make_run, make_workload_and_fleet
from lesson.learn.remote import initial_arrays
from lesson.learn.task import Task
from lesson.learn.tasks import load_task

pytestmark = pytest.mark.usefixtures("few_images")

CONFIG: dict[str, Any] = {
    "clock": "wall",
    "deadline": 0.3,
    "rounds": 8,
    "eval-every": 1e9,
    "set": "training.batch_size=4",
}
SLOW_S = [0.05, 0.1, 0.5]
"""What clients sleep: tiers 1, 1 and 2 at a deadline of 0.3 s."""


def context(config: dict[str, Any]) -> Context:
    return Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def slow_grid(make_grid: MakeGrid, config: dict[str, Any]) -> Any:
    grid = make_grid(make_client_app(), len(SLOW_S), config)
    for node in grid.nodes.values():
        node.node_config["slow-s"] = SLOW_S[int(node.node_config["partition-id"])]
    return grid


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_on_the_wall(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Eight rounds of 0.3 s; the slow client is merged in at most every second one, so that it is stale."""
    config = CONFIG | {"out": str(tmp_path / "run")}
    summary = serve(slow_grid(make_grid, config), context(config))
    told = lines(tmp_path / "run")
    assert summary["rounds"] == len(told) == 8
    times = [0.0, *(line["time_s"] for line in told)]
    assert all(after - before > 0.3 - 1e-9 for before, after in pairwise(times)), (
        "no round is shorter than it should be"
    )
    assert any(line["staleness"] for line in told)
    assert not any("rejected" in line for line in told)
    sent = sum(array.nbytes + 128 for array in initial_arrays(load_task("mnist"), 0).values())  # each with its header
    assert {line["bytes_up"] / line["uploads"] for line in told if line["uploads"]} == {sent}, (
        "not the size in the settings"
    )
    assert told[0]["bytes_down"] == 3 * sent
    assert {line["energy_j"] for line in told} == {None}, "nobody has measured it"
    page = (tmp_path / "run" / "report.html").read_text()
    assert '"command":""' in page, "real clients do not come twice"
    assert summary["clock"] == "wall"
    assert '"time":"elapsed time"' in page
    assert f"8 rounds in {summary['time_s']:.0f} seconds of elapsed time" in page
    latencies = (tmp_path / "run" / "latencies.csv").read_text().splitlines()
    assert latencies[0] == "client,latency_s,compute_s,upload_s,num_samples"
    for row, slow_s in zip(latencies[1:], SLOW_S, strict=True):
        assert slow_s < float(row.split(",")[1])
    check_recording(tmp_path / "run", told)


def check_recording(out: Path, told: list[dict[str, Any]]) -> None:
    """The recording has the rounds and uploads of the metrics, and the times that clients report."""
    found = read_recording(out / "flight.jsonl")
    clients = {str(1000 + 7 * client): client for client in range(len(SLOW_S))}
    assert (found.header.strategy, found.header.deadline_s) == ("lesson", 0.3)
    merged = [[clients[found.names[client]] for client in one.merged or ()] for one in found.rounds]
    assert merged == [line["merged"] for line in told]
    assert [list(one.staleness or ()) for one in found.rounds] == [line["merged_staleness"] for line in told]
    jobs = found.jobs
    arrived = jobs.outcome == ARRIVED
    early = np.count_nonzero(arrived) - sum(line["uploads"] for line in told)
    assert 0 <= early <= len(SLOW_S), "only updates that still wait at the server are not in the metrics"
    assert not (jobs.outcome == FAILED).any()
    assert (jobs.num_samples[arrived] > 0).all()
    slow_s = np.array([SLOW_S[clients[found.names[client]]] for client in jobs.client.tolist()])
    assert (jobs.compute_s[arrived] >= slow_s[arrived] - 0.001).all(), "they sleep that long"


def test_a_killed_run_on_the_wall_clock_resumes(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Killed in round 2, while the slow client is training: its update is given up, and time continues from the
    checkpoint."""
    config = CONFIG | {"out": str(tmp_path), "set": f"{CONFIG['set']} run.checkpoint_every_s=0.001"}
    grid = slow_grid(make_grid, config)
    kill_after(grid, 3 * len(SLOW_S))  # two questions and the first model for each
    with pytest.raises(KilledError):
        serve(grid, context(config))
    begun = lines(tmp_path)
    assert 1 <= len(begun) < 8  # more than one if no update arrived in round 1, so that nobody started in round 2
    config |= {"resume": True}
    summary = serve(slow_grid(make_grid, config), context(config))
    told = lines(tmp_path)
    assert summary["rounds"] == len(told) == 8
    assert told[: len(begun)] == begun
    assert 2 in told[len(begun)]["rejections"]["server restarted"]
    times = [line["time_s"] for line in told]
    assert times == sorted(times)
    found = read_recording(tmp_path / "flight.jsonl")
    assert len(found.resumed_s) == 1
    assert [one.round for one in found.rounds] == list(range(1, 9))
    assert RESTARTED in found.jobs.reason


def test_more_rounds_on_resume(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Three rounds, finished, then five: the first three lines are kept. Messages name what a Flower user types."""
    config = CONFIG | {"out": str(tmp_path), "rounds": 3}
    serve(slow_grid(make_grid, config), context(config))
    begun = lines(tmp_path)
    config |= {"rounds": 5}
    with pytest.raises(InputError, match=r"holds a run of 3 rounds; set resume=true to continue it, or choose another"):
        serve(slow_grid(make_grid, config), context(config))
    with pytest.raises(InputError, match=r"\(run.rounds = 3 there, 2 here\); choose another out"):
        serve(slow_grid(make_grid, config), context(config | {"rounds": 2, "resume": True}))
    config |= {"resume": True}
    assert serve(slow_grid(make_grid, config), context(config))["rounds"] == 5
    assert lines(tmp_path)[:3] == begun
    assert len(lines(tmp_path)) == 5


def test_clients_that_all_fail_end_the_run_with_an_error(make_grid: MakeGrid, tmp_path: Path) -> None:
    """They answer profile requests, but cannot train. Ten rounds later, the run fails, and can be resumed."""
    config = CONFIG | {"out": str(tmp_path), "rounds": 99, "deadline": 0.05}
    grid = slow_grid(make_grid, config)
    answer = grid.handle

    def handle(message: Message, context: Context) -> Message | None:
        if message.metadata.message_type == "train":
            raise RuntimeError("no space left")
        return answer(message, context)

    grid.handle = handle
    with pytest.raises(RunStoppedError) as caught:
        serve(grid, context(config))
    assert str(caught.value).startswith("no update was aggregated in 10 rounds: ")
    assert "client error (code 2: <class 'RuntimeError'>:<'no space left'>)" in str(caught.value)
    assert str(caught.value).endswith("start the run again with resume=true")
    assert not (tmp_path / "summary.json").exists()


def test_registered_names_are_in_the_log_and_in_files(
    make_grid: MakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG | {"out": str(tmp_path), "rounds": 2}
    grid = slow_grid(make_grid, config)
    grid.names[1007] = "greenhouse"
    serve(grid, context(config))
    assert json.loads((tmp_path / "clients.json").read_text())["clients"]["name"] == [0, "greenhouse", 2]
    assert (tmp_path / "latencies.csv").read_text().splitlines()[2].startswith("greenhouse,")
    assert any(line.startswith("client greenhouse: ") for line in caplog.messages)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"set": "server.optimizer=adamant"},
            "[server] optimizer must be 'none', 'momentum', 'adagrad', 'adam', 'yogi' or 'amsgrad', got",
        ),
        ({"set": "strategy.lateness=1"}, "[strategy] unknown setting 'lateness' for lesson"),
        ({"strategy": "fedcs", "deadline": "inf"}, "[strategy] deadline_s must be finite for fedcs, got inf"),
        ({"min-nodes": 9}, "min-nodes is 9, but only 3 nodes are connected"),
    ],
)
def test_what_is_wrong_is_told_before_anybody_is_asked(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("lesson.flower.server.WAIT_S", -1.0)
    config = CONFIG | {"out": str(tmp_path / "run")} | changed
    grid = slow_grid(make_grid, config)
    with pytest.raises(InputError) as caught:
        serve(grid, context(config))
    assert str(caught.value).startswith(message)
    assert grid.num_pushed == 0
    assert not (tmp_path / "run").exists()


def ask(
    grid: Any, caplog: pytest.LogCaptureFixture, min_nodes: int = 2, everybody: bool = False
) -> tuple[dict[int, int], list[str]]:
    """The node of each client that takes part, and what was logged of nodes that do not."""
    model = ArrayRecord({name: Array(values) for name, values in initial_arrays(load_task("mnist"), 0).items()})
    with caplog.at_level("INFO", logger="flwr"):
        profiles = find_clients(grid, Profiler(model), min_nodes, everybody=everybody)
    return {client: profile.node for client, profile in profiles.items()}, left_out(caplog)


def left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "ignoring node" in record.getMessage()]


def test_node_that_claims_a_partition_of_another_is_left_out(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 1014 registers last and claims partition 0, which node 1000 has."""
    grid = slow_grid(make_grid, CONFIG)
    grid.nodes[1014].node_config["partition-id"] = 0
    grid.registered[1014] = "later"
    nodes, told = ask(grid, caplog)
    assert nodes == {0: 1000, 1: 1007}
    assert told == ["ignoring node 1014: it claims partition 0, which node 1000 has"]


def test_the_node_registered_first_keeps_its_partition_whatever_its_id(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids are drawn when a node registers: a hostile one could register until it has the smallest."""
    grid = slow_grid(make_grid, CONFIG)
    grid.nodes[1000].node_config["partition-id"] = 2
    grid.registered[1000] = "later"
    nodes, told = ask(grid, caplog)
    assert nodes == {1: 1007, 2: 1014}
    assert told == ["ignoring node 1000: it claims partition 2, which node 1014 has"]


def test_node_that_reports_another_number_of_partitions_is_left_out(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    grid = slow_grid(make_grid, CONFIG)
    grid.nodes[1000].node_config["num-partitions"] = 999_999
    answer = grid.handle

    def handle(message: Message, context: Context) -> Message | None:
        if context.node_id != 1000:
            return answer(message, context)
        told = {"client": 0, "num-clients": 999_999, "num-examples": 30, "compute-s": 1.0, "busy-s": 3.0}
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    grid.handle = handle
    nodes, told = ask(grid, caplog)
    assert nodes == {1: 1007, 2: 1014}
    assert told == ["ignoring node 1000: it reports 999999 partitions, most nodes report 3"]


def test_too_few_usable_nodes_are_an_error_that_says_why(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three claim partition 1: one of them may have it, which is fewer than min-nodes."""
    monkeypatch.setattr("lesson.flower.server.WAIT_S", -1.0)
    grid = slow_grid(make_grid, CONFIG)
    for node in grid.nodes.values():
        node.node_config["partition-id"] = 1
    with pytest.raises(InputError, match="min-nodes is 2, but only 1 of 3 nodes are usable") as caught:
        ask(grid, caplog)
    assert "node 1007 claims partition 1, which node 1000 has" in str(caught.value)
    assert str(caught.value).endswith("see the log of the clients and --node-config")


def test_a_node_that_is_left_out_does_not_end_the_wait_for_others(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes must be usable; when the third comes, they are. The one left out is named once."""
    grid = slow_grid(make_grid, CONFIG)
    grid.nodes[1007].node_config["partition-id"] = 0
    grid.registered[1007] = "later"
    grid.offline.add(1014)
    monkeypatch.setattr(
        "lesson.flower.server.time.sleep", lambda seconds: grid.offline.clear() if seconds > 1 else None
    )
    nodes, told = ask(grid, caplog)
    assert nodes == {0: 1000, 2: 1014}
    assert told == ["ignoring node 1007: it claims partition 0, which node 1000 has"]


def test_on_the_virtual_clock_everybody_must_answer(make_grid: MakeGrid, tmp_path: Path) -> None:
    config = CONFIG | {"out": str(tmp_path / "run"), "clock": "virtual"}
    grid = slow_grid(make_grid, config)
    answer, silent = grid.handle, max(grid.nodes)

    def handle(message: Message, context: Context) -> Message | None:
        if message.metadata.message_type == TYPE and context.node_id == silent:
            raise RuntimeError("no")
        return answer(message, context)

    grid.handle = handle
    with pytest.raises(InputError, match="on the virtual clock, every node must answer; 1 did not"):
        serve(grid, context(config))


def test_a_deadline_found_once_is_kept(make_grid: MakeGrid, tmp_path: Path) -> None:
    """`auto` proposes one from what clients take; a resumed run has the deadline it began with."""
    config = CONFIG | {"out": str(tmp_path), "deadline": "auto", "rounds": 2}
    serve(slow_grid(make_grid, config), context(config))
    begun = (tmp_path / "config.toml").read_text()
    (deadline_s,) = (float(line.split("=")[1]) for line in begun.splitlines() if line.startswith("deadline_s"))
    assert deadline_s > 1.1 * SLOW_S[0]
    assert serve(slow_grid(make_grid, config), context(config))["rounds"] == 2, "one that has ended is not run again"


def test_a_client_that_may_join_later_is_weighted_by_its_samples(make_grid: MakeGrid, few_task: Task) -> None:
    """Of three clients only 1 is there; the others are infinitely far, but what they hold is known."""
    config = CONFIG | {"set": f"{CONFIG['set']} training.weighting=samples data.split=iid"}
    grid = slow_grid(make_grid, config)
    grid.offline |= {node for node, there in grid.nodes.items() if there.node_config["partition-id"] != 1}
    model = ArrayRecord({name: Array(values) for name, values in initial_arrays(load_task("mnist"), 0).items()})
    profiler = Profiler(model)
    profiles = find_clients(grid, profiler, 1, everybody=False)
    settings = settings_of(check_config(config), 3)
    parts = make_workload_and_fleet(settings, few_task, "wall", profiles)
    run = make_run(settings, grid, "wall", profiles, profiler, *parts)
    run.close()
    assert run.loop.fleet.reachable.tolist() == [False, True, False]
    assert run.loop.fleet.client_weight.tolist() == [200.0, 200.0, 200.0]
