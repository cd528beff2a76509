"""Signals that are functions: losses of updates and deviations of stale ones, against numbers worked out by hand."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.model_servers import make_server, trained, updates
from helpers.resuming import check_resumes
from helpers.small_tasks import TinyNet, tiny_data, tiny_task, tiny_workload
from lesson import Settings
from lesson.clock.faults import CorruptedUploads
from lesson.core.errors import DivergedError
from lesson.learn.backend import WindowRule
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.remote import Received
from lesson.learn.robust.guard import MergeGuard
from lesson.settings.faults import FaultSettings
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings, TrainingSettings
from lesson.strategies.base import NO_UPDATES, Merge, Updates

NAMES = frozenset({"update_loss", "update_deviation"})


@pytest.fixture
def server() -> Iterator[ModelServer]:
    made = make_server(tiny_workload(4), trainer="reference")
    yield made
    made.close()


def test_losses_of_updates_are_root_mean_squares_over_their_first_minibatch(server: ModelServer) -> None:
    model, data, workload = TinyNet(), tiny_data(), tiny_workload(4)
    torch.nn.utils.vector_to_parameters(server.versions[0].clone(), model.parameters())
    given = replace(some([2, 0], 0), index=np.array([3, 7]))
    losses = server.signals(NAMES, 0)["update_loss"](given)
    for client, index, loss in zip((2, 0), (3, 7), losses.tolist(), strict=True):
        drawn = workload.sampler.batches(
            torch.tensor([client]), torch.tensor([index]), 1, 1000, 1, torch.zeros(1).long()
        )
        samples = drawn[0, 0].numpy()
        assert len(samples) == workload.batch_size
        assert np.isin(samples, workload.holdings[client]).all()
        with torch.no_grad():
            logits = model(torch.from_numpy(data.train_images[samples]).float() / 255)
        each = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.train_labels[samples]), reduction="none")
        assert loss == pytest.approx(math.sqrt(float((each.double() ** 2).mean())), rel=1e-6)
    server.versions[1] = torch.zeros_like(server.versions[0])
    zeros = server.signals(NAMES, 1)["update_loss"](some([1, 3], 0))
    assert zeros == pytest.approx([math.log(3)] * 2, rel=1e-6), "all logits are 0, and there are three classes"
    assert server.signals(NAMES, 1)["update_loss"](NO_UPDATES).shape == (0,)


def test_a_loss_that_is_not_finite_stops_the_run(server: ModelServer) -> None:
    server.versions[0][:] = np.inf
    with pytest.raises(DivergedError, match="loss"):
        server.signals(NAMES, 0)["update_loss"](some([0], 0))


def received(models: dict[int, list[float]]) -> ModelServer:
    """Return a server whose version 0 is (2, 2) and version 1 is (5, 5), with models that remote clients have sent."""
    held = Received()
    held.held = {(client, 0): np.array(model, dtype=np.float32) for client, model in models.items()}
    optimizer, guard = ServerOptimizer(ServerSettings()), MergeGuard(GuardSettings())
    server = ModelServer(torch.full((2,), 2.0), held, TrainingSettings(), optimizer, guard, needs=NAMES)
    server.versions[1] = torch.full((2,), 5.0)
    return server


def some(clients: list[int], base: int) -> Updates:
    return updates(clients, [base] * len(clients), [1.0] * len(clients))


def test_deviations_by_hand() -> None:
    """The fresh updates, from (5, 5), are (1, 0) and (3, 0), so û = (2, 0) and ‖û‖² = 4.

    Client 2's update, from (2, 2), is (2, 3): (u + 2·û) / 3 = (2, 1) deviates by 1² / 4. Client 3's is (−1, 6): (1, 2)
    deviates by (1² + 2²) / 4. Client 4's is û itself.
    """
    server = received({0: [6, 5], 1: [8, 5], 2: [4, 5], 3: [1, 8], 4: [4, 2]})
    deviation = server.signals(NAMES, 1)["update_deviation"]
    assert deviation(some([0, 1], 1), some([3, 2, 4], 0)) == pytest.approx([1.25, 0.25, 0.0])
    mixed = replace(some([4, 2], 0), base_version=np.array([0, 0]))
    assert deviation(some([1, 0], 1), mixed) == pytest.approx([0.0, 0.25]), "in the order of the stale updates"
    assert deviation(some([0, 1], 1), NO_UPDATES).shape == (0,)


def test_updates_without_a_deviation() -> None:
    """A fresh update that is not finite is left out: û = (1, 0) and n = 1. For u = (1, 3), (u + û) / 2 = (1, 1.5)."""
    server = received({0: [6, 5], 1: [np.nan, 5], 2: [3, 5], 3: [np.inf, 2], 4: [4, 5], 5: [5, 5]})
    deviation = server.signals(NAMES, 1)["update_deviation"]
    found = deviation(some([0, 1], 1), some([2, 3], 0))
    assert found[0] == pytest.approx(1.5**2)
    assert np.isnan(found[1])
    assert np.isnan(deviation(some([5], 1), some([2], 0))).all(), "û is 0"
    assert np.isnan(deviation(NO_UPDATES, some([2], 0))).all(), "nothing is fresh"


@pytest.mark.parametrize("trainer", ["reference", "fused"])
def test_deviations_of_simulated_updates(trainer: Any) -> None:
    """As the trainer gives them, with steps from two versions, one of them scaled; the signal changes no model."""
    server = make_server(tiny_workload(4), trainer=trainer)
    server.versions[1] = server.versions[0] + 0.01
    fresh, stale = some([0, 1], 1), replace(some([2], 0), lr_scale=np.array([3.0]))
    mean = sum((trained(server, client, 1, 0.1) - server.versions[1]).double() for client in (0, 1)) / 2
    moved = (trained(server, 2, 0, 0.3) - server.versions[0]).double()
    expected = float((mean - (moved + 2 * mean) / 3).square().sum() / mean.square().sum())
    before = server.state()
    assert server.signals(NAMES, 1)["update_deviation"](fresh, stale) == pytest.approx([expected], rel=1e-4)
    assert all(np.array_equal(vector, before[name]) for name, vector in server.state().items())
    server.close()


def test_injected_faults_are_in_the_deviations() -> None:
    """Updates of all clients are multiplied by 10, so their deviations are the same as without faults."""
    faults = CorruptedUploads.of(FaultSettings(corrupting_clients=1.0, scaled=1.0, scale=10.0), 4, 0)
    for given in (None, faults):
        server = make_server(tiny_workload(4), trainer="reference", faults=given)
        found = server.signals(NAMES, 0)["update_deviation"](some([0], 0), some([1], 0))
        if given is None:
            plain = found
        server.close()
    assert found == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_reading_a_function_executes_what_is_queued(name: str) -> None:
    server = make_server(tiny_workload(4), trainer="fused", window=WindowRule(10**6))
    merge = Merge(np.array([0]), np.array([0.5]))
    server.merge(some([0], 0), merge.weights, merge, 0, round=1)
    signals = server.signals(NAMES, 1)
    assert name in signals
    assert list(server.versions) == [0]
    assert callable(signals[name])
    assert list(server.versions) == [0, 1]
    server.merge(some([1], 1), merge.weights, merge, 1, round=2)
    assert list(server.versions) == [0, 1, 2], "the aggregation of the same round is not queued"
    server.close()


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "oort", "clients_per_round": 2, "exploration_decay": 0.5, "pacer_window": 3},
        {"name": "refl", "clients_per_round": 2, "hold_off": 1, "adaptive_target": True},
    ],
    ids=["oort", "refl"],
)
def test_a_resumed_run_is_bit_identical(strategy: dict[str, Any], tmp_path: Path) -> None:
    run = {"rounds": 14, "eval_every_s": 50.0, "device": "cpu", "checkpoint_every_s": 1e-9}
    settings = Settings(num_clients=6, batch_size=5, weighting="samples", beta=0.5, strategy=strategy, run=run)
    check_resumes(settings, tmp_path, after_round=7, task=tiny_task(900))
