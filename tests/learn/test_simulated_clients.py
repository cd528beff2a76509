"""Which trainer trains the updates of simulated clients, and which of their uploads are faulty."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.model_servers import updates
from helpers.small_tasks import DroppingNet, NormedNet, TinyNet, image_workload, tiny_data, tiny_workload
from lesson.clock.faults import CorruptedUploads
from lesson.core.errors import InputError
from lesson.learn.cpu import CpuBackend
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.settings.faults import FaultSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import Updates


def clients_of(workload: Workload, *options: Any) -> SimulatedClients:
    return SimulatedClients(workload, CpuBackend(workload), *options)


def taking(local_steps: list[int], batches: int = 1) -> Updates:
    made = updates([0] * len(local_steps), [0] * len(local_steps), [1.0] * len(local_steps))
    return replace(made, local_steps=np.array(local_steps), batches=batches * made.batches)


@pytest.mark.parametrize(("epochs", "local_steps"), [(0, 2), (1, 1)])
def test_several_minibatches_make_one_step_only_where_work_is_one_step(epochs: int, local_steps: int) -> None:
    clients = clients_of(tiny_workload(3, local_epochs=epochs))
    with pytest.raises(InputError, match="local_steps must be 1 and local_epochs 0 for steps of several minibatches"):
        clients.trainer_for(taking([local_steps], batches=2))


def test_the_right_trainer_is_chosen() -> None:
    chosen = clients_of(tiny_workload(3))
    assert type(chosen.trainer_for(taking([1, 1]))).__name__ == "FusedTrainer"
    assert type(chosen.trainer_for(taking([1, 2]))).__name__ == "BatchedTrainer"
    chosen.close()
    fused = clients_of(tiny_workload(3), "fused")
    with pytest.raises(
        InputError, match="trainer must not be 'fused' here: clients take several local steps; use 'auto'"
    ):
        fused.trainer_for(taking([2]))


@pytest.mark.parametrize(
    ("model", "training", "reason"),
    [
        (NormedNet, {}, "samples of a minibatch influence each other, as in BatchNorm"),
        (DroppingNet, {}, "the model draws random numbers, such as dropout"),
        (TinyNet, {"local_optimizer": "adamw"}, "local training is not a step of plain SGD"),
    ],
)
def test_clients_that_cannot_share_a_pass_are_trained_one_by_one(model: Any, training: Any, reason: str) -> None:
    workload = image_workload(Settings(split="iid", batch_size=5, **training), tiny_data(), 3, 0, model)
    chosen = clients_of(workload)
    assert type(chosen.trainer_for(taking([1, 1]))).__name__ == "BatchedTrainer"
    assert chosen.notes == [f"trainer: batched, not fused: {reason}"]
    chosen.close()
    with pytest.raises(InputError, match=f"trainer must not be 'fused' here: {reason}; use 'auto'"):
        clients_of(workload, "fused").trainer_for(taking([1]))


def test_only_uploads_with_injected_values_need_a_check() -> None:
    honest = clients_of(tiny_workload(4))
    assert honest.trusted
    assert not honest.is_fault(0, 0)
    for faults, trusted in ({"flipped": 1.0}, True), ({"nan": 1.0}, False):
        settings = FaultSettings(corrupting_clients=0.5, **faults)
        drawn = CorruptedUploads.of(settings, 4, seed=0)
        assert drawn is not None
        clients = clients_of(tiny_workload(4), "auto", drawn)
        assert clients.trusted == trusted == (not clients.remedy)
        assert [clients.is_fault(client, 0) for client in range(4)] == drawn.is_corrupting.tolist()
