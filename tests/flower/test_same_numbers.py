"""The app in examples/flower_deployment: on the virtual clock, the numbers of the simulator, bit by bit."""

import json
import math
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import APP
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from lesson_app import client_app, server_app

from helpers.any_tasks import Mlp, feature_task
from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import MakeGrid
from lesson import Settings, Task
from lesson.fleet.fleet import Fleet, draw_fleet, make_fleet
from lesson.flower import LessonStrategy, RunFolder, evaluate_on_server, initial_arrays
from lesson.runs.execute import execute
from lesson.runs.resolve import resolve
from lesson.strategies import make_strategy

CLIENTS = 4
PARTS = [list(range(40 * client, 40 * client + 10 * (client + 1))) for client in range(CLIENTS)]
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | {
    "dataset": f"{__name__}:make_task",
    "batch-size": 4,
    "learning-rate": 0.1,
    "local-steps": 2,
}
"""The run config of the app."""
LATENCIES_S = draw_fleet(Settings(), CLIENTS, 0).latency_s.tolist()
SAME = ("round", "time_s", "uploads", "merged", "merged_staleness", "merged_arrived_s", "rejections")
"""Fields of the metrics that are the same in both."""


def make_task() -> Task:
    return feature_task(partial(Mlp, norm=True, dropout=0.2), clients=PARTS)


def settings_of(name: str, rounds: int, latencies: Path, **sections: Any) -> Settings:
    return Settings(
        **{
            "fleet": {"num_clients": CLIENTS, "latencies": str(latencies)},
            "data": {"dataset": CONFIG["dataset"]},
            "training": {
                "batch_size": CONFIG["batch-size"],
                "local_steps": CONFIG["local-steps"],
                "learning_rate": CONFIG["learning-rate"],
                "lr_cap": 4 * CONFIG["learning-rate"],
                "weighting": "samples",
            },
            "upload": {"model_bits": "actual"},
            "strategy": {"name": name, "deadline_s": 15.0},
            "run": {"rounds": rounds, "trainer": "reference", "eval_every_s": 1e9, "time_budget_s": math.inf},
            **sections,
        }
    )


@pytest.fixture
def latencies(tmp_path: Path) -> Path:
    path = tmp_path / "latencies.csv"
    rows = [f"{client},{latency_s!r}" for client, latency_s in enumerate(LATENCIES_S)]
    path.write_text("\n".join(["client,latency_s", *rows, ""]))
    return path


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
    make_grid: MakeGrid, latencies: Path, tmp_path: Path, strategy: str, rounds: int, sections: dict[str, Any]
) -> None:
    settings = settings_of(strategy, rounds, latencies, **sections)
    LessonStrategy(
        settings.strategy.deadline_s,
        make_strategy(strategy, settings.strategy.deadline_s, settings.strategy.options),
        clock="virtual",
        latency_s=LATENCIES_S,
        guards=settings.guards,
        fraction_evaluate=0.0,
        sends_index=True,
        folder=RunFolder(tmp_path / "flower"),
    ).start(
        make_grid(client_app.app, CLIENTS, CONFIG),
        initial_arrays(settings),
        rounds,
        train_config=ConfigRecord({"lr": CONFIG["learning-rate"], "local-steps": CONFIG["local-steps"]}),
    )
    execute(settings, tmp_path / "simulated")
    flower, simulated = lines(tmp_path / "flower"), lines(tmp_path / "simulated")
    assert flower == simulated
    assert any("rejections" in line for line in flower) == (strategy == "lesson")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("flower", "simulated")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("strategy", "upload"),
    [
        ({"name": "lesson", "fit_upload": True}, {"compression": "qsgd", "level": 4.0, "bucket": 50}),
        ({"name": "fedbuff", "buffer_size": 2, "concurrency": 3}, {"compression": "topk", "level": 0.1}),
    ],
)
def test_compressed_uploads_are_those_of_the_simulator(
    make_grid: MakeGrid, tmp_path: Path, strategy: dict[str, Any], upload: dict[str, Any]
) -> None:
    """Decoded updates, error feedback and levels are the same. A message takes the bytes of its bits, and 128 more for
    the header of the array; so does each of the other arrays, the buffers of the normalization."""
    drawn, path = draw_fleet(Settings(), CLIENTS, 0), tmp_path / "latencies.csv"
    rows = zip(range(CLIENTS), drawn.latency_s.tolist(), drawn.compute_s.tolist(), drawn.upload_s.tolist(), strict=True)
    path.write_text("\n".join(["client,latency_s,compute_s,upload_s", *(",".join(map(repr, row)) for row in rows), ""]))
    sections = {"upload": {"model_bits": "actual"} | upload, "strategy": {"deadline_s": 15.0} | strategy}
    settings = settings_of(strategy["name"], 9, path, **sections)
    summary = execute(settings, tmp_path / "simulated")
    fleet = resolve(settings).build().fleet
    chosen = LessonStrategy(
        15.0,
        make_strategy(strategy["name"], 15.0, settings.strategy.options),
        clock="virtual",
        latency_s=fleet.latency_s,
        upload=settings.upload,
        fraction_evaluate=0.0,
        sends_index=True,
        folder=RunFolder(tmp_path / "flower"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lesson.flower.participants.make_fleet", partial(with_times, fleet))
        chosen.start(
            make_grid(client_app.app, CLIENTS, CONFIG),
            initial_arrays(settings),
            9,
            train_config=ConfigRecord({"lr": CONFIG["learning-rate"], "local-steps": CONFIG["local-steps"]}),
        )
    assert lines(tmp_path / "flower") == lines(tmp_path / "simulated")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("flower", "simulated")]
    assert models[0] == models[1]
    sent = json.loads((tmp_path / "flower" / "summary.json").read_text())
    buffers = len(resolve(settings).build().evaluator.workload.template.traits.buffers)
    assert sent["bytes_up"] - summary["bytes_up"] == summary["uploads"] * 128 * (1 + buffers)


def with_times(fleet: Fleet, settings: Settings, names: Any, samples: Any, *_: Any) -> Fleet:
    """Return clients with known compute and upload times, in place of latencies alone."""
    return make_fleet(settings, names, samples, fleet.compute_s, fleet.upload_s, fleet.latency_s)


def test_killed_run_resumes_bit_identically(
    make_grid: MakeGrid, latencies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints after every round; killed among the messages of a later one."""
    monkeypatch.setattr("lesson.flower.folder.CHECKPOINT_EVERY_S", 1e-6)
    settings, out = settings_of("lesson", 6, latencies), tmp_path / "flower"
    config = CONFIG | {"deadline": 15.0, "rounds": 6, "clock": "virtual", "out": str(out)}

    def serve(config: dict[str, Any], kills_after: int) -> None:
        grid = make_grid(client_app.app, CLIENTS, config)
        kill_after(grid, kills_after)
        server_app.app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))

    with pytest.raises(KilledError):
        serve(config, kills_after=CLIENTS + 4)
    assert 1 <= len(lines(out)) < 6
    serve(config | {"resume": True}, kills_after=1000)
    execute(settings, tmp_path / "simulated")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("flower", "simulated")]
    assert models[0] == models[1]


def test_evaluation_of_a_task(make_grid: MakeGrid, latencies: Path) -> None:
    """If all parameters are 0, all classes are equally likely and class 0 is predicted: the loss is ln 3."""
    settings = settings_of("lesson", 1, latencies)
    zeros = ArrayRecord({name: Array(np.zeros_like(array.numpy())) for name, array in initial_arrays(settings).items()})
    grid, strategy = make_grid(client_app.app, CLIENTS, CONFIG), LessonStrategy(1.0, sends_index=True)
    result = strategy.start(grid, zeros, 1, train_config=ConfigRecord({"lr": 1e-12, "local-steps": 1}))
    metrics, task = result.evaluate_metrics_clientapp[0], make_task()
    on_server = evaluate_on_server(settings)(1, zeros)
    assert on_server is not None
    for found, labels in ((metrics, task.train[1][np.concatenate(PARTS)]), (on_server, task.test[1])):
        expected = {"loss": math.log(3), "accuracy": float((labels == 0).float().mean())}
        assert dict(found) == pytest.approx(expected, rel=1e-5)
