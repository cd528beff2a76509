"""RecordingGrid around an app with Flower's own FedAvg: the recording agrees with what the clients did."""

import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from local_processes import wait
from torch import nn

from helpers.code_blocks import ROOT, blocks
from helpers.local_grid import LocalGrid, MakeGrid, keep_silent
from lesson.core.errors import InputError
from lesson.flight.recording import ARRIVED, FAILED, OPEN, Recording, read_recording
from lesson.flower import Recorder, RecordingGrid, report_times
from lesson.flower.exchanges import Moment
from lesson.flower.times import BEGAN, COMPUTE_S, ENDED, TIMES

NUM_SAMPLES = [10, 20, 30]
Train = Callable[[int, list[np.ndarray]], list[np.ndarray]]
"""Maps client and arrays to the trained arrays."""


def client_app(
    train: Train = lambda client, arrays: [array / 3 + client for array in arrays], mods: Iterable[Any] = ()
) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        trained = train(client, message.content["arrays"].to_numpy_ndarrays())
        metrics = MetricRecord({"num-examples": NUM_SAMPLES[client % 3], "loss": client / 7, "energy-j": 2.5})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 7, "loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def start(grid: Grid, num_rounds: int = 1, timeout: float = 60.0, fraction_evaluate: float = 0.0) -> Result:
    random.seed(0)  # Flower draws the order of nodes
    least = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), 1)
    strategy = FedAvg(fraction_evaluate=fraction_evaluate, **least)  # type: ignore[arg-type]
    arrays = ArrayRecord([np.array([1.0, 2.0]), np.array([0.1])])
    return strategy.start(grid, arrays, num_rounds, timeout, train_config=ConfigRecord({"lr": 0.1}))


def recording(grid: LocalGrid, path: Path, **options: Any) -> RecordingGrid:
    return RecordingGrid(grid, Recorder(path, **options), poll_s=0.002)


def lines(path: Path, *events: str) -> list[dict[str, Any]]:
    """Return the events of a recording, or some kinds of them."""
    found = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [line for line in found if not events or line["event"] in events]


def jobs_of(found: Recording) -> list[tuple[str, int, int]]:
    """Return client, round and outcome of each job, sorted by round and client."""
    jobs = found.jobs
    rows = zip(jobs.client.tolist(), jobs.round.tolist(), jobs.outcome.tolist(), strict=True)
    return sorted(((found.names[client], *rest) for client, *rest in rows), key=lambda row: row[1::-1])


def names(grid: LocalGrid) -> list[str]:
    return [str(grid.node(partition)) for partition in range(len(grid.nodes))]


def message_to(node: int, kind: str = "train", **metadata: Any) -> Message:
    content = {"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"server-round": 4})}
    return Message(RecordDict(content), node, kind, **metadata)


def test_fedavg_is_recorded(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid, path = make_grid(client_app(), 3), tmp_path / "new" / "flight.jsonl"
    start(recording(grid, path, strategy="FedAvg"), num_rounds=2, fraction_evaluate=1.0)
    found, who = read_recording(path), names(grid)
    assert (found.header.strategy, found.header.deadline_s, found.names) == ("FedAvg", None, tuple(who))
    assert ", flwr 1." in found.header.source
    assert jobs_of(found) == [(name, round, ARRIVED) for round in (1, 2) for name in who]
    assert [NUM_SAMPLES[client] for client in found.jobs.client] == found.jobs.num_samples.tolist()
    assert set(found.jobs.energy_j.tolist()) == {2.5}
    assert [(one.round, sorted(one.merged or ())) for one in found.rounds] == [(1, [0, 1, 2]), (2, [0, 1, 2])]
    assert [(client, end_s) for client, _, end_s in found.intervals] == [(0, np.inf), (1, np.inf), (2, np.inf)]
    assert np.isnan(found.jobs.compute_s).all(), "nobody reports times"
    size = sum(len(Array(values).data) for values in (np.zeros(2), np.zeros(1)))
    asked = {line["job"]: line.get("kind", "train") for line in lines(path, "asked")}
    assert list(asked.values()) == 2 * (3 * ["train"] + 3 * ["evaluate"])
    assert {line["bytes"] for line in lines(path, "asked")} == {size}
    arrived = {(asked[line["job"]], line["bytes"]) for line in lines(path, "arrived")}
    assert arrived == {("train", size), ("evaluate", 0)}


def test_recording_does_not_change_the_model(make_grid: MakeGrid, tmp_path: Path) -> None:
    """But for rounding, as replies come in another order. The strategy does not see the times that are recorded."""
    expected = start(make_grid(client_app(), 3), num_rounds=3)
    found = start(recording(make_grid(client_app(mods=[report_times]), 3), tmp_path / "f"), num_rounds=3)
    for ours, theirs in zip(found.arrays.values(), expected.arrays.values(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12)
    assert found.train_metrics_clientapp[3].keys() == expected.train_metrics_clientapp[3].keys()
    jobs = read_recording(tmp_path / "f").jobs
    assert np.isfinite(jobs.compute_s).all()


def test_clients_with_and_without_times_are_averaged_together(make_grid: MakeGrid) -> None:
    """Without a recording, too: the times are no metrics."""
    grid = make_grid(client_app(), 3)
    grid.intercept(client_app(mods=[report_times]), partition=0)
    assert set(start(grid).train_metrics_clientapp[1]) == {"loss", "energy-j"}


def test_replies_are_recorded_in_the_order_of_their_arrival(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Each client waits for the reply of the one before it to be recorded."""
    path = tmp_path / "flight.jsonl"

    def train(client: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        wait("the reply before this one", 60, lambda: path.read_text().count('"arrived"') >= 2 - client)
        return arrays

    grid = make_grid(client_app(train), 3)
    start(recording(grid, path))
    found = read_recording(path)
    assert found.jobs.client[np.argsort(found.jobs.ended_s, kind="stable")].tolist() == [2, 1, 0]
    assert found.rounds[0].merged == (2, 1, 0)


def test_clients_that_fail_or_never_reply(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Client 1 fails with a text of two lines, and client 2 is silent until the timeout."""
    grid, path = make_grid(client_app(), 3), tmp_path / "f"
    grid.intercept(lambda message, _: Message(Error(2, "first\nno space\x07"), reply_to=message), partition=1)
    grid.intercept(keep_silent, partition=2)
    start(recording(grid, path), timeout=2.0)
    found = read_recording(path)
    assert [outcome for *_, outcome in jobs_of(found)] == [ARRIVED, FAILED, FAILED]
    assert set(found.jobs.reason) == {"", "code 2: no space\\x07", "no reply within 2 s"}
    assert found.rounds[0].merged == (0,)


def test_nodes_that_connect_and_leave(make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device registers again as node 1007 when node 1000 has left; node 1014, which has the same name, connects while
    it is there. Node 1000 leaves during training, and the round waits until this is recorded."""
    monkeypatch.setattr("lesson.flower.recorder.LOOK_EVERY_S", 0.0)
    grid, path = make_grid(client_app(), 3), tmp_path / "f"
    grid.names = dict.fromkeys(grid.nodes, "phone")

    def leave(message: Message, context: Context) -> Message:
        grid.offline = {1000, 1014}
        wait("the recording", 60, lambda: bool(lines(path, "left")))
        return client_app()(message, context)

    grid.intercept(leave, partition=0)
    grid.offline = {1007, 1014}
    recorded = recording(grid, path)
    start(recorded)
    start(recorded)
    grid.offline = {1000}
    start(recorded)
    events = [(line["event"], line.get("client")) for line in lines(path, "connected", "left", "round")]
    assert events[:3] == [("connected", "phone"), ("left", "phone"), ("connected", "phone")]
    assert events[3:] == [("round", None), ("round", None), ("connected", "phone (1014)"), ("round", None)]


def test_unsent_message_is_recorded_as_failed(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Nobody waits for its reply: without a timeout, that would last forever."""
    grid = make_grid(client_app(), 2)
    grid.offline = {1007}
    recorded = recording(grid, tmp_path / "f")
    ids = recorded.push_messages([message_to(node, "train.local") for node in grid.nodes])
    assert sorted(map(bool, ids)) == [False, True]
    found = read_recording(tmp_path / "f")
    assert jobs_of(found) == [("1000", 4, OPEN), ("1007", 4, FAILED)]
    assert any(reason.startswith("not sent") for reason in found.jobs.reason)
    assert len(recorded.send_and_receive([message_to(node) for node in grid.nodes])) == 1


def test_undecodable_reply_is_recorded_as_failed(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The round of a message is that of its group, if it has one."""
    grid = make_grid(client_app(), 1)
    recorded = recording(grid, tmp_path / "f")
    ids = recorded.push_messages([message_to(1000, group_id="7")])

    def pull_messages(_: Any) -> list[Message]:
        raise ValueError("bytes of somebody else")

    grid.pull_messages = pull_messages  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="somebody else"):
        recorded.pull_messages(ids)
    found = read_recording(tmp_path / "f")
    assert (found.jobs.reason.tolist(), found.jobs.round.tolist()) == (["unreadable reply: ValueError"], [7])


@pytest.mark.parametrize("content", ["", "notes\n"])
def test_recording_that_cannot_be_written_does_not_affect_the_run(
    make_grid: MakeGrid,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:
    """The disk is full after the first round, or the file is no recording."""
    path, grid = tmp_path / "f", make_grid(client_app(mods=[report_times]), 2)
    path.write_text(content)
    recorded = recording(grid, path)
    start(recorded)
    before = path.read_text()
    with monkeypatch.context() as full:
        full.setattr("lesson.flight.writer.os.write", lambda *_: 0)
        start(recorded)
    assert start(recorded).train_metrics_clientapp.keys() == {1}
    assert path.read_text() == before
    assert (before == "notes\n") == (content == "notes\n")
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and str(path) in record.message]
    assert ["has stopped, but the run continues" in record.message for record in warnings] == [True]


def test_other_calls_are_passed_to_the_grid(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 2)
    recorded = recording(grid, tmp_path / "f")
    assert (recorded.run, recorded.num_pushed, recorded.send_and_receive([])) == (None, 0, [])
    assert recorded.get_node_ids() == [node.node_id for node in recorded.get_nodes()] == grid.get_node_ids()
    with pytest.raises(InputError, match="grid must"):
        RecordingGrid("grid", tmp_path / "f")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="poll_s must"):
        RecordingGrid(grid, tmp_path / "f", poll_s=0)


def test_recording_is_continued_by_the_next_process(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 2)
    for _ in range(2):
        start(recording(grid, tmp_path / "f", deadline_s=4.0))
    found = read_recording(tmp_path / "f")
    assert (len(found.jobs), len(found.resumed_s), found.header.deadline_s) == (4, 1, 4.0)
    assert len(lines(tmp_path / "f", "connected")) == 4


def test_rounds_of_a_loop_are_recorded_with_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that ended 3 s ago, at 20 s, has ended at 17 s."""
    now_s = [100.0]
    monkeypatch.setattr("lesson.flower.exchanges.time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    recorder = Recorder(tmp_path / "f", "lesson", float("inf"))
    message = message_to(1000)
    message.metadata.__dict__["_message_id"] = "1"
    recorder.note_asked([message], ["1"], Moment(100.0, 0.0))
    now_s[0] = 120.0
    recorder.note_round(1, 3.0, [1007, 1000], [2, 0])
    recorder.note_round(2, 1.0, None, None)
    found = read_recording(tmp_path / "f")
    assert (found.header.strategy, found.header.deadline_s) == ("lesson", None)
    assert [(one.round, one.end_s) for one in found.rounds] == [(1, 17.0), (2, 19.0)]
    assert [(one.merged, one.staleness) for one in found.rounds] == [((1, 0), (2, 0)), (None, None)]


def test_documented_app_is_recorded(make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server app and the client app of docs/reference/recordings.md, and the line in docs/how-to/flower.md."""
    monkeypatch.chdir(tmp_path)
    server, client = [
        block.text for block in blocks(ROOT / "docs" / "reference" / "recordings.md") if block.kind == "python"
    ]
    names: dict[str, Any] = {"Net": lambda: nn.Linear(2, 1)}
    exec(client, names)
    app, plain = names["app"], client_app(lambda _, arrays: arrays)
    app.train()(lambda message, context: plain(message, context))
    app.evaluate()(lambda message, context: plain(message, context))
    (line,) = [block.text for block in blocks(ROOT / "docs" / "how-to" / "flower.md") if "RecordingGrid(" in block.text]
    assert all(part in server for part in line.strip().split("  # "))
    exec(server.replace("num_rounds=20", "num_rounds=2"), names)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    names["app"](make_grid(app, 2), context)
    found = read_recording("flight.jsonl")
    assert ([one.round for one in found.rounds], len(found.jobs)) == ([1, 2], 4)
    assert np.isfinite(found.jobs.compute_s).all()


TIME_FIELDS, NUMBER_FIELDS = {"compute_s", "downloaded_s", "trained_s"}, {"num_samples", "energy_j"}
WRONG: list[tuple[dict[str, Any], set[str]]] = [
    ({BEGAN: 0.0, ENDED: 1.0}, {"downloaded_s", "trained_s"}),  # the client's clock is wrong
    ({COMPUTE_S: 1e6}, {"compute_s"}),  # longer than the job took
    ({COMPUTE_S: -1.0}, {"compute_s"}),
    ({COMPUTE_S: float("nan")}, TIME_FIELDS),
    ({BEGAN: "yesterday"}, TIME_FIELDS),
    ({"num-examples": -3}, {"num_samples"}),
    ({"num-examples": 0.5}, {"num_samples"}),
    ({"energy-j": -1.0}, {"energy_j"}),
]


def test_invalid_times_and_numbers_are_left_out(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Each client reports a different one."""
    app, path = client_app(mods=[report_times]), tmp_path / "f"
    grid = make_grid(app, len(WRONG))

    def handle(message: Message, context: Context) -> Message:
        reply, (changed, _) = app(message, context), WRONG[int(context.node_config["partition-id"])]
        name = TIMES if changed.keys() <= {BEGAN, ENDED, COMPUTE_S} else "metrics"
        reply.content[name] = type(reply.content[name])({**reply.content[name], **changed})
        return reply

    grid.handle = handle
    recording(grid, path).send_and_receive([message_to(node) for node in grid.nodes])
    arrived = {line["client"]: line.keys() for line in lines(path, "arrived")}
    missing = [(TIME_FIELDS | NUMBER_FIELDS) - arrived[name] for name in names(grid)]
    assert missing == [fields for _, fields in WRONG]


def test_error_of_a_client_has_no_times(make_grid: MakeGrid, tmp_path: Path) -> None:
    message = message_to(1000)
    message.metadata.__dict__["_message_id"] = "1"
    error = Message(Error(2, "no"), reply_to=message)
    context = make_grid(client_app(), 1).nodes[1000]
    assert report_times(message, context, lambda *_: error) is error
    assert error.has_error()
