"""What clients hold out, and the accuracy on it that strategies are told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.fleets import make_fleet
from helpers.model_servers import make_server
from helpers.resuming import check_resumes
from helpers.small_tasks import TinyNet, image_workload, tiny_data, tiny_task
from lesson import FedAvg, InputError, Settings, Simulation
from lesson.learn.build import build
from lesson.learn.cpu import CpuBackend
from lesson.learn.partition import Holdings, Partition, draw_pool, make_partition
from lesson.learn.scores import ClientScores
from lesson.learn.workload import hold_out
from lesson.strategies import TiFL

VALUES: dict[str, Any] = {"num_clients": 6, "batch_size": 5, "weighting": "samples", "beta": 0.5}
STRATEGY = {"name": "tifl", "num_tiers": 3, "interval": 2}


def test_a_tenth_is_held_out_by_each_client() -> None:
    """Of 25, 14, 2 and 1 samples: round(2.5) = 2, round(1.4) = 1, one at least, and none of a single one."""
    numbers = np.random.default_rng(0).permutation(100)
    whole = Partition.of([numbers[:25], numbers[25:39], numbers[39:41], numbers[41:42]])
    training, held = hold_out(whole, seed=3)
    assert held.num_samples.tolist() == [2, 1, 1, 0]
    for client in range(4):
        assert not set(training[client]) & set(held[client])
        assert sorted([*training[client], *held[client]]) == sorted(whole[client])
    fewer, _ = hold_out(Partition.of([whole[0], whole[1]]), seed=3)
    assert np.array_equal(fewer[1], training[1]), "a client's draw depends on others"
    assert not np.array_equal(hold_out(whole, seed=4)[1].samples, held.samples)


def test_nothing_of_a_pool_is_on_both_sides() -> None:
    pool = draw_pool(tiny_data().train_labels, np.full(20, 150), 0.5, seed=0)
    training, held = hold_out(pool, seed=0)
    for client in range(20):
        assert len(np.unique(pool[client])) < 150
        assert not set(training[client]) & set(held[client])
        assert len(np.unique(held[client])) == max(1, round(0.1 * len(np.unique(pool[client]))))
        assert len(training[client]) + len(held[client]) == 150


def test_clients_with_one_sample_each_cannot_hold_any_out() -> None:
    with pytest.raises(InputError, match="needed to hold one out"):
        hold_out(Partition.of([np.array([3]), np.array([1])]), seed=0)


def test_the_signal_is_the_accuracy_on_what_is_held_out() -> None:
    data = tiny_data(900)
    workload = image_workload(Settings(**VALUES), data, 6, 0, TinyNet, holding_out=True)
    server = make_server(workload)
    assert workload.held_out is not None
    model = TinyNet()
    torch.nn.utils.vector_to_parameters(server.versions[0].clone(), model.parameters())
    signals = server.signals(frozenset({"client_accuracy", "weather"}), 0)
    assert list(signals) == ["client_accuracy"]
    assert len(signals) == 1
    for client, given in enumerate(signals["client_accuracy"].tolist()):
        samples = workload.held_out[client]
        logits = model(torch.from_numpy(data.train_images[samples]).float() / 255)
        right = int((logits.argmax(1) == torch.from_numpy(data.train_labels[samples])).sum())
        assert given == right / len(samples)
    server.close()


def test_only_a_strategy_that_asks_has_clients_hold_out_and_only_rounds_that_look_evaluate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, looks = tiny_data(900), []
    sections = {**VALUES, "strategy": STRATEGY, "run": {"rounds": 5, "device": "cpu"}}
    run = build(Settings(**sections), task=tiny_task(900))
    simulation, workload = run.loop, run.evaluator.workload
    whole = make_partition(Settings(**VALUES), len(data.train_labels), data.train_labels, 6, 0)
    assert np.array_equal(simulation.fleet.num_samples, workload.holdings.num_samples)
    assert np.array_equal(simulation.fleet.client_weight, workload.holdings.num_samples)
    assert np.all(simulation.fleet.num_samples < whole.num_samples)
    scores = CpuBackend.client_scores

    def look(self: CpuBackend, vector: torch.Tensor, holdings: Holdings) -> ClientScores:
        looks.append(simulation.version)
        return scores(self, vector, holdings)

    monkeypatch.setattr(CpuBackend, "client_scores", look)
    for _ in range(5):
        simulation.step()
    assert looks == [0, 2, 4]
    run.close()
    run = build(Settings(**sections | {"strategy": {"name": "fedavg"}}), task=tiny_task(900))
    workload = run.evaluator.workload
    assert workload.held_out is None
    assert all(np.array_equal(workload.holdings[client], whole[client]) for client in range(6))
    assert not run.loop._view(np.empty(0, dtype=np.int64)).signals
    run.close()


def test_without_held_out_samples_there_is_no_signal() -> None:
    server = make_server(image_workload(Settings(**VALUES), tiny_data(900), 6, 0, TinyNet))
    simulation = Simulation(
        TiFL(num_tiers=3, interval=1), make_fleet([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), model_server=server
    )
    for _ in range(3):
        simulation.step()
    assert simulation.strategy.state()["accuracy"] == []
    assert not Simulation(FedAvg(), make_fleet([1.0]), model_server=server)._view(np.empty(0, dtype=np.int64)).signals
    server.close()


def test_a_resumed_run_with_held_out_samples_is_bit_identical(tmp_path: Path) -> None:
    run = {"rounds": 14, "eval_every_s": 50.0, "device": "cpu", "checkpoint_every_s": 1e-9}
    check_resumes(Settings(**VALUES, strategy=STRATEGY, run=run), tmp_path, after_round=7, task=tiny_task(900))
    assert "has not gained" in (tmp_path / "whole" / "metrics.jsonl").read_text()
