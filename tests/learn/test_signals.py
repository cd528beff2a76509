"""Signals that strategies read, against numbers worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.fleets import make_fleet
from helpers.lanes import Models, make_models, received_models, trained, updates
from helpers.resuming import check_resumes
from helpers.small_tasks import TinyNet, image_workload, tiny_data, tiny_logits, tiny_task, tiny_workload
from lesson import FedAvg, InputError, Settings, make_loop
from lesson.clock.signals import Signals
from lesson.core.errors import DivergedError
from lesson.learn import evaluation
from lesson.learn.partition import Partition, draw_pool, make_partition
from lesson.learn.workload import hold_out
from lesson.runs.resolve import resolve
from lesson.strategies.base import NO_UPDATES

NAMES = frozenset({"update_loss", "update_deviation", "client_accuracy", "weather"})
VALUES: dict[str, Any] = {"num_clients": 6, "batch_size": 5, "weighting": "samples", "beta": 0.5}
TIFL = {"name": "tifl", "num_tiers": 3, "interval": 2}
REFL = {"name": "refl", "clients_per_round": 2, "hold_off": 1, "adaptive_target": True}


class Curious(FedAvg):
    needs = NAMES


def signals_of(models: Models, version: int = 0) -> Signals:
    """Return the signals of a strategy that needs all of them, when a version is the newest one."""
    models.lane.version = version
    return models.pipeline(make_loop(Curious(), make_fleet([1.0]))).loop.signals


@pytest.fixture
def models() -> Models:
    return make_models(tiny_workload(4), trainer="reference")


def test_update_loss_is_the_rms_over_the_first_minibatch(models: Models) -> None:
    workload, data = tiny_workload(4), tiny_data()
    losses = signals_of(models, 0)["update_loss"](replace(updates([2, 0]), index=np.array([3, 7])))
    for client, index, loss in zip((2, 0), (3, 7), losses.tolist(), strict=True):
        drawn = workload.sampler.batches(torch.tensor([client]), torch.tensor([index]), 1)
        logits = tiny_logits(models.versions[0], data.train_inputs[drawn[0, 0]])
        labels = torch.from_numpy(data.train_targets[drawn[0, 0]])
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        assert loss == pytest.approx(math.sqrt(float((each.double() ** 2).mean())), rel=1e-6)
    models.versions[1] = torch.zeros_like(models.versions[0])
    zeros = signals_of(models, 1)["update_loss"](updates([1, 3]))
    assert zeros == pytest.approx([math.log(3)] * 2, rel=1e-6), "all logits are 0, and there are three classes"
    assert signals_of(models, 1)["update_loss"](NO_UPDATES).shape == (0,)
    models.versions[0][:] = np.inf
    with pytest.raises(DivergedError, match="loss"):
        signals_of(models, 0)["update_loss"](updates([0]))


def test_deviations_by_hand() -> None:
    """The fresh updates, from (5, 5), are (1, 0) and (3, 0), so û = (2, 0) and ‖û‖² = 4.

    Client 2's update, from (2, 2), is (2, 3): (u + 2·û) / 3 = (2, 1) deviates by 1² / 4. Client 3's is (−1, 6): (1, 2)
    deviates by (1² + 2²) / 4. Client 4's is û itself.
    """
    models = received_models({0: [6, 5], 1: [8, 5], 2: [4, 5], 3: [1, 8], 4: [4, 2]})
    deviation = signals_of(models, 1)["update_deviation"]
    assert deviation(updates([0, 1], 1), updates([3, 2, 4])) == pytest.approx([1.25, 0.25, 0.0])
    assert deviation(updates([1, 0], 1), updates([4, 2])) == pytest.approx([0.0, 0.25])
    assert deviation(updates([0, 1], 1), NO_UPDATES).shape == (0,)


def test_updates_without_a_deviation() -> None:
    """A fresh update that is not finite is left out: û = (1, 0) and n = 1. For u = (1, 3), (u + û) / 2 = (1, 1.5)."""
    models = received_models({0: [6, 5], 1: [np.nan, 5], 2: [3, 5], 3: [np.inf, 2], 5: [5, 5]})
    deviation = signals_of(models, 1)["update_deviation"]
    found = deviation(updates([0, 1], 1), updates([2, 3]))
    assert found == pytest.approx([1.5**2, np.nan], nan_ok=True)
    for fresh in (updates([5], 1), NO_UPDATES):  # û is 0, or nothing is fresh
        assert np.isnan(deviation(fresh, updates([2]))).all()


def test_deviations_of_simulated_updates(models: Models) -> None:
    """With steps from two versions, one of them scaled; the signal changes no model."""
    models.versions[1] = models.versions[0] + 0.01
    mean = sum((trained(models, client, 1) - models.versions[1]).double() for client in (0, 1)) / 2
    moved = (trained(models, 2, 0, 0.3) - models.versions[0]).double()
    expected = float((mean - (moved + 2 * mean) / 3).square().sum() / mean.square().sum())
    before = models.lane.state()
    deviation = signals_of(models, 1)["update_deviation"]
    assert deviation(updates([0, 1], 1), updates([2], scale=3.0)) == pytest.approx([expected], rel=1e-4)
    assert all(np.array_equal(vector, before[name]) for name, vector in models.lane.state().items())


# The accuracy on samples that clients hold out


def test_tenth_is_held_out_by_each_client() -> None:
    """Of 25, 14, 2 and 1 samples: round(2.5) = 2, round(1.4) = 1, one at least, and none of a single one."""
    numbers = np.random.default_rng(0).permutation(100)
    whole = Partition.of([numbers[:25], numbers[25:39], numbers[39:41], numbers[41:42]])
    training, held = hold_out(whole, seed=3)
    assert held.num_samples.tolist() == [2, 1, 1, 0]
    for client in range(4):
        assert sorted([*training[client], *held[client]]) == sorted(whole[client])
    fewer, _ = hold_out(Partition.of([whole[0], whole[1]]), seed=3)
    assert np.array_equal(fewer[1], training[1]), "a client's draw depends on others"
    assert not np.array_equal(hold_out(whole, seed=4)[1].samples, held.samples)
    with pytest.raises(InputError, match="hold one out"):
        hold_out(Partition.of([np.array([3]), np.array([1])]), seed=0)


def test_no_sample_of_a_pool_is_both_trained_on_and_held_out() -> None:
    pool = draw_pool(tiny_data().train_targets, np.full(5, 150), 0.5, seed=0)
    training, held = hold_out(pool, seed=0)
    for client in range(5):
        assert not set(training[client]) & set(held[client])
        assert len(np.unique(held[client])) == max(1, round(0.1 * len(np.unique(pool[client]))))
        assert len(training[client]) + len(held[client]) == 150


def test_client_accuracy_is_that_on_held_out_samples() -> None:
    data = tiny_data(900)
    workload = image_workload(Settings(**VALUES), data, 6, 0, TinyNet, holding_out=True)
    models = make_models(workload)
    signals = signals_of(models, 0)
    assert sorted(signals) == ["client_accuracy", "update_deviation", "update_loss"]
    assert workload.held_out is not None
    for client, given in enumerate(signals["client_accuracy"].tolist()):
        held = workload.held_out[client]
        predicted = tiny_logits(models.versions[0], data.train_inputs[held]).argmax(1)
        assert given == np.mean(predicted.numpy() == data.train_targets[held])


def test_clients_hold_out_samples_only_if_the_strategy_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TiFL asks in rounds 1, 3 and 5."""
    data, asked, scores = tiny_data(900), list[int](), evaluation.client_scores
    monkeypatch.setattr(evaluation, "client_scores", lambda *given: asked.append(0) or scores(*given))  # type: ignore[func-returns-value]
    whole = make_partition(Settings(**VALUES), len(data.train_targets), data.train_targets).num_samples
    for strategy, is_less in ((TIFL, True), ({"name": "fedavg"}, False)):
        run = resolve(Settings(**VALUES, strategy=strategy, run={"rounds": 5, "device": "cpu"}), tiny_task(900)).build()
        for _ in range(5):
            run.pipeline.step()
        run.pipeline.close()
        assert np.array_equal(run.pipeline.loop.fleet.client_weight, run.pipeline.loop.fleet.num_samples)
        assert np.all((run.pipeline.loop.fleet.num_samples < whole) == is_less)
    assert len(asked) == 3


@pytest.mark.parametrize("strategy", [TIFL, REFL], ids=["tifl", "refl"])
def test_resumed_run_with_signals_is_bit_identical(strategy: dict[str, Any], tmp_path: Path) -> None:
    run = {"rounds": 14, "eval_every_s": 50.0, "device": "cpu", "checkpoint_every_s": 1e-9}
    check_resumes(Settings(**VALUES, strategy=strategy, run=run), tmp_path, after_round=7, task=tiny_task(900))
