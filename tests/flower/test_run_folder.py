"""LessonStrategy with a run folder: what it holds, and how a run is resumed and continued with more rounds."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

import lesson
from helpers.flower_runs import KilledError, kill_after
from helpers.local_grid import LocalGrid, MakeGrid, fail
from helpers.trackers import RecordingTracker
from lesson import InputError
from lesson.core.errors import RunStoppedError
from lesson.experiments.run import Run
from lesson.flight.recording import read_recording
from lesson.flower import LessonStrategy, RunFolder
from lesson.settings.sections import GuardSettings, ServerSettings
from lesson.strategies import FedBuff

LATENCIES_S = [5.0, 16.0, 38.0]
"""Tiers 1, 2 and 4 at 10 s."""


@pytest.fixture(autouse=True)
def a_checkpoint_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.flower.folder.CHECKPOINT_EVERY_S", 1e-6)


APP = ClientApp()


@APP.train()
def train(message: Message, context: Context) -> Message:
    """Move the model toward the client's own number, with the step size that it receives."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    client, lr = int(context.node_config["partition-id"]), float(message.content["config"]["lr"])
    error = weights - (1.0 + client)
    metrics = MetricRecord({"train_loss": float((error**2).mean()), "num-examples": 10 * (1 + client)})
    return Message(RecordDict({"arrays": ArrayRecord([weights - lr * error]), "metrics": metrics}), reply_to=message)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    (weights,) = arrays.to_numpy_ndarrays()
    loss = float(((weights - 2.0) ** 2).mean())
    return MetricRecord({"loss": loss, "accuracy": math.exp(-loss)})


def start(
    grid: LocalGrid,
    out: Path | None,
    num_rounds: int = 6,
    *,
    fn: Any = evaluate,
    deadline_s: float = 10.0,
    **options: Any,
) -> Result:
    of_folder = {name: options.pop(name) for name in ("resume", "trackers", "readmit") if name in options}
    options = {"clock": "virtual", "latency_s": LATENCIES_S, "fraction_evaluate": 0.0} | options
    folder = None if out is None else RunFolder(out, **of_folder)
    strategy = LessonStrategy(deadline_s, folder=folder, **options)
    return strategy.start(
        grid,
        ArrayRecord([np.zeros(3, dtype=np.float32)]),
        num_rounds=num_rounds,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=fn,
    )


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def model_and_metrics(result: Result) -> tuple[list[float], list[dict[int, dict[str, Any]]]]:
    """Return the model of a result, and all metrics by round."""
    (weights,) = result.arrays.to_numpy_ndarrays()
    kinds = (result.train_metrics_clientapp, result.evaluate_metrics_serverapp, result.evaluate_metrics_clientapp)
    return weights.tolist(), [{round: dict(record) for round, record in kind.items() if round} for kind in kinds]


def loaded(out: Path) -> Run:
    run = lesson.load(out)
    assert isinstance(run, Run)
    return run


FILES = """checkpoint-before.safetensors checkpoint.safetensors clients.json config.toml latencies.csv metrics.jsonl
    model.safetensors report.html summary.json"""


def test_files_of_a_run(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Six rounds; the same model and metrics as without a folder, and a folder that can be loaded."""
    log, out = RecordingTracker(), tmp_path / "run"
    result = start(make_grid(APP, 3), out, trackers=[log])
    without = start(make_grid(APP, 3), None)
    assert model_and_metrics(result) == model_and_metrics(without)
    assert {path.name for path in out.iterdir() if path.name != ".lock"} == set(FILES.split())
    run = loaded(out)
    assert run.settings.data.dataset == "own app"
    assert (run.settings.strategy.name, run.settings.strategy.deadline_s) == ("lesson", 10.0)
    assert (run.settings.training.learning_rate, run.settings.training.lr_cap) == (0.1, 0.4)
    assert run.summary["accuracy"] == result.evaluate_metrics_serverapp[6]["accuracy"]
    assert run.summary["loss"] == result.evaluate_metrics_serverapp[6]["loss"]
    assert lines(out)[0]["train_metrics"] == {"train_loss": 1.0}, "client 0 starts at 0 and wants 1"
    bytes_of = [(line["bytes_up"], line["bytes_down"]) for line in lines(out)[:2]]
    assert bytes_of == [(140, 420), (280, 140)], "three float32 values and a header of 128 bytes"
    assert run.read_clients()["clients"]["num_samples"] == [10, 20, 30]
    assert (out / "latencies.csv").read_text().splitlines()[1] == "0,5,,,10"
    assert log.calls == [("lesson", out, []), 1, 2, 3, 4, 5, 6, 6]


def test_killed_run_resumes_where_it_was(make_grid: MakeGrid, tmp_path: Path) -> None:
    """The moments of the optimizer and the updates in the buffer are restored, so model and metrics are the same."""
    options: dict[str, Any] = {"strategy": FedBuff(buffer_size=2, concurrency=2)}
    options |= {"server": ServerSettings(optimizer="adam"), "num_rounds": 8}
    whole = start(make_grid(APP, 3), tmp_path / "whole", **options)
    grid, out = make_grid(APP, 3), tmp_path / "run"
    kill_after(grid, 6)
    with pytest.raises(KilledError):
        start(grid, out, **options)
    assert 0 < len(lines(out)) < 8
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"round": 99')  # what a kill may leave behind
    with pytest.raises(InputError, match="resume=True"):
        start(make_grid(APP, 3), out, **options)
    resumed = start(make_grid(APP, 3), out, resume=True, **options)
    assert model_and_metrics(resumed) == model_and_metrics(whole)
    assert lines(out) == lines(tmp_path / "whole")


def test_finished_run_can_be_extended_but_not_changed(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Three rounds, and then seven: the same as seven at once. A run that is long enough is not executed again."""
    whole = start(make_grid(APP, 3), tmp_path / "whole", num_rounds=7)
    out, grid = tmp_path / "run", make_grid(APP, 3)
    start(grid, out, num_rounds=3)
    pushed = grid.num_pushed
    with pytest.raises(InputError, match="resume=True"):
        start(grid, out, num_rounds=7)
    with pytest.raises(InputError, match=r"run.rounds = 3 there, 2 here"):
        start(grid, out, num_rounds=2, resume=True)
    with pytest.raises(InputError, match=r"run.seed = 0 there, 1 here"):
        start(grid, out, num_rounds=9, resume=True, seed=1)
    assert grid.num_pushed == pushed
    assert model_and_metrics(start(grid, out, num_rounds=7, resume=True)) == model_and_metrics(whole)
    pushed = grid.num_pushed
    assert model_and_metrics(start(grid, out, num_rounds=7)) == model_and_metrics(whole)
    assert grid.num_pushed == pushed
    assert lines(out) == lines(tmp_path / "whole")
    assert (loaded(out).settings.run.rounds, loaded(out).summary["rounds"]) == (7, 7)


def test_deadline_can_be_changed_when_a_run_is_resumed(
    make_grid: MakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rounds of 10 s, in which tiers are 1, 2 and 4, and then of 40 s, in which all are in tier 1. A kill before the
    first checkpoint with the new deadline makes no difference."""
    out, grid = tmp_path / "run", make_grid(APP, 3)
    kill_after(grid, 6)
    with pytest.raises(KilledError):
        start(grid, out)
    before = len(lines(out))
    caplog.clear()
    again = make_grid(APP, 3)
    kill_after(again, 0)
    with pytest.raises(KilledError):
        start(again, out, num_rounds=before + 3, resume=True, deadline_s=40.0)
    start(make_grid(APP, 3), out, num_rounds=before + 3, resume=True, deadline_s=40.0)
    assert f"resuming the run in {out} after round {before}" in caplog.messages
    ends_s = [line["time_s"] for line in lines(out)]
    assert ends_s[before - 1 :] == [30.0, 70.0, 108.0, 146.0], "when all are in tier 1, at the last arrival"
    assert lines(out)[-1]["merged"] == [0, 1, 2]
    assert loaded(out).settings.strategy.deadline_s == 40.0


def spoil(message: Message, _: Context) -> Message:
    """Reply with an update that is not finite."""
    arrays = ArrayRecord([np.full(3, np.nan, dtype=np.float32)])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def test_excluded_client_is_readmitted_when_a_run_is_resumed(make_grid: MakeGrid, tmp_path: Path) -> None:
    """A client that had sent no numbers is excluded; its name brings it back."""
    out, grid = tmp_path / "run", make_grid(APP, 3)
    grid.name_by_partition()
    grid.names = {node: f"pi-{name}" for node, name in grid.names.items()}
    plain = grid.handle
    grid.intercept(spoil, partition=1, kind="train")
    options = {"clock": "wall", "latency_s": None, "deadline_s": 0.2}
    start(grid, out, guards=GuardSettings(exclude_after_rejections=1), **options)
    assert [line["excluded"] for line in lines(out) if "excluded" in line] == [[1]]
    grid.handle = plain
    options |= {"guards": GuardSettings(exclude_after_rejections=1), "resume": True}
    with pytest.raises(InputError, match=r"unknown client 'pi-7'; did you mean '.*'\? Available: pi-0, pi-1, pi-2$"):
        start(grid, out, 9, readmit=["pi-7"], **options)
    start(grid, out, 9, readmit=["pi-1"], **options)
    assert any(1 in line["merged"] for line in lines(out)[6:])


def test_assumed_latencies_are_not_in_the_file_of_measured_ones(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Client 1 fails, so nothing is known about it but the assumption that it meets the deadline."""
    out, grid = tmp_path / "run", make_grid(APP, 3)
    grid.name_by_partition()
    grid.intercept(fail, partition=1, kind="train")
    start(grid, out, 3, clock="wall", latency_s=None, deadline_s=0.2)
    assert [row.split(",")[0] for row in (out / "latencies.csv").read_text().splitlines()[1:]] == ["0", "2"]


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_run_without_clients_continues_when_they_are_readmitted(
    make_grid: MakeGrid, tmp_path: Path, clock: str
) -> None:
    out, grid, on_wall = tmp_path / "run", make_grid(APP, 3), clock == "wall"
    grid.name_by_partition()
    plain = grid.handle
    grid.intercept(spoil, kind="train")
    options: dict[str, Any] = {"clock": clock, "guards": GuardSettings(exclude_after_rejections=1)}
    options |= {"latency_s": None, "deadline_s": 0.2} if on_wall else {}
    with pytest.raises(RunStoppedError, match="3 of 3 clients were excluded"):
        start(grid, out, 9, **options)
    before = len(lines(out))
    assert before < 9
    grid.handle = plain
    start(grid, out, 9, resume=True, readmit=["0", "1", "2"], **options)
    assert {client for line in lines(out)[before:] for client in line["merged"]} == {0, 1, 2}


def test_best_model_is_kept(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Of six models, the fourth is the best, also if the run is resumed after the fifth."""

    def fn(round: int, arrays: ArrayRecord) -> MetricRecord:
        scores[round] = (0.9 if round == 4 else 0.1 + round / 100), arrays.to_numpy_ndarrays()[0].tolist()
        return MetricRecord({"accuracy": scores[round][0]})

    scores: dict[int, tuple[float, list[float]]] = {}
    for rounds in ((6,), (5, 6)):
        out = tmp_path / str(len(rounds))
        for num_rounds in rounds:
            result = start(make_grid(APP, 3), out, num_rounds, fn=fn, keep_best=True, resume=True)
        assert result.arrays.to_numpy_ndarrays()[0].tolist() == scores[4][1]
        for keep_best, best in ((True, 4), (False, 6)):
            again = start(make_grid(APP, 3), out, 6, fn=fn, keep_best=keep_best)
            assert again.arrays.to_numpy_ndarrays()[0].tolist() == scores[best][1]
    last = start(make_grid(APP, 3), None, 6, fn=fn)
    assert last.arrays.to_numpy_ndarrays()[0].tolist() == scores[6][1]


def test_run_that_is_killed_in_its_last_evaluation(make_grid: MakeGrid, tmp_path: Path) -> None:
    """There is no round left when it is resumed. Its model counts all the same."""
    grid = make_grid(APP, 3)

    def evaluate_then_fail(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round == 3:
            kill_after(grid, 0)
        return evaluate(round, arrays)

    with pytest.raises(KilledError):
        start(grid, tmp_path, 3, fn=evaluate_then_fail, fraction_evaluate=1.0)
    result = start(make_grid(APP, 3), tmp_path, 3, fraction_evaluate=1.0, resume=True)
    assert model_and_metrics(result)[0] == model_and_metrics(start(make_grid(APP, 3), None, 3))[0]


def test_models_before_keep_best_was_set_are_not_compared(make_grid: MakeGrid, tmp_path: Path) -> None:
    """They were not kept. Round 2 was better than rounds 4 and 5, of which round 4 is better: smaller losses are."""

    def fn(round: int, arrays: ArrayRecord) -> MetricRecord:
        models[round] = arrays.to_numpy_ndarrays()[0].tolist()
        return MetricRecord({"loss": {2: 0.1, 3: math.nan, 4: 0.5}.get(round, 0.9)})

    models: dict[int, list[float]] = {}
    start(make_grid(APP, 3), tmp_path, 3, fn=fn)
    result = start(make_grid(APP, 3), tmp_path, 5, fn=fn, keep_best=True, resume=True)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == models[4]


def test_simulated_run_needs_as_many_nodes_as_before(make_grid: MakeGrid, tmp_path: Path) -> None:
    start(make_grid(APP, 3), tmp_path, 1, latency_s=None)
    with pytest.raises(InputError, match="started with 3 nodes, but 2 are connected"):
        start(make_grid(APP, 2), tmp_path, 2, latency_s=None, resume=True)


def test_model_of_a_finished_run_must_fit(make_grid: MakeGrid, tmp_path: Path) -> None:
    start(make_grid(APP, 3), tmp_path / "run", num_rounds=1)
    strategy = LessonStrategy(10.0, folder=RunFolder(tmp_path / "run"), clock="virtual", latency_s=LATENCIES_S)
    arrays = ArrayRecord({"another name": Array(np.zeros(3, dtype=np.float32))})
    with pytest.raises(InputError, match="different model"):
        strategy.start(make_grid(APP, 3), arrays, 1, train_config=ConfigRecord({"lr": 0.1}))


@pytest.mark.parametrize(
    ("fn", "metric", "higher_is_better"),
    [
        (None, "aggregated_updates", True),
        (lambda *_: MetricRecord({"loss": 0.5}), "test_loss", False),
        (lambda *_: MetricRecord({"val mse": 3.0, "f1": 0.25, "per class": [1.0]}), "eval_val_mse", False),
        (lambda number, _: MetricRecord({"f1": 0.5}) if number == 2 else None, "f1", True),
    ],
)
def test_metric_of_a_run(make_grid: MakeGrid, tmp_path: Path, fn: Any, metric: str, higher_is_better: bool) -> None:
    start(make_grid(APP, 3), tmp_path / "run", num_rounds=3, fn=fn)
    run = loaded(tmp_path / "run")
    assert (run.metric.name, run.metric.higher_is_better) == (metric, higher_is_better)
    if fn is None:
        assert [line["aggregated_updates"] for line in lines(tmp_path / "run")] == [1, 3, 4]
        assert run.summary["loss"] is None


def test_accuracy_in_percent_is_an_error_before_training(make_grid: MakeGrid, tmp_path: Path) -> None:
    grid = make_grid(APP, 3)
    with pytest.raises(InputError, match="accuracy must be from 0 to 1"):
        start(grid, tmp_path / "run", fn=lambda *_: MetricRecord({"accuracy": 10.0}))
    assert grid.num_pushed == 0
    assert not (tmp_path / "run").exists()


def test_invalid_metrics_are_left_out_with_a_warning(
    make_grid: MakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(round: int, _: ArrayRecord) -> MetricRecord:
        return MetricRecord({"f1": 0.5, "auc": math.nan, "accuracy": 0.5 if round < 2 else 50.0})

    result = start(make_grid(APP, 3), tmp_path / "run", num_rounds=3, fn=fn)
    assert [line.get("accuracy") for line in lines(tmp_path / "run")] == [0.5, None, None]
    assert not any("auc" in line for line in lines(tmp_path / "run"))
    assert result.evaluate_metrics_serverapp[3]["accuracy"] == 50.0, "the result has what was reported"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.split(" ")[:3] for line in warnings] == [["round", "0:", "auc"], ["round", "2:", "accuracy"]]


def test_run_whose_updates_fail_can_be_resumed(make_grid: MakeGrid, tmp_path: Path) -> None:
    """Clients fail until the run ends. It continues when they work again."""
    grid, out = make_grid(APP, 3), tmp_path / "run"
    grid.handle = fail
    options = {"latency_s": [5.0, 6.0, 7.0], "max_rounds_without_update": 3}
    with pytest.raises(RunStoppedError, match=r"in 3 rounds: 9 × client error.* with resume=True"):
        start(grid, out, num_rounds=9, **options)
    assert not (out / "summary.json").exists()
    result = start(make_grid(APP, 3), out, num_rounds=9, resume=True, **options)
    assert 9 in result.train_metrics_clientapp


def test_clients_keep_their_numbers_on_the_wall_clock(
    make_grid: MakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three devices by name, key and id; when the run is resumed, they have other ids and come in another order. Each
    has its old number, and thus its estimate, and the names are in the log, in clients.json and latencies.csv."""
    out, grid = tmp_path / "run", make_grid(APP, 3)
    grid.names, grid.keys = {1000: "pi"}, {1000: b"a", 1007: b"b"}
    options = {"clock": "wall", "latency_s": None}
    start(grid, out, num_rounds=2, **options)
    names = ["pi", "key-3e23e816", "1014"]  # printf b | sha256sum begins with 3e23e816
    assert json.loads((out / "clients.json").read_text())["clients"]["name"] == names
    grid.move(1000, 2000)
    grid.move(1007, 1)
    caplog.clear()
    start(grid, out, num_rounds=4, resume=True, **options)
    again = json.loads((out / "nodes.json").read_text())
    assert [(one["name"], one["node_id"]) for one in again] == list(zip(names, [2000, 1, 1014], strict=True))
    assert {client for line in lines(out)[2:] for client in line["merged"]} == {0, 1, 2}, "nobody is a new client"
    rows = (out / "latencies.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == names
    assert any(line.startswith("client pi: ") for line in caplog.messages)
    recording = read_recording(out / "flight.jsonl")
    assert [one.round for one in recording.rounds] == [1, 2, 3, 4]
    assert recording.names == tuple(sorted(names))


def test_node_that_rejoins_with_its_key_is_the_same_client(
    make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.flower.clients.LOOK_EVERY_S", 0.02)
    out, grid = tmp_path / "run", make_grid(APP, 3)
    grid.keys[1007] = b"b"

    def move(round: int, _: ArrayRecord) -> None:
        if round == 2:
            grid.move(1007, 5)

    start(grid, out, num_rounds=30, fn=move, clock="wall", latency_s=None)
    assert len(json.loads((out / "nodes.json").read_text())) == 3
    assert any(1 in line["merged"] for line in lines(out)[10:])


def test_latencies_by_name_on_the_wall_clock(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    grid = make_grid(APP, 3)
    grid.names = dict(zip(sorted(grid.nodes), ["pi", "phone", "tv"], strict=True))
    start(grid, None, num_rounds=1, clock="wall", latency_s={"pi": 1.0, "tv": 2.0, "car": 5.0})
    assert "latency_s has no value for phone; assuming 10 s" in caplog.messages
    with pytest.raises(InputError, match="latency_s must have names of connected nodes"):
        start(grid, None, num_rounds=1, clock="wall", latency_s={"car": 1.0})
