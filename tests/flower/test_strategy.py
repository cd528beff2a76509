"""LessonStrategy in an app like Flower's quickstart, compared with FedAvg on linear regression."""

import math
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from local_processes import wait

from helpers.local_grid import LocalGrid, MakeGrid, fail, keep_silent
from lesson import InputError, Settings, assign_tiers, draw_fleet
from lesson.core.errors import RunStoppedError
from lesson.flower import LessonStrategy
from lesson.learn.pipeline import Pipeline
from lesson.settings.sections import GuardSettings
from lesson.strategies.semisync_steps import SemiSyncSteps

NUM_EXAMPLES = [10, 30, 20]
Seen = list[tuple[int, int, float]]


def client_app(seen: Seen) -> ClientApp:
    """Least squares on a client's own points; records which client was asked in which round, with which step size."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, config = int(context.node_config["partition-id"]), message.content["config"]
        seen.append((client, int(config["server-round"]), float(config["lr"])))
        time.sleep(float(context.node_config.get("slow-s", 0.0)))
        inputs = np.random.default_rng(client).normal(size=(NUM_EXAMPLES[client], 2))
        targets = inputs @ np.array([1.0, -2.0]) + client
        weights, bias = message.content["arrays"].to_numpy_ndarrays()
        error = inputs @ weights + bias - targets
        weights -= config["lr"] * inputs.T @ error / len(targets)
        bias -= config["lr"] * error.mean(keepdims=True)
        metrics = MetricRecord({"train_loss": float((error**2).mean()), "num-examples": len(targets)})
        return Message(RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": metrics}), reply_to=message)

    return app


def run(
    grid: LocalGrid, strategy: FlowerStrategy, num_rounds: int = 4, config: dict[str, Any] | None = None, **options: Any
) -> Result:
    arrays, train_config = ArrayRecord([np.zeros(2), np.zeros(1)]), ConfigRecord({"lr": 0.1} | (config or {}))
    return strategy.start(grid, arrays, num_rounds, train_config=train_config, **options)


def virtual(deadline_s: float = 99.0, latency_s: Sequence[float] = (5.0, 6.0, 7.0), **options: Any) -> LessonStrategy:
    return LessonStrategy(deadline_s, clock="virtual", latency_s=latency_s, **{"fraction_evaluate": 0.0} | options)


def values(result: Result) -> np.ndarray:
    return np.concatenate(result.arrays.to_numpy_ndarrays())


def test_long_deadline_equals_flowers_fedavg(make_grid: MakeGrid) -> None:
    """All in tier 1: the same model and the same means of the metrics."""
    theirs = run(make_grid(client_app([]), 3), FlowerFedAvg(fraction_evaluate=0.0))
    ours = run(make_grid(client_app([]), 3), virtual())
    np.testing.assert_allclose(values(ours), values(theirs), rtol=1e-12)
    assert ours.arrays.to_numpy_ndarrays()[0].dtype == np.float64
    assert ours.train_metrics_clientapp.keys() == theirs.train_metrics_clientapp.keys() == {1, 2, 3, 4}
    for round, metrics in theirs.train_metrics_clientapp.items():
        assert dict(ours.train_metrics_clientapp[round]) == pytest.approx(dict(metrics))


def test_results_of_rounds_are_not_kept(make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Pipeline]()
    monkeypatch.setattr("lesson.flower.strategy.Pipeline", lambda *parts: made.append(Pipeline(*parts)) or made[0])  # type: ignore[func-returns-value]
    run(make_grid(client_app([]), 3), virtual())
    assert not list(made[0].results())


def test_step_sizes_follow_tiers_on_the_virtual_clock(make_grid: MakeGrid) -> None:
    """At 10 s, latencies of 5, 16 and 38 s are tiers 1, 2 and 4, by the order of node ids."""
    seen: Seen = []
    run(make_grid(client_app(seen), 3), virtual(10.0, [5.0, 16.0, 38.0]), num_rounds=5)
    expected = [
        *[(0, round, 0.1) for round in (1, 2, 3, 4, 5)],
        *[(1, round, 0.2) for round in (1, 3, 5)],
        *[(2, round, 0.4) for round in (1, 5)],
    ]
    wait("the clients of round 5, for which the run does not wait", 60, lambda: len(seen) >= len(expected))
    assert sorted(seen) == expected


@pytest.mark.parametrize(("lr_cap", "largest"), [(None, 0.4), (0.25, 0.25)])
def test_step_sizes_are_limited(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture, lr_cap: float | None, largest: float
) -> None:
    """Tiers 1, 2 and 6 at 10 s: 0.1, 0.2 and, instead of 0.6, by default that of tier 4; a warning says so once."""
    seen: Seen = []
    run(make_grid(client_app(seen), 3), virtual(10.0, [5.0, 16.0, 58.0], lr_cap=lr_cap), num_rounds=12)
    assert {(client, lr) for client, _, lr in seen} == {(0, 0.1), (1, 0.2), (2, largest)}
    capped = [(record.levelname, record.getMessage()) for record in caplog.records if "lr_cap" in record.getMessage()]
    assert [(level, line.split(":")[0]) for level, line in capped] == [("WARNING", "client 2")]
    assert any(line.startswith("LessonStrategy: ") for line in caplog.messages)


def test_server_evaluates_every_model(make_grid: MakeGrid) -> None:
    biases: dict[int, float] = {}

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        biases[round] = float(arrays.to_numpy_ndarrays()[1][0])
        return MetricRecord({"bias": biases[round]}) if round != 2 else None

    result = run(make_grid(client_app([]), 3), virtual(), num_rounds=3, evaluate_fn=evaluate)
    assert (list(biases), biases[0]) == ([0, 1, 2, 3], 0.0)
    del biases[2]
    assert {round: metrics["bias"] for round, metrics in result.evaluate_metrics_serverapp.items()} == biases


def test_rounds_on_the_wall_clock(make_grid: MakeGrid) -> None:
    """Round 1 waits for everybody, and round 2 starts everybody, as first replies are no measurements. The slow client
    then needs more than one round of 0.4 s: it starts in fewer rounds, with a step size that follows its tier, 0.2 for
    tier 2 and more on a machine that is slow itself."""
    seen: Seen = []
    grid = make_grid(client_app(seen), 3)
    grid.configure("slow-s", 0.0, 0.05, 0.5)
    result = run(grid, LessonStrategy(0.4, clock="wall", fraction_evaluate=0.0), num_rounds=5)
    rounds = {client: [round for who, round, _ in seen if who == client] for client in range(3)}
    assert all(started[0] == 1 and started == sorted(set(started)) for started in rounds.values())
    assert len(rounds[2]) < len(rounds[0])
    assert all(lr == 0.1 for _, round, lr in seen if round <= 2)
    assert all(lr > 0.1 for client, round, lr in seen if client == 2 and round > 2)
    assert 1 in result.train_metrics_clientapp


def test_run_whose_clients_are_all_excluded_is_an_error(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    """Everybody sends values that are not numbers: after two such updates of each, nobody is left."""

    def spoil(message: Message, _: Context) -> Message:
        arrays = ArrayRecord([np.full(2, np.nan), np.zeros(1)])
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid, strategy = make_grid(ClientApp(), 3), virtual(guards=GuardSettings(exclude_after_rejections=2))
    grid.handle = spoil
    with pytest.raises(RunStoppedError, match=r"ended after 2 rounds: .*; 3 of 3 clients were excluded"):
        run(grid, strategy, num_rounds=9)
    assert np.all(values(strategy.result) == 0)
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert [level for line, level in levels.items() if line.startswith("error: the run ended")] == ["ERROR"]
    assert {level for line, level in levels.items() if "rejected update from client" in line} == {"WARNING"}


def test_run_whose_clients_all_fail_is_an_error(make_grid: MakeGrid) -> None:
    grid = make_grid(client_app([]), 3)
    grid.handle = fail
    with pytest.raises(RunStoppedError, match=r"in 4 rounds: .*client error .*no data"):
        run(grid, virtual(10.0, [5.0, 16.0, 38.0], max_rounds_without_update=4), num_rounds=99)
    with pytest.raises(RunStoppedError, match="in 2 rounds: 6 × client error"):
        run(grid, virtual(), num_rounds=2)


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_timeout_limits_the_wait_for_a_reply(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture, clock: Literal["wall", "virtual"]
) -> None:
    """Client 1 never replies. Without a timeout, the server would wait for it for at least 60 s."""
    grid = make_grid(client_app([]), 3)
    grid.name_by_partition()
    grid.intercept(keep_silent, partition=1)
    latency_s = None if clock == "wall" else [5.0, 6.0, 7.0]
    strategy = LessonStrategy(30.0, clock=clock, latency_s=latency_s, fraction_evaluate=0.0)
    assert 1 in run(grid, strategy, num_rounds=1, timeout=1.0).train_metrics_clientapp
    assert "round 1: rejected update from client 1: no reply" in caplog.text


def test_mods_for_local_differential_privacy(make_grid: MakeGrid) -> None:
    """Client 0 adds (3, 4) to the weights and 12 to the bias: a norm of 13, clipped to 1.3, the norm in the train
    config. Then LocalDpMod clips to 0.65, half of that, and adds no noise, as its sensitivity is 0. The factors of the
    update are thus 0.05. Client 1 is clipped alike."""
    app = ClientApp()

    @app.train(mods=[LocalDpMod(clipping_norm=0.65, sensitivity=0.0, epsilon=5.0, delta=1e-3), fixedclipping_mod])
    def train(message: Message, context: Context) -> Message:
        weights, bias = message.content["arrays"].to_numpy_ndarrays()
        arrays = ArrayRecord([weights + np.array([3.0, 4.0]), bias + 12.0])
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    result = run(make_grid(app, 2), virtual(10.0, [5.0, 16.0]), 1, {"clipping_norm": 1.3})
    assert values(result) == pytest.approx([0.15, 0.2, 0.6])


@pytest.mark.parametrize(
    ("options", "start", "message"),
    [
        ({"deadline_s": 0.0}, {}, "deadline_s must be > 0"),
        ({"latency_s": [1.0, math.nan, 2.0]}, {}, "latency_s must be > 0"),
        ({"latency_s": {"pi": 0.0}}, {}, "latency_s must be > 0"),
        ({"latency_s": [1.0, 2.0]}, {}, "latency_s must have one value per node, got 2 for 3 nodes"),
        ({"min_available_nodes": 0}, {}, "min_available_nodes must be"),
        ({"min_available_nodes": 4}, {"timeout": 0.01}, "min_available_nodes is 4, but only 3 nodes are connected"),
        ({"max_rounds_without_update": 0}, {}, "max_rounds_without_update must be"),
        ({"lr_cap": -1.0}, {}, "lr_cap must be"),
        ({"clock": "real"}, {}, "clock must be 'wall' or 'virtual'"),
        (
            {"strategy": SemiSyncSteps(), "clock": "virtual"},
            {},
            "on Flower, use clock='wall' and add the mod report_times",
        ),
        ({"strategy": "fedbuff"}, {}, "strategy must be an object of lesson.strategies"),
        ({"fraction_evaluate": 1.5}, {}, "fraction_evaluate must be"),
        ({"evaluate_every": -1}, {}, "evaluate_every must be"),
        ({"server": "adam"}, {}, "server must be ServerSettings"),
        ({"guards": "strict"}, {}, "guards must be GuardSettings"),
        ({"folder": "runs/one"}, {}, "folder must be RunFolder"),
        ({"first_round_timeout_s": 0.0}, {}, "first_round_timeout_s must be"),
        ({"keep_best": True}, {}, "keep_best requires evaluate_fn"),
        ({}, {"config": {"local-steps": 0.5}}, "as 'local-steps', got 0.5"),
        ({}, {"num_rounds": 0}, "num_rounds must be >= 1, got 0"),
        ({}, {"num_rounds": "3"}, "num_rounds must be a whole number, got '3'"),
        ({}, {"timeout": math.inf}, "timeout must be a finite number"),
        ({}, {"config": {"lr": 0.0}}, "train_config must have 'lr'"),
        ({}, {"config": {"lr": "x"}}, r"train_config must have 'lr', .*such as ConfigRecord\({'lr': 0.01}\), got 'x'"),
        ({"lr_key": "eta"}, {}, "train_config must have 'eta'"),
    ],
)
def test_invalid_arguments_are_one_line_errors(
    make_grid: MakeGrid, options: dict[str, Any], start: dict[str, Any], message: str
) -> None:
    grid = make_grid(client_app([]), 3)
    with pytest.raises(InputError, match=message) as caught:
        run(grid, LessonStrategy(**{"deadline_s": 1.0, "clock": "wall"} | options), **start)
    assert "\n" not in str(caught.value)
    assert grid.num_pushed == 0


@pytest.mark.parametrize("arrays", [ArrayRecord(), ArrayRecord([np.array([np.nan])]), [np.zeros(1)]])
def test_initial_arrays_must_hold_a_model(make_grid: MakeGrid, arrays: Any) -> None:
    with pytest.raises(InputError, match="initial_arrays must"):
        virtual().start(make_grid(client_app([]), 3), arrays, train_config=ConfigRecord({"lr": 0.1}))


def test_wrapped_strategy_is_an_error(make_grid: MakeGrid) -> None:
    """A wrapper would call the methods in rounds of its own, which wait for everybody: FedAvg under another name."""
    grid = make_grid(client_app([]), 3)
    with pytest.raises(InputError, match="cannot be wrapped"):
        run(grid, DifferentialPrivacyServerSideFixedClipping(LessonStrategy(1.0), 1.0, 1.0, 3))
    with pytest.raises(InputError, match="cannot be wrapped"):
        LessonStrategy(1.0).aggregate_train(1, [])


def test_latencies_are_drawn_in_simulation(make_grid: MakeGrid) -> None:
    """As for the paper's clients of the same seed, of whom not all are in one tier."""
    seen: Seen = []
    tiers = assign_tiers(draw_fleet(Settings(), 3, 0).latency_s, 20.0).tolist()
    run(make_grid(client_app(seen), 3), LessonStrategy(20.0, clock="virtual"), num_rounds=6)
    assert len(set(tiers)) > 1
    assert {(client, lr) for client, _, lr in seen} == {(client, 0.1 * tier) for client, tier in enumerate(tiers)}


def test_node_that_connects_later_takes_part(make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes are enough to begin; the third is there from the second round on."""
    monkeypatch.setattr("lesson.flower.clients.LOOK_EVERY_S", 0.05)
    seen: Seen = []
    grid = make_grid(client_app(seen), 3)
    grid.offline.add(grid.node(2))

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.offline.clear()

    strategy = LessonStrategy(0.3, clock="wall", fraction_evaluate=0.0)
    run(grid, strategy, num_rounds=8, evaluate_fn=evaluate)
    assert {client for client, round, _ in seen if round == 1} == {0, 1}
    assert 2 in {client for client, _, _ in seen}
