"""RecordingGrid around an app with Flower's own FedAvg: the recording agrees with what the clients did."""

import json
import logging
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
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import nn

from helpers.code_blocks import ROOT, blocks
from helpers.local_grid import LocalGrid, MakeGrid
from lesson.core.errors import InputError
from lesson.flight.recording import ARRIVED, FAILED, OPEN, Recording, read_recording
from lesson.flower import LessonStrategy, RecordingGrid, report_times
from lesson.flower.exchanges import Moment
from lesson.flower.identity import names_of
from lesson.flower.recorder import record_run
from lesson.flower.times import BEGAN, COMPUTE_S, ENDED, TIMES

NUM_SAMPLES = [10, 20, 30]
Train = Callable[[int, int, list[np.ndarray]], list[np.ndarray]]
"""Maps client, round and arrays to the trained arrays."""


def add_client(client: int, round: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [array / 3 + client + round for array in arrays]


def client_app(train: Train = add_client, mods: Iterable[Any] = (), metrics: dict[str, Any] | None = None) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_numpy_ndarrays()
        trained = train(client, int(message.content["config"]["server-round"]), arrays)
        told = MetricRecord({"num-examples": NUM_SAMPLES[client], "loss": client / 7, **(metrics or {})})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": told}), reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        told = MetricRecord({"num-examples": NUM_SAMPLES[client], "loss": 1.0})
        return Message(RecordDict({"metrics": told}), reply_to=message)

    return app


def start(
    grid: Grid, num_rounds: int = 2, timeout: float = 60.0, fraction_evaluate: float = 0.0, min_nodes: int = 1
) -> Result:
    random.seed(0)  # Flower draws the order of nodes
    strategy = FedAvg(
        fraction_evaluate=fraction_evaluate,
        min_train_nodes=min_nodes,
        min_evaluate_nodes=1,
        min_available_nodes=min_nodes,
    )
    arrays = ArrayRecord([np.array([1.0, 2.0]), np.array([0.1])])
    return strategy.start(
        grid=grid, initial_arrays=arrays, num_rounds=num_rounds, timeout=timeout, train_config=ConfigRecord({"lr": 0.1})
    )


def recording(grid: LocalGrid, path: Path, **options: Any) -> RecordingGrid:
    return RecordingGrid(grid, path, poll_s=0.002, **options)


def lines(path: Path) -> list[dict[str, Any]]:
    """The events of a recording, without the header."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def jobs_of(found: Recording) -> list[tuple[str, int, int]]:
    """Client, round and outcome of each job, by round and client."""
    jobs = found.jobs
    rows = zip(jobs.client.tolist(), jobs.round.tolist(), jobs.outcome.tolist(), strict=True)
    return sorted(
        ((found.names[client], round, outcome) for client, round, outcome in rows), key=lambda row: row[1::-1]
    )


def names(grid: LocalGrid) -> list[str]:
    """Names of the clients, by partition."""
    by_partition = sorted(grid.nodes, key=lambda node: int(grid.nodes[node].node_config["partition-id"]))
    return [str(node) for node in by_partition]


def test_fedavg_is_recorded(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid, path = make_grid(client_app(metrics={"energy-j": 2.5}), 3), tmp_path / "new" / "flight.jsonl"
    start(recording(grid, path, strategy="FedAvg"), num_rounds=2, fraction_evaluate=1.0)
    found = read_recording(path)
    who = names(grid)
    assert (found.header.strategy, found.header.deadline_s) == ("FedAvg", None)
    assert found.header.source.startswith("lesson ")
    assert ", flwr 1." in found.header.source
    assert found.names == tuple(sorted(who))
    assert jobs_of(found) == [(name, round, ARRIVED) for round in (1, 2) for name in sorted(who)]
    samples = dict(zip(who, NUM_SAMPLES, strict=True))
    assert [samples[found.names[client]] for client in found.jobs.client] == found.jobs.num_samples.tolist()
    assert set(found.jobs.energy_j.tolist()) == {2.5}
    assert [one.round for one in found.rounds] == [1, 2]
    assert [sorted(one.merged or ()) for one in found.rounds] == [[0, 1, 2]] * 2
    assert [one[0] for one in found.intervals] == [0, 1, 2]
    assert {one[2] for one in found.intervals} == {np.inf}
    assert np.isnan(found.jobs.compute_s).all(), "nobody reports times"


def test_the_lines_say_what_was_sent_and_what_arrived(make_grid: MakeGrid, tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    start(recording(make_grid(client_app(), 2), path), num_rounds=1, fraction_evaluate=1.0)
    told = lines(path)
    size = sum(len(Array(values).data) for values in (np.zeros(2), np.zeros(1)))
    asked = [line for line in told if line["event"] == "asked"]
    assert [line.get("kind", "train") for line in asked] == ["train", "train", "evaluate", "evaluate"]
    assert {line["bytes"] for line in asked} == {size}
    assert {line["round"] for line in asked} == {1}
    kinds = {line["job"]: line.get("kind", "train") for line in asked}
    arrived = [(kinds[line["job"]], line["bytes"]) for line in told if line["event"] == "arrived"]
    assert arrived == [("train", size)] * 2 + [("evaluate", 0)] * 2
    assert [line["event"] for line in told] == [
        *("connected", "connected"),
        *("asked", "asked", "arrived", "arrived", "round"),
        *("asked", "asked", "arrived", "arrived"),
    ]
    fields = {name for line in told for name in line}
    assert fields <= {"event", "t_s", "client", "job", "kind", "round", "bytes", "num_samples", "merged"}


class InOrder(LocalGrid):
    """Delivers replies in the order of the requests, so that sums are added up in the same order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._order: list[str] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = super().push_messages(messages)
        self._order += ids
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        return super().pull_messages([next(number for number in self._order if number in wanted)])


def test_the_model_is_the_same_with_and_without_a_recording(tmp_path: Path) -> None:
    plain, recorded = InOrder(client_app(), 3), InOrder(client_app(mods=[report_times]), 3)
    try:
        expected = start(plain, num_rounds=3)
        found = start(recording(recorded, tmp_path / "flight.jsonl"), num_rounds=3)
    finally:
        plain.close()
        recorded.close()
    for ours, theirs in zip(found.arrays.values(), expected.arrays.values(), strict=True):
        assert ours.data == theirs.data
    assert found.train_metrics_clientapp == expected.train_metrics_clientapp


def test_replies_are_recorded_in_the_order_of_their_arrival(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Each client waits for the reply of the one before it to be recorded."""
    path = tmp_path / "flight.jsonl"

    def train(client: int, round: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            done = path.read_text().count('"arrived"') if path.exists() else 0
            if done >= 2 - client:
                break
            time.sleep(0.002)
        return arrays

    grid = make_grid(client_app(train), 3)
    start(recording(grid, path), num_rounds=1)
    found = read_recording(path)
    in_order = np.argsort(found.jobs.ended_s, kind="stable")
    arrived = [line["client"] for line in lines(path) if line["event"] == "arrived"]
    assert arrived == names(grid)[::-1]
    assert [found.names[found.jobs.client[job]] for job in in_order] == arrived
    assert [found.names[client] for client in found.rounds[0].merged or ()] == arrived


def test_a_client_that_fails(make_grid: MakeGrid, tmp_path: Path) -> None:
    def train(client: int, round: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        if (client, round) == (1, 2):
            raise RuntimeError("first line\nthe disk is full\x07")
        return arrays

    grid = make_grid(client_app(train), 3)
    start(recording(grid, tmp_path / "f"), num_rounds=3)
    found = read_recording(tmp_path / "f")
    bad = names(grid)[1]
    failed = [(name, round) for name, round, outcome in jobs_of(found) if outcome == FAILED]
    assert failed == [(bad, 2)]
    (reason,) = [reason for reason in found.jobs.reason if reason]
    assert reason.startswith("code 2: ")
    assert "the disk is full" in reason
    assert reason.isprintable()
    assert [len(one.merged or ()) for one in found.rounds] == [3, 2, 3]
    assert found.names.index(bad) not in (found.rounds[1].merged or ())


def test_a_client_that_never_replies(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The other two reply long before the timeout."""
    app, path = client_app(), tmp_path / "f"
    grid = make_grid(app, 3)
    silent = names(grid)[2]
    grid.handle = lambda message, context: None if context.node_id == int(silent) else app(message, context)
    start(recording(grid, path), num_rounds=1, timeout=3.0)
    found = read_recording(path)
    assert jobs_of(found) == [(name, 1, FAILED if name == silent else ARRIVED) for name in sorted(names(grid))]
    assert sorted(found.jobs.reason) == ["", "", "no reply within 3 s"]
    assert {found.names[client] for client in found.rounds[0].merged or ()} == set(names(grid)) - {silent}


def test_who_joins_and_who_leaves(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Node 2 connects after the first round, node 0 leaves after the second."""
    grid = make_grid(client_app(), 3)
    first, _, last = (int(name) for name in names(grid))
    grid.offline = {last}
    recorded, path = recording(grid, tmp_path / "f"), tmp_path / "f"
    start(recorded, num_rounds=1)
    grid.offline = set()
    start(recorded, num_rounds=1)
    grid.offline = {first}
    start(recorded, num_rounds=1)
    found = read_recording(path)
    presence = [(line["event"], line["client"]) for line in lines(path) if line["event"] in ("connected", "left")]
    assert presence[:2] == [("connected", name) for name in sorted(map(str, grid.nodes)) if name != str(last)]
    assert presence[2:] == [("connected", str(last)), ("left", str(first))]
    ends_s = [one.end_s for one in found.rounds]
    (gone,) = [one for one in found.intervals if one[2] < np.inf]
    assert found.names[gone[0]] == str(first)
    assert gone[2] >= ends_s[1]


def test_presence_is_checked_while_replies_are_awaited(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node leaves during training; the round waits until this is recorded."""
    monkeypatch.setattr("lesson.flower.recorder.LOOK_EVERY_S", 0.0)
    path = tmp_path / "f"

    def train(client: int, round: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        if client == 0:
            grid.offline = {int(names(grid)[1])}
            until_s = time.monotonic() + 60
            while '"left"' not in path.read_text() and time.monotonic() < until_s:
                time.sleep(0.002)
        return arrays

    grid = make_grid(client_app(train), 2)
    start(recording(grid, path), num_rounds=1)
    events = [line["event"] for line in lines(path)]
    assert events.index("left") < events.index("round")


class NamedGrid(LocalGrid):
    """A grid whose nodes have names."""

    named: dict[int, str]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.named.get(node, "")) for node in self.get_node_ids()]


def test_a_client_keeps_its_name_if_it_registers_again(tmp_path: Path) -> None:
    """Node 2 takes the place of node 1; node 3, which has the same name, joins while it is connected."""
    grid, path = NamedGrid(client_app(), 3), tmp_path / "f"
    one, two, three = sorted(grid.nodes)
    grid.named = dict.fromkeys(grid.nodes, "phone")
    recorded = recording(grid, path)
    try:
        for offline in ({two, three}, {one, three}, {one}):
            grid.offline = offline
            start(recorded, num_rounds=1)
    finally:
        grid.close()
    events = [(line["event"], line["client"]) for line in lines(path) if line["event"] in ("connected", "left")]
    assert events == [
        *(("connected", "phone"), ("left", "phone"), ("connected", "phone")),
        ("connected", f"phone ({three})"),
    ]
    assert read_recording(path).names == ("phone", f"phone ({three})")


def test_what_is_not_sent_has_failed(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 2)
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"server-round": 4})})
    here, gone = sorted(grid.nodes)
    grid.offline = {gone}
    recorded = recording(grid, tmp_path / "f")
    ids = recorded.push_messages([Message(content, node, "train.local") for node in (here, gone)])
    assert [bool(number) for number in ids] == [True, False]
    found = read_recording(tmp_path / "f")
    assert jobs_of(found) == [(str(here), 4, OPEN), (str(gone), 4, FAILED)]
    assert found.jobs.reason[1].startswith("not sent")


def test_nobody_waits_for_the_reply_to_a_message_that_was_not_sent(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The grid returns '' in place of the id of this message. Without a timeout, a reply to it would never come."""
    grid = make_grid(client_app(), 2)
    here, gone = sorted(grid.nodes)
    grid.offline = {gone}
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"server-round": 1})})
    sent = [Message(content, node, "train") for node in (here, gone)]
    assert len(recording(grid, tmp_path / "f").send_and_receive(sent)) == 1
    assert jobs_of(read_recording(tmp_path / "f")) == [(str(here), 1, ARRIVED), (str(gone), 1, FAILED)]


def test_a_reply_that_flower_cannot_decode_has_failed(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 1)
    recorded = recording(grid, tmp_path / "f")
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"server-round": 1})})
    ids = recorded.push_messages([Message(content, next(iter(grid.nodes)), "train", group_id="7")])

    def pull_messages(_: Any) -> list[Message]:
        raise ValueError("bytes of somebody else")

    grid.pull_messages = pull_messages  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="somebody else"):
        recorded.pull_messages(ids)
    found = read_recording(tmp_path / "f")
    assert found.jobs.reason == ("unreadable reply: ValueError",)
    assert found.jobs.round.tolist() == [7], "the group comes first"


def test_a_recording_that_cannot_be_written_changes_nothing(
    make_grid: MakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a recording\n")
    grid = make_grid(client_app(mods=[report_times]), 3)
    result = start(recording(grid, path), num_rounds=2)
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert path.read_text() == "not a recording\n"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    warnings = [line for line in warnings if str(path) in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        f"recording to {path} has stopped, but the run continues: {path} line 1: a recording must"
    )
    assert grid.num_pushed == 6


def test_a_full_disk_ends_the_recording_but_not_the_run(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "f", "lesson.flight.writer.os.write"
    grid = make_grid(client_app(), 2)
    recorded = recording(grid, path)
    start(recorded, num_rounds=1)
    before = path.read_text()
    with monkeypatch.context() as full:
        full.setattr(write, lambda *_: 0)
        start(recorded, num_rounds=1)
    start(recorded, num_rounds=1)
    assert path.read_text() == before
    assert grid.num_pushed == 6
    assert len(read_recording(path).rounds) == 1


def test_everything_else_is_that_of_the_grid(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 2)
    recorded = recording(grid, tmp_path / "f")
    assert isinstance(recorded, Grid)
    assert recorded.run is None
    assert recorded.num_pushed == 0
    assert recorded.get_node_ids() == grid.get_node_ids()
    assert [node.node_id for node in recorded.get_nodes()] == grid.get_node_ids()
    with pytest.raises(NotImplementedError):
        recorded.create_message(RecordDict(), "train", 1, "")
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        recorded.unheard_of  # noqa: B018
    assert recorded.send_and_receive([]) == []
    assert record_run(recorded, tmp_path, "lesson", 3.0) is recorded


def test_wrong_arguments(make_grid: MakeGrid, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="grid must be the grid that Flower passes to main, got str"):
        RecordingGrid("grid", tmp_path / "f")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="poll_s must be > 0 and finite, got 0"):
        RecordingGrid(make_grid(client_app(), 1), tmp_path / "f", poll_s=0)


def test_a_recording_is_continued_by_the_next_process(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(), 2)
    for _ in range(2):
        start(recording(grid, tmp_path / "f", deadline_s=4.0), num_rounds=1)
    found = read_recording(tmp_path / "f")
    assert len(found.jobs) == 4
    assert len(found.resumed_s) == 1
    assert found.header.deadline_s == 4.0
    assert [line["event"] for line in lines(tmp_path / "f")].count("connected") == 4


def test_rounds_of_a_loop_are_recorded_when_they_ended(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 12 s of the loop's time, the recording is at 20 s: a round that ended at 9 s has ended at 17 s here."""
    now_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], time=time.time)
    monkeypatch.setattr("lesson.flower.exchanges.time", clock)
    monkeypatch.setattr("lesson.flower.recorder.Moment.now", lambda: Moment(now_s[0], 0.0))
    grid = make_grid(client_app(), 2)
    recorded = record_run(grid, tmp_path, "lesson", float("inf"))
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"server-round": 1})})
    first, second = sorted(grid.nodes)
    recorded.push_messages([Message(content, first, "train")])
    recorded.follow({0: first, 5: second}, lambda: 12.0)
    now_s[0] = 120.0
    recorded.note_round(1, 9.0, [5, 0], [2, 0])
    recorded.note_round(2, 11.0, None, None)
    recorded.note_round(3, 12.0, [0, 6], [0, 0])  # client 6 has not connected again
    found = read_recording(tmp_path / "flight.jsonl")
    assert (found.header.strategy, found.header.deadline_s) == ("lesson", None)
    assert [(one.round, one.end_s) for one in found.rounds] == [(1, 17.0), (2, 19.0), (3, 20.0)]
    assert [(one.merged, one.staleness) for one in found.rounds] == [((1, 0), (2, 0)), (None, None), (None, None)]


def test_the_documented_app_is_recorded(make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server app and the client app of docs/reference/recordings.md, and the line in docs/how-to/flower.md."""
    monkeypatch.chdir(tmp_path)
    page = [block.text for block in blocks(ROOT / "docs" / "reference" / "recordings.md") if block.kind == "python"]
    server, client = page
    names: dict[str, Any] = {"Net": lambda: nn.Linear(2, 1)}
    exec(client, names)
    app = names["app"]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10})}), reply_to=message)

    (line,) = [block.text for block in blocks(ROOT / "docs" / "how-to" / "flower.md") if "RecordingGrid(" in block.text]
    wrapping, _, importing = line.strip().partition("  # ")
    assert wrapping in server
    assert importing in server
    exec(server.replace("num_rounds=20", "num_rounds=2"), names)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    names["app"](make_grid(app, 2), context)
    found = read_recording("flight.jsonl")
    assert [one.round for one in found.rounds] == [1, 2]
    assert len(found.jobs) == 4
    assert np.isfinite(found.jobs.compute_s).all()


def test_lesson_strategy_is_recorded_with_staleness(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The slow client needs several rounds, and others are aggregated while it trains."""

    def train(client: int, round: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
        time.sleep(0.7 if client == 2 else 0.0)
        return arrays

    grid = make_grid(client_app(train, [report_times]), 3)
    strategy = LessonStrategy(0.3, clock="wall", min_available_nodes=3)
    recorded = recording(grid, tmp_path / "f", strategy="lesson", deadline_s=0.3)
    arrays = ArrayRecord([np.zeros(2)])
    strategy.start(grid=recorded, initial_arrays=arrays, num_rounds=8, train_config=ConfigRecord({"lr": 0.1}))
    found = read_recording(tmp_path / "f")
    slow = found.names.index(names(grid)[2])
    assert [one.round for one in found.rounds] == list(range(1, 9))
    assert [len(one.merged or ()) == len(one.staleness or ()) for one in found.rounds] == [True] * 8
    assert found.rounds[0].merged is not None
    assert sorted(found.rounds[0].merged) == [0, 1, 2], "the first round is FedAvg"
    stale = {
        client
        for one in found.rounds
        for client, staleness in zip(one.merged or (), one.staleness or (), strict=True)
        if staleness
    }
    assert slow in stale
    assert found.jobs.round.tolist() == sorted(found.jobs.round.tolist())
    assert (found.jobs.outcome != FAILED).all()


def reply_with(app: ClientApp, **reported: Any) -> Callable[[Message, Context], Message]:
    """A client that reports these times, whatever it has measured."""

    def handle(message: Message, context: Context) -> Message:
        reply = app(message, context)
        reply.content[TIMES] = ConfigRecord({**reply.content.get(TIMES, {}), **reported})
        return reply

    return handle


def test_reported_times_are_recorded_but_the_strategy_does_not_see_them(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(client_app(mods=[report_times]), 3)
    recorded = recording(grid, tmp_path / "f")
    seen, pull = list[RecordDict](), recorded.pull_messages

    def pull_messages(message_ids: Iterable[str]) -> list[Message]:
        replies = pull(message_ids)
        seen.extend(reply.content for reply in replies)
        return replies

    recorded.pull_messages = pull_messages  # type: ignore[method-assign]
    result = start(recorded, num_rounds=1)
    assert [sorted(content) for content in seen] == [["arrays", "metrics"]] * 3
    assert set(result.train_metrics_clientapp[1]) == {"loss"}
    arrived = [line for line in lines(tmp_path / "f") if line["event"] == "arrived"]
    assert all({"compute_s", "downloaded_s", "trained_s"} <= line.keys() for line in arrived)
    jobs = read_recording(tmp_path / "f").jobs
    assert np.isfinite(jobs.download_s).all()
    assert np.isfinite(jobs.compute_s).all()


def test_clients_with_and_without_times_are_averaged_together(make_grid: MakeGrid) -> None:
    """Without a recording, too: the times are no metrics."""
    with_times, without = client_app(mods=[report_times]), client_app()
    grid = make_grid(without, 3)
    grid.handle = lambda message, context: (with_times if context.node_id == 1000 else without)(message, context)
    result = start(grid, num_rounds=1)
    assert set(result.train_metrics_clientapp[1]) == {"loss"}
    assert result.arrays is not None


@pytest.mark.parametrize(
    ("reported", "recorded"),
    [
        ({BEGAN: 0.0, ENDED: 1.0}, {"compute_s"}),  # the client's clock is wrong
        ({BEGAN: 2.0e9, ENDED: 1.0e9}, {"compute_s"}),
        ({COMPUTE_S: 1e6}, {"downloaded_s", "trained_s"}),  # longer than the job took
        ({COMPUTE_S: -1.0}, {"downloaded_s", "trained_s"}),
        ({COMPUTE_S: float("nan")}, set()),
        ({BEGAN: "yesterday"}, set()),
        ({ENDED: [1.0]}, set()),
    ],
)
def test_times_that_cannot_be_right_are_left_out(
    make_grid: MakeGrid, tmp_path: Path, reported: dict[str, Any], recorded: set[str]
) -> None:
    app = client_app(mods=[report_times])
    grid = make_grid(app, 1)
    grid.handle = reply_with(app, **reported)
    start(recording(grid, tmp_path / "f"), num_rounds=1)
    (line,) = [line for line in lines(tmp_path / "f") if line["event"] == "arrived"]
    assert {"compute_s", "downloaded_s", "trained_s"} & line.keys() == recorded
    read_recording(tmp_path / "f")


@pytest.mark.parametrize("told", [{"num-examples": -3}, {"num-examples": 0.5}, {"energy-j": -1.0}, {"energy-j": [1.0]}])
def test_numbers_that_cannot_be_right_are_left_out(make_grid: MakeGrid, tmp_path: Path, told: dict[str, Any]) -> None:
    start(recording(make_grid(client_app(metrics=told), 1), tmp_path / "f"), num_rounds=1)
    (line,) = [line for line in lines(tmp_path / "f") if line["event"] == "arrived"]
    assert "energy_j" not in line
    assert ("num_samples" in line) == ("num-examples" not in told)
    read_recording(tmp_path / "f")


def test_an_error_of_a_client_has_no_times(make_grid: MakeGrid) -> None:
    message = Message(RecordDict(), 1000, "train")
    message.metadata.__dict__["_message_id"] = "1"
    error = Message(Error(2, "no"), reply_to=message)
    context = make_grid(client_app(), 1).nodes[1000]
    assert report_times(message, context, lambda *_: error) is error
    assert error.has_error()


def test_names_of_nodes() -> None:
    """sha256(b"key") begins with 2c70e12b."""
    nodes = [
        NodeInfo(node_id=1, name="phone", public_key=b"key"),
        NodeInfo(node_id=2, public_key=b"key"),
        NodeInfo(node_id=3),
        NodeInfo(node_id=4, name="pi", public_key=b"key"),
        NodeInfo(node_id=5, name="pi"),
    ]
    assert names_of(nodes) == {1: "phone", 2: "key-2c70e12b", 3: "3", 4: "pi (key-2c70e12b)", 5: "pi (5)"}
