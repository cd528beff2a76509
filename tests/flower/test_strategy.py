"""LessonStrategy in an app written as Flower's quickstart has it, around FedAvg: a line through points."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
)
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from helpers.local_grid import LocalGrid, MakeGrid
from lesson import InputError, Settings, assign_tiers, draw_fleet
from lesson.core.errors import RunStoppedError
from lesson.flower import LessonStrategy
from lesson.settings.guards import GuardSettings
from lesson.strategies import FADAS, FedBuff

NUM_EXAMPLES = [10, 30, 20]
Seen = list[tuple[int, int, float]]


def client_app(seen: Seen) -> ClientApp:
    """Least squares on a client's own points; records which client was asked in which round, with which step size."""
    app, lock = ClientApp(), threading.Lock()

    def points(context: Context) -> tuple[np.ndarray, np.ndarray]:
        client = int(context.node_config["partition-id"])
        rng = np.random.default_rng(client)
        inputs = rng.normal(size=(NUM_EXAMPLES[client], 2))
        return inputs, inputs @ np.array([1.0, -2.0]) + client

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, config = message.content["arrays"], message.content["config"]
        inputs, targets = points(context)
        weights, bias = arrays.to_numpy_ndarrays()
        client = int(context.node_config["partition-id"])
        with lock:
            seen.append((client, int(config["server-round"]), float(config["lr"])))
        time.sleep(float(context.node_config.get("slow-s", 0.0)))
        error = inputs @ weights + bias - targets
        weights -= config["lr"] * inputs.T @ error / len(targets)
        bias -= config["lr"] * error.mean(keepdims=True)
        told = MetricRecord({"train_loss": float((error**2).mean()), "num-examples": len(targets)})
        return Message(RecordDict({"arrays": ArrayRecord([weights, bias]), "metrics": told}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        inputs, targets = points(context)
        weights, bias = message.content["arrays"].to_numpy_ndarrays()
        loss = float(((inputs @ weights + bias - targets) ** 2).mean())
        told = MetricRecord({"eval_loss": loss, "num-examples": len(targets)})
        return Message(RecordDict({"metrics": told}), reply_to=message)

    return app


def run(
    grid: LocalGrid, strategy: FlowerStrategy, num_rounds: int = 4, config: dict[str, Any] | None = None, **options: Any
) -> Result:
    """What the server app of the quickstart does; only the strategy is another."""
    app, results = ServerApp(), list[Result]()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord([np.zeros(2), np.zeros(1)])
        train_config = ConfigRecord({"lr": 0.1} if config is None else config)
        results.append(
            strategy.start(
                grid=grid, initial_arrays=arrays, train_config=train_config, num_rounds=num_rounds, **options
            )
        )

    app(grid=grid, context=Context(1, 1, {}, RecordDict(), {}))
    return results[0]


def values(result: Result) -> np.ndarray:
    return np.concatenate(result.arrays.to_numpy_ndarrays())


def slow(grid: LocalGrid, *slow_s: float) -> LocalGrid:
    for node in grid.nodes.values():
        node.node_config["slow-s"] = slow_s[int(node.node_config["partition-id"])]
    return grid


def test_a_long_deadline_is_flowers_fedavg(make_grid: MakeGrid) -> None:
    """All in tier 1: the same model and the same means of what clients tell."""
    theirs = run(make_grid(client_app([]), 3), FlowerFedAvg(fraction_evaluate=0.0))
    ours = run(make_grid(client_app([]), 3), LessonStrategy(99.0, clock="virtual", latency_s=[5.0, 6.0, 7.0]))
    np.testing.assert_allclose(values(ours), values(theirs), rtol=1e-12)
    assert ours.arrays.to_numpy_ndarrays()[0].dtype == np.float64
    assert ours.train_metrics_clientapp.keys() == theirs.train_metrics_clientapp.keys() == {1, 2, 3, 4}
    for round, told in theirs.train_metrics_clientapp.items():
        assert dict(ours.train_metrics_clientapp[round]) == pytest.approx(dict(told))


def test_step_sizes_follow_tiers_on_the_virtual_clock(make_grid: MakeGrid) -> None:
    """At 10 s, latencies of 5, 16 and 38 s are tiers 1, 2 and 4, by the order of node ids."""
    seen: Seen = []
    run(
        make_grid(client_app(seen), 3),
        LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 16.0, 38.0]),
        num_rounds=5,
    )
    expected = [
        *[(0, round, 0.1) for round in (1, 2, 3, 4, 5)],
        *[(1, round, 0.2) for round in (1, 3, 5)],
        *[(2, round, 0.4) for round in (1, 5)],
    ]
    until_s = time.monotonic() + 60.0
    while len(seen) < len(expected) and time.monotonic() < until_s:  # the run does not wait for who starts in the last
        time.sleep(0.01)
    assert sorted(seen) == expected


def test_a_cap_holds_step_sizes(make_grid: MakeGrid) -> None:
    seen: Seen = []
    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 16.0, 38.0], lr_cap=0.25)
    run(make_grid(client_app(seen), 3), strategy, num_rounds=4)  # the slowest is waited for in the fourth
    assert sorted(one for one in seen if one[1] == 1) == [(0, 1, 0.1), (1, 1, 0.2), (2, 1, 0.25)]


def test_by_default_no_step_size_is_larger_than_in_tier_4(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """Tiers 1, 4 and 6 at 10 s: 0.1, 0.4 and, instead of 0.6, 0.4; a warning says so once."""
    seen: Seen = []
    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 38.0, 58.0])
    run(make_grid(client_app(seen), 3), strategy, num_rounds=12)
    assert {(client, lr) for client, _, lr in seen} == {(0, 0.1), (1, 0.4), (2, 0.4)}
    capped = [(record.levelname, record.getMessage()) for record in caplog.records if "lr_cap" in record.getMessage()]
    line = "client 2: the step size is limited to 0.4 by lr_cap; 6 times that of tier 1 would be 0.6"
    assert capped == [("WARNING", line)]


def test_updates_are_weighted_by_their_examples(make_grid: MakeGrid) -> None:
    """One round from zero: (10·m0 + 30·m1 + 20·m2) / 60, and so of the losses."""
    given: dict[int, np.ndarray] = {}
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        given[client] = np.array([1.0, 2.0, 4.0])[client] * np.ones(2)
        told = MetricRecord({"train_loss": [3.0, 5.0, 9.0][client], "num-examples": NUM_EXAMPLES[client]})
        arrays = ArrayRecord([given[client], np.zeros(1)])
        return Message(RecordDict({"arrays": arrays, "metrics": told}), reply_to=message)

    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 6.0, 7.0])
    result = run(make_grid(app, 3), strategy, num_rounds=1)
    assert values(result) == pytest.approx([(10 + 60 + 80) / 60, (10 + 60 + 80) / 60, 0.0])
    assert dict(result.train_metrics_clientapp[1]) == pytest.approx({"train_loss": (30 + 150 + 180) / 60})


def test_the_server_looks_at_every_model(make_grid: MakeGrid) -> None:
    looked: list[tuple[int, float]] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        looked.append((round, float(arrays.to_numpy_ndarrays()[1][0])))
        return MetricRecord({"bias": looked[-1][1]}) if round != 2 else None

    strategy = LessonStrategy(99.0, clock="virtual", latency_s=[5.0, 6.0, 7.0])
    result = run(make_grid(client_app([]), 3), strategy, num_rounds=3, evaluate_fn=evaluate)
    assert [round for round, _ in looked] == [0, 1, 2, 3]
    assert looked[0][1] == 0.0
    assert {round: told["bias"] for round, told in result.evaluate_metrics_serverapp.items()} == {
        round: bias for round, bias in looked if round != 2
    }


def test_rounds_on_the_wall(make_grid: MakeGrid) -> None:
    """Round 1 waits for everybody, and round 2 starts everybody, as first replies are no measurements. The slow client
    then needs more than one round of 0.4 s: it starts in fewer rounds, with a step size that follows its tier, 0.2 for
    tier 2 and more on a machine that is slow itself."""
    seen: Seen = []
    result = run(slow(make_grid(client_app(seen), 3), 0.0, 0.05, 0.5), LessonStrategy(0.4, clock="wall"), num_rounds=5)
    rounds = {client: [round for who, round, _ in seen if who == client] for client in range(3)}
    assert all(started[0] == 1 and started == sorted(set(started)) for started in rounds.values())
    assert len(rounds[2]) < len(rounds[0])
    assert all(lr == 0.1 for _, round, lr in seen if round <= 2)
    assert all(lr > 0.1 for client, round, lr in seen if client == 2 and round > 2)
    assert 1 in result.train_metrics_clientapp


@pytest.mark.parametrize("kind", [FedBuff, FADAS])
def test_other_strategies_of_this_package(make_grid: MakeGrid, kind: type[FedBuff | FADAS]) -> None:
    """One arrival a round; the model moves with every second one. Two steps of AMSGrad with η = 0.01 and β₁ = 0.9, from
    v̂ = 0, are at most 0.01 and 0.019 long."""
    strategy = LessonStrategy(
        strategy=kind(buffer_size=2, concurrency=2), clock="virtual", latency_s=[5.0, 6.0, 7.0], seed=1
    )
    result = run(make_grid(client_app([]), 3), strategy, num_rounds=4)
    assert result.train_metrics_clientapp.keys() == {2, 4}
    assert np.all(values(result) != 0)
    assert np.all(np.abs(values(result)) < 0.03) == (kind is FADAS)


def test_a_client_that_fails_is_left_out(make_grid: MakeGrid) -> None:
    """Client 1 raises; the others are averaged: the run continues as Flower's does."""
    grid = make_grid(client_app([]), 3)
    answer = grid.handle

    def handle(message: Message, context: Context) -> Message | None:
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            raise RuntimeError("no")
        return answer(message, context)

    grid.handle = handle
    result = run(grid, LessonStrategy(99.0, clock="virtual", latency_s=[5.0, 6.0, 7.0]), num_rounds=2)
    assert result.train_metrics_clientapp.keys() == {1, 2}


def test_a_run_whose_clients_are_all_excluded_is_an_error(
    make_grid: MakeGrid, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody sends what is no number: after two such updates of each, nobody is left."""
    grid = make_grid(client_app([]), 3)
    answer = grid.handle

    def handle(message: Message, context: Context) -> Message | None:
        reply = answer(message, context)
        if reply is not None and message.metadata.message_type == "train":
            record = reply.content["arrays"]
            for name, array in list(record.items()):
                record[name] = Array(np.full_like(array.numpy(), np.nan))
        return reply

    grid.handle = handle
    guards = GuardSettings(exclude_after_rejections=2)
    strategy = LessonStrategy(99.0, clock="virtual", latency_s=[5.0, 6.0, 7.0], guards=guards)
    why = "the run ended after 2 rounds: no client is connected anymore; 3 of 3 clients were excluded"
    with pytest.raises(RunStoppedError, match=why):
        run(grid, strategy, num_rounds=9)
    assert np.all(values(strategy.result) == 0)
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert levels[f"error: {why}"] == "ERROR"
    rejected = {level for line, level in levels.items() if "rejected update from client" in line}
    assert rejected == {"WARNING"}


def test_a_federation_whose_clients_all_fail_ends_with_an_error(make_grid: MakeGrid) -> None:
    grid = make_grid(client_app([]), 3)

    def handle(message: Message, context: Context) -> Message | None:
        raise RuntimeError("no data")

    grid.handle = handle
    strategy = LessonStrategy(
        10.0, clock="virtual", latency_s=[5.0, 16.0, 38.0], max_rounds_without_update=4, fraction_evaluate=0.0
    )
    with pytest.raises(RunStoppedError) as caught:
        run(grid, strategy, num_rounds=99)
    assert str(caught.value).startswith("no update was aggregated in 4 rounds: ")
    assert "client error (code 2: <class 'RuntimeError'>:<'no data'>)" in str(caught.value)
    assert str(caught.value).endswith("; check the logs of the clients, fix the cause and start the run again")
    short = LessonStrategy(99.0, clock="virtual", latency_s=[5.0, 6.0, 7.0], fraction_evaluate=0.0)
    with pytest.raises(RunStoppedError, match="no update was aggregated in 2 rounds: 6 × client error"):
        run(grid, short, num_rounds=2)


def test_timeout_limits_the_wait_for_a_reply(make_grid: MakeGrid, caplog: pytest.LogCaptureFixture) -> None:
    """Client 1 never replies. Without a timeout, the server would wait for it for at least 60 s."""
    grid = make_grid(client_app([]), 3)
    grid.name_by_partition()
    answer = grid.handle

    def handle(message: Message, context: Context) -> Message | None:
        return None if context.node_config["partition-id"] == 1 else answer(message, context)

    grid.handle = handle
    result = run(grid, LessonStrategy(30.0, clock="wall", fraction_evaluate=0.0), num_rounds=1, timeout=1.0)
    assert 1 in result.train_metrics_clientapp
    assert "round 1: rejected update from client 1: no reply" in caplog.text
    on_virtual = LessonStrategy(30.0, clock="virtual", latency_s=[5.0, 6.0, 7.0], fraction_evaluate=0.0)
    caplog.clear()
    run(grid, on_virtual, num_rounds=1, timeout=1.0)
    assert "round 1: rejected update from client 1: no reply" in caplog.text


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf, None])
def test_timeout_is_a_positive_number(make_grid: MakeGrid, timeout: float | None) -> None:
    with pytest.raises(InputError, match=f"timeout must be a finite number > 0, got {timeout!r}"):
        run(make_grid(client_app([]), 3), LessonStrategy(1.0), timeout=timeout)


def test_mods_for_local_differential_privacy(make_grid: MakeGrid) -> None:
    """Client 0 adds (3, 4) to the weights and 12 to the bias: a norm of 13, clipped to 1.3, the norm in the train
    config. Then LocalDpMod clips to 0.65, half of that, and adds no noise, as its sensitivity is 0. The factors of the
    update are thus 0.05. Client 1 is clipped alike. With a sensitivity, there is noise, and rounds continue."""

    def app(sensitivity: float) -> ClientApp:
        made = ClientApp()
        local = LocalDpMod(clipping_norm=0.65, sensitivity=sensitivity, epsilon=5.0, delta=1e-3)

        @made.train(mods=[local, fixedclipping_mod])
        def train(message: Message, context: Context) -> Message:
            weights, bias = message.content["arrays"].to_numpy_ndarrays()
            arrays = ArrayRecord([weights + np.array([3.0, 4.0]), bias + 12.0])
            content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return made

    def trained(sensitivity: float, num_rounds: int) -> np.ndarray:
        strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 16.0], fraction_evaluate=0.0)
        config = {"lr": 0.1, "clipping_norm": 1.3}
        return values(run(make_grid(app(sensitivity), 2), strategy, num_rounds, config))

    assert trained(0.0, 1) == pytest.approx([0.15, 0.2, 0.6])
    noisy = trained(0.1, 4)
    assert np.all(np.isfinite(noisy))
    assert np.all(noisy != trained(0.0, 4))


def test_mod_for_adaptive_clipping_clips_by_a_fixed_norm(make_grid: MakeGrid) -> None:
    """The update (3, 4, 12) has a norm of 13, clipped to 1.3: a factor of 0.1. The norm bit is an ordinary metric here:
    nothing but Flower's wrapper would adapt the norm."""
    app = ClientApp()

    @app.train(mods=[adaptiveclipping_mod])
    def train(message: Message, context: Context) -> Message:
        weights, bias = message.content["arrays"].to_numpy_ndarrays()
        arrays = ArrayRecord([weights + np.array([3.0, 4.0]), bias + 12.0])
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 6.0], fraction_evaluate=0.0)
    result = run(make_grid(app, 2), strategy, 2, {"lr": 0.1, "clipping_norm": 1.3})
    assert values(result) == pytest.approx([0.6, 0.8, 2.4])
    assert [list(told) for told in result.train_metrics_clientapp.values()] == [["norm_bit"], ["norm_bit"]]


def test_too_few_nodes(make_grid: MakeGrid) -> None:
    with pytest.raises(InputError, match="min_available_nodes is 4, but only 3 nodes are connected"):
        run(make_grid(client_app([]), 3), LessonStrategy(1.0, clock="wall", min_available_nodes=4), timeout=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LessonStrategy(0.0), "deadline_s must be a number > 0, got 0.0"),
        (lambda: LessonStrategy(math.nan), "deadline_s must be a number > 0, got nan"),
        (lambda: LessonStrategy(latency_s=[1.0, 0.0]), "latency_s must be > 0 for every client"),
        (lambda: LessonStrategy(latency_s=[1.0, math.nan]), "latency_s must be > 0 for every client"),
        (lambda: LessonStrategy(min_available_nodes=0), "min_available_nodes must be a whole number >= 1, got 0"),
        (lambda: LessonStrategy("30"), "deadline_s must be a number > 0, got '30'"),
        (lambda: LessonStrategy(lr_cap=-1.0), "lr_cap must be a number > 0, got -1.0"),
        (lambda: LessonStrategy(clock="real"), "clock must be 'virtual' or 'wall', got 'real'"),
        (
            lambda: LessonStrategy(strategy="fedbuff"),
            "strategy must be an object of lesson.strategies, such as FedAvg(), got 'fedbuff'",
        ),
        (lambda: LessonStrategy(fraction_evaluate=1.5), "fraction_evaluate must be a number >= 0 and <= 1, got 1.5"),
        (lambda: LessonStrategy(evaluate_every=-1), "evaluate_every must be a whole number >= 0, got -1"),
        (lambda: LessonStrategy(server="adam"), "server must be ServerSettings(…), got 'adam'"),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], LessonStrategy], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        (
            {"clock": "virtual", "latency_s": [1.0, 2.0]},
            None,
            "latency_s must have one value per node, got 2 for 3 nodes",
        ),
        ({"clock": "wall", "latency_s": [1.0] * 4}, None, "latency_s must have one value per node, got 4 for 3"),
        ({"clock": "wall"}, {}, "train_config must have 'lr', the step size of a client in tier 1, got None"),
        ({"clock": "wall"}, {"lr": 0.0}, "train_config must have 'lr', the step size of a client in tier 1, got 0.0"),
        ({"clock": "wall"}, {"lr": "x"}, "train_config must have 'lr', the step size of a client in tier 1, got 'x'"),
        ({"clock": "wall", "lr_key": "eta"}, None, "train_config must have 'eta', the step size of a client in tier 1"),
    ],
)
def test_bad_starts_are_one_line(
    make_grid: MakeGrid, options: dict[str, Any], config: dict[str, Any] | None, message: str
) -> None:
    grid = make_grid(client_app([]), 3)
    with pytest.raises(InputError) as caught:
        run(grid, LessonStrategy(1.0, **options), config=config)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert grid.num_pushed == 0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda strategy: DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 3),
        lambda strategy: DifferentialPrivacyClientSideFixedClipping(strategy, 1.0, 1.0, 3),
        lambda strategy: DifferentialPrivacyServerSideAdaptiveClipping(strategy, 0.1, 3),
        lambda strategy: DifferentialPrivacyClientSideAdaptiveClipping(strategy, 0.1, 3),
    ],
)
def test_strategy_in_a_wrapper_is_a_one_line_error(
    make_grid: MakeGrid, wrap: Callable[[FlowerStrategy], FlowerStrategy]
) -> None:
    """A wrapper would call the methods in rounds of its own, which wait for everybody: FedAvg under another name."""
    grid = make_grid(client_app([]), 3)
    with pytest.raises(InputError, match=r"cannot be wrapped .*: call its own start; .*mods=\[LocalDpMod") as caught:
        run(grid, wrap(LessonStrategy(1.0)))
    assert "\n" not in str(caught.value)
    assert grid.num_pushed == 0
    with pytest.raises(InputError, match="cannot be wrapped"):
        LessonStrategy(1.0).aggregate_train(1, [])


def test_a_model_with_single_numbers_and_counters(make_grid: MakeGrid) -> None:
    """As batch normalization has it: a counter without a shape comes back as one, the rounded mean of 3 and 4."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        counter = message.content["arrays"]["seen"].numpy()
        assert (counter.shape, counter.dtype) == ((), np.int64)
        client = int(context.node_config["partition-id"])
        arrays = ArrayRecord({"seen": Array(np.array(counter + 3 + client)), "w": Array(np.ones(2, dtype=np.float32))})
        told = MetricRecord({"num-examples": [1, 9][client]})
        return Message(RecordDict({"arrays": arrays, "metrics": told}), reply_to=message)

    arrays = ArrayRecord({"seen": Array(np.array(0)), "w": Array(np.zeros(2, dtype=np.float32))})
    strategy = LessonStrategy(10.0, clock="virtual", latency_s=[5.0, 6.0])
    result = strategy.start(make_grid(app, 2), arrays, num_rounds=1, train_config=ConfigRecord({"lr": 0.1}))
    seen = result.arrays["seen"].numpy()
    assert (seen.shape, seen.dtype, int(seen)) == ((), np.int64, 4)


def test_latencies_are_drawn_where_simulation_is_given_none(make_grid: MakeGrid) -> None:
    """As for the paper's clients of the same seed, of whom not all are in one tier."""
    seen: Seen = []
    tiers = assign_tiers(draw_fleet(Settings(), 3, 0).latency_s, 20.0).tolist()
    run(make_grid(client_app(seen), 3), LessonStrategy(20.0, clock="virtual"), num_rounds=6)
    assert len(set(tiers)) > 1
    assert {(client, lr) for client, _, lr in seen} == {(client, 0.1 * tier) for client, tier in enumerate(tiers)}


def test_a_node_that_comes_later_takes_part(make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes are enough to begin; the third is there from the second round on."""
    monkeypatch.setattr("lesson.flower.post.LOOK_EVERY_S", 0.05)
    seen: Seen = []
    grid = make_grid(client_app(seen), 3)
    (late,) = [node for node, context in grid.nodes.items() if context.node_config["partition-id"] == 2]
    grid.offline.add(late)
    strategy = LessonStrategy(0.5, clock="wall")

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 1:
            grid.offline.clear()

    start = strategy.start
    strategy.start = lambda *args, **options: start(*args, **options | {"evaluate_fn": evaluate})  # type: ignore[method-assign]
    run(grid, strategy, num_rounds=12)
    assert {client for client, round, _ in seen if round == 1} == {0, 1}
    assert 2 in {client for client, _, _ in seen}
