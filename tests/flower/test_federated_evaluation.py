"""Federated evaluation: who evaluates which model, what the metrics are, and that training is not affected."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result, Strategy

from helpers.local_grid import LocalGrid, MakeGrid, fail, keep_silent
from lesson.flower import LessonStrategy, RunFolder

NUM_EXAMPLES = [10, 30, 20]


class Journal:
    """A client app that adds `lr` to a number, and what its clients were asked to do."""

    def __init__(self) -> None:
        self.app = ClientApp()
        self.trained: list[tuple[int, int]] = []
        self.evaluated: list[tuple[int, int, dict[str, Any]]] = []
        self.app.train()(self.train)
        self.app.evaluate()(self.evaluate)

    def train(self, message: Message, context: Context) -> Message:
        client, config = int(context.node_config["partition-id"]), message.content["config"]
        self.trained.append((client, int(config["server-round"])))
        time.sleep(float(context.node_config.get("slow-s", 0.0)))
        (value,) = message.content["arrays"].to_numpy_ndarrays()
        metrics = MetricRecord({"num-examples": NUM_EXAMPLES[client]})
        return Message(
            RecordDict({"arrays": ArrayRecord([value + config["lr"]]), "metrics": metrics}), reply_to=message
        )

    def evaluate(self, message: Message, context: Context) -> Message:
        client, config = int(context.node_config["partition-id"]), dict(message.content["config"])
        (value,) = message.content["arrays"].to_numpy_ndarrays()
        self.evaluated.append((client, int(config["server-round"]), config))
        metrics = MetricRecord({"score": float(client) + float(value[0]), "num-examples": NUM_EXAMPLES[client]})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def evaluations(self) -> list[tuple[int, int]]:
        """Return which client evaluated the model of which round, sorted by round."""
        return sorted(((client, round) for client, round, *_ in self.evaluated), key=lambda one: one[::-1])


def start(grid: LocalGrid, strategy: Strategy, num_rounds: int = 4, **options: Any) -> Result:
    config = ConfigRecord({"lr": 1.0})
    return strategy.start(grid, ArrayRecord([np.zeros(1)]), num_rounds, train_config=config, **options)


def virtual(**options: Any) -> LessonStrategy:
    return LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 6.0, 7.0], **options)


def test_metrics_equal_those_of_fedavg(make_grid: MakeGrid) -> None:
    """After every round: (10·0 + 30·1 + 20·2)/60 = 7/6 more than the model, which has the round's number."""
    config = ConfigRecord({"batch": 8})
    theirs = start(make_grid(Journal().app, 3), FlowerFedAvg(), evaluate_config=config)
    journal = Journal()
    ours = start(make_grid(journal.app, 3), virtual(evaluate_every=1), evaluate_config=config)
    assert ours.evaluate_metrics_clientapp.keys() == theirs.evaluate_metrics_clientapp.keys() == {1, 2, 3, 4}
    for round, metrics in theirs.evaluate_metrics_clientapp.items():
        assert dict(ours.evaluate_metrics_clientapp[round]) == pytest.approx(dict(metrics))
    assert ours.evaluate_metrics_clientapp[3]["score"] == pytest.approx(3 + 7 / 6)
    assert journal.evaluations() == [(client, round) for round in (1, 2, 3, 4) for client in (0, 1, 2)]
    assert all(config == {"batch": 8, "server-round": round} for _, round, config in journal.evaluated)


def test_rounds_in_which_clients_evaluate(make_grid: MakeGrid) -> None:
    for options, rounds in (({}, [5]), ({"evaluate_every": 2}, [2, 4, 5]), ({"fraction_evaluate": 0.0}, [])):
        result = start(make_grid(Journal().app, 3), virtual(**options), num_rounds=5)
        assert list(result.evaluate_metrics_clientapp) == rounds


def test_fraction_of_clients(make_grid: MakeGrid) -> None:
    """A third of three clients is one; which one depends on the round."""
    journal = Journal()
    start(make_grid(journal.app, 3), virtual(evaluate_every=1, fraction_evaluate=0.3), num_rounds=12)
    assert [round for _, round in journal.evaluations()] == list(range(1, 13))
    assert {client for client, _ in journal.evaluations()} == {0, 1, 2}


def test_clients_that_fail_are_named(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    """Client 2 fails: (10·0 + 30·1)/40 = 0.75 more than the model of round 1, which is 1."""
    grid = make_grid(Journal().app, 3)
    grid.intercept(fail, partition=2, kind="evaluate")
    result = start(grid, virtual(), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == pytest.approx({"score": 1.75})
    (line,) = [line for line in caplog.messages if "did not evaluate" in line]
    assert "client 2 did not evaluate the model: code 2: " in line
    assert "fraction_evaluate=0" not in line


@pytest.mark.parametrize(
    ("count", "names"), [(1, "client 0"), (4, "clients 0, 1, 2, 3"), (6, "clients 0, 1, 2, 3, 2 more")]
)
def test_awaited_clients_are_named(
    make_grid: MakeGrid,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    names: str,
) -> None:
    monkeypatch.setattr("lesson.flower.evaluation.TELL_EVERY_S", -1.0)
    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0] * count, min_available_nodes=1)
    start(make_grid(Journal().app, count), strategy, num_rounds=1)
    assert f"still waiting for {names} to evaluate the model" in caplog.messages


def test_app_without_evaluate_still_trains(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    journal, app = Journal(), ClientApp()
    app.train()(journal.train)
    result = start(make_grid(app, 3), virtual(), num_rounds=2)
    assert result.arrays.to_numpy_ndarrays()[0] == pytest.approx([2.0])
    assert not result.evaluate_metrics_clientapp
    assert "fraction_evaluate=0" in caplog.text


def test_evaluation_disturbs_neither_clock_nor_latencies(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    """Client 0 evaluates from the end of round 4 to that of round 12, while client 1 trains: rounds go on without
    client 0, and its estimated latency does not contain the time of the evaluation."""
    journal, released, took_s = Journal(), threading.Event(), list[float]()
    grid = make_grid(journal.app, 2)
    grid.name_by_partition()

    def wait(message: Message, context: Context) -> Message:
        begin_s = time.monotonic()
        is_warm_up = message.content["config"]["server-round"] == 0
        assert is_warm_up or released.wait(60.0), "the rounds have not continued"
        took_s.append(time.monotonic() - begin_s)
        return journal.app(message, context)

    grid.intercept(wait, partition=0, kind="evaluate")
    grid.intercept(wait, partition=1, kind="train")

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 12:
            released.set()

    strategy = LessonStrategy(0.2, clock="wall", latency_s=[0.05, 4.0], evaluate_every=4)
    result = start(grid, strategy, num_rounds=16, evaluate_fn=evaluate)
    rounds = [round for client, round in journal.trained if client == 0]
    assert not any(4 < round <= 12 for round in rounds)
    assert any(round > 12 for round in rounds)
    assert (0, 4) in journal.evaluations()
    assert 16 in result.evaluate_metrics_clientapp
    (line,) = [line for line in caplog.messages if line.startswith("client 0: ")]
    assert float(line.split()[2]) < max(took_s), line


def test_all_clients_evaluate_at_once_if_none_is_training(make_grid: MakeGrid, tmp_path: Path) -> None:
    """All are in tier 1 and idle after each round, so the server waits for them before it opens the next one, for up to
    the 30 s of a round."""
    journal = Journal()
    strategy = LessonStrategy(30.0, evaluate_every=1, folder=RunFolder(tmp_path))
    result = start(make_grid(journal.app, 3), strategy, num_rounds=3)
    assert journal.evaluations() == [(client, round) for round in range(4) for client in (0, 1, 2)]
    assert list(result.evaluate_metrics_clientapp) == [0, 1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    scores = [line["client_metrics"][str(line["round"])]["score"] for line in lines[:2]]
    assert scores == pytest.approx([1 + 7 / 6, 2 + 7 / 6])


def test_silent_client_does_not_hold_up_the_run(make_grid: MakeGrid) -> None:
    """The others wait for at most one round; after `timeout`, the client that never replies can train again."""
    journal = Journal()
    grid = make_grid(journal.app, 3)
    grid.intercept(keep_silent, partition=1, kind="evaluate")
    strategy = LessonStrategy(0.3, clock="wall", latency_s=[0.1, 0.1, 0.1], evaluate_every=5)
    result = start(grid, strategy, num_rounds=10, timeout=1.0)
    assert result.evaluate_metrics_clientapp.keys() == {0, 5, 10}
    assert (0, 6) in journal.trained
    assert (1, 6) not in journal.trained
    assert any(client == 1 and round > 6 for client, round in journal.trained)


def test_client_that_never_replied_is_not_awaited_again(make_grid: MakeGrid) -> None:
    """All are asked to evaluate the initial model, for two seconds. Client 1 does not reply, so the first round, which
    measures the others, begins without it."""
    journal = Journal()
    grid = make_grid(journal.app, 3)
    grid.intercept(keep_silent, partition=1, kind="evaluate")
    start(grid, LessonStrategy(0.3, first_round_timeout_s=2.0), num_rounds=4, timeout=3.0)
    assert [client for client, round in sorted(journal.trained) if round == 1] == [0, 2]
    assert any(client == 1 for client, _ in journal.trained)


def test_client_that_leaves_while_it_evaluates(make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count as connected after its evaluation has expired, so nothing is sent to it in vain."""
    monkeypatch.setattr("lesson.flower.clients.LOOK_EVERY_S", 0.01)
    journal = Journal()
    grid = make_grid(journal.app, 3)
    grid.intercept(lambda *_: grid.offline.add(grid.node(0)), partition=0, kind="evaluate")
    grid.configure("slow-s", 0.0, 0.15, 0.15)
    strategy = LessonStrategy(0.1, clock="wall", latency_s=[0.05, 0.2, 0.2], evaluate_every=3)
    result = start(grid, strategy, num_rounds=14, timeout=0.5)
    assert not [round for client, round in journal.trained if client == 0 and round > 4]
    assert 14 in result.evaluate_metrics_clientapp
