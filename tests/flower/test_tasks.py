"""Clients that train a task: on the virtual clock, the numbers of the simulator, bit by bit."""

import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from helpers.any_tasks import Mlp, feature_task
from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import MakeGrid
from lesson import Settings
from lesson.fleet.fleet import draw_fleet
from lesson.flower import LessonStrategy, RunFolder, TaskClient, evaluate_on_server, initial_arrays
from lesson.runs.execute import execute
from lesson.settings.sections import GuardSettings
from lesson.strategies import make_strategy

CLIENTS = 4
PARTS = [list(range(40 * client, 40 * client + 10 * (client + 1))) for client in range(CLIENTS)]
TASK = feature_task(partial(Mlp, norm=True, dropout=0.2), clients=PARTS)
LATENCIES_S = draw_fleet(Settings(), CLIENTS, 0).latency_s.tolist()
SAME = ("round", "time_s", "uploads", "merged", "merged_staleness", "merged_arrived_s", "rejections")
"""Fields of the metrics that are the same in both."""


def settings_of(name: str, rounds: int, latencies: Path, **sections: Any) -> Settings:
    return Settings(
        **{
            "fleet": {"num_clients": CLIENTS, "latencies": str(latencies)},
            "training": {"batch_size": 4, "local_steps": 2, "lr_cap": 1.0, "weighting": "samples"},
            "upload": {"model_bits": "actual"},
            "strategy": {"name": name, "deadline_s": 15.0},
            "run": {"rounds": rounds, "trainer": "reference", "eval_every_s": 1e9, "time_budget_s": math.inf},
            **sections,
        }
    )


def app_of(settings: Settings) -> ClientApp:
    """Return the client app of examples/flower_deployment, for a task of the tests."""
    app = ClientApp()

    @cache
    def client(number: int) -> TaskClient:
        return TaskClient(settings, number, TASK)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mine: Any = client(int(context.node_config["partition-id"]))
        content: Any = message.content
        arrays = mine.train(content["arrays"], content["config"])
        metrics = MetricRecord({"num-examples": mine.num_samples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mine: Any = client(int(context.node_config["partition-id"]))
        metrics = MetricRecord({"num-examples": mine.num_samples, **mine.evaluate(message.content["arrays"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.fixture
def latencies(tmp_path: Path) -> Path:
    path = tmp_path / "latencies.csv"
    rows = [f"{client},{latency_s!r}" for client, latency_s in enumerate(LATENCIES_S)]
    path.write_text("\n".join(["client,latency_s", *rows, ""]))
    return path


@pytest.fixture
def federate(make_grid: MakeGrid) -> Callable[..., None]:
    def run(settings: Settings, out: Path, kills_after: int = 0, **options: Any) -> None:
        grid = make_grid(app_of(settings), CLIENTS)
        if kills_after:
            kill_after(grid, kills_after)
        chosen, training = settings.strategy, settings.training
        strategy = LessonStrategy(
            chosen.deadline_s,
            make_strategy(chosen.name, chosen.deadline_s, chosen.options),
            clock="virtual",
            latency_s=LATENCIES_S,
            lr_cap=training.lr_cap,
            guards=GuardSettings(**settings.guards.model_dump()),
            fraction_evaluate=0.0,
            sends_index=True,
            folder=RunFolder(out, **options),
        )
        strategy.start(
            grid,
            initial_arrays(settings, TASK),
            settings.run.rounds or 0,
            train_config=ConfigRecord({"lr": training.learning_rate, "local-steps": training.local_steps}),
        )

    return run


def lines(out: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in SAME if name in line} for line in found]


@pytest.mark.parametrize(
    ("strategy", "rounds", "sections"),
    [
        ("lesson", 14, {"guards": {"norm_limit": 1.2}}),
        ("fedbuff", 9, {"strategy": {"name": "fedbuff", "deadline_s": 15.0, "buffer_size": 2, "concurrency": 3}}),
    ],
)
def test_virtual_clock_is_bit_identical_to_the_simulator(
    federate: Callable[..., None], latencies: Path, tmp_path: Path, strategy: str, rounds: int, sections: dict[str, Any]
) -> None:
    settings = settings_of(strategy, rounds, latencies, **sections)
    federate(settings, tmp_path / "flower")
    execute(settings, tmp_path / "simulated", task=TASK)
    flower, simulated = lines(tmp_path / "flower"), lines(tmp_path / "simulated")
    assert flower == simulated
    assert any("rejections" in line for line in flower) == (strategy == "lesson")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("flower", "simulated")]
    assert models[0] == models[1]


def test_killed_run_resumes_bit_identically(
    federate: Callable[..., None], latencies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints after every round; killed among the messages of a later one."""
    monkeypatch.setattr("lesson.flower.folder.CHECKPOINT_EVERY_S", 1e-6)
    settings, out = settings_of("lesson", 6, latencies), tmp_path / "flower"
    with pytest.raises(KilledError):
        federate(settings, out, kills_after=CLIENTS + 4)
    assert 1 <= len(lines(out)) < 6
    federate(settings, out, resume=True)
    execute(settings, tmp_path / "simulated", task=TASK)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("flower", "simulated")]
    assert models[0] == models[1]


def test_evaluation_of_a_task(make_grid: MakeGrid, latencies: Path) -> None:
    """If all parameters are 0, all classes are equally likely and class 0 is predicted: the loss is ln 3."""
    settings = settings_of("lesson", 1, latencies)
    zeros = ArrayRecord(
        {name: Array(np.zeros_like(array.numpy())) for name, array in initial_arrays(settings, TASK).items()}
    )
    grid, strategy = make_grid(app_of(settings), CLIENTS), LessonStrategy(1.0, sends_index=True)
    result = strategy.start(grid, zeros, 1, train_config=ConfigRecord({"lr": 1e-12, "local-steps": 1}))
    metrics = result.evaluate_metrics_clientapp[0]
    on_server = evaluate_on_server(settings, TASK)(1, zeros)
    assert on_server is not None
    for found, labels in ((metrics, TASK.train[1][np.concatenate(PARTS)]), (on_server, TASK.test[1])):
        expected = {"loss": math.log(3), "accuracy": float((labels == 0).float().mean())}
        assert dict(found) == pytest.approx(expected, rel=1e-5)
