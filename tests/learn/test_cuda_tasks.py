"""Any data and any model on a GPU: trainers agree with the reference on the CPU, and fall back where graphs cannot."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.any_tasks import (
    COUPLED,
    INDEPENDENT,
    Mlp,
    TorchLstm,
    feature_task,
    regression_task,
    rmse,
    token_task,
    workload_of,
)
from helpers.model_servers import updates
from helpers.trainers import several, sum_of
from lesson import Task
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.model_server import GlobalModel
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.simulated_clients import SimulatedClients

pytestmark = pytest.mark.usefixtures("gpu")


def check_agreement(task: Task, name: Any, steps: int = 1, tolerance: float = 2e-3, **settings: Any) -> None:
    """Compare a trainer on the GPU, in 32 bits, with the reference on the CPU."""
    cpu, cuda = workload_of(task, **settings), workload_of(task, "cuda", **settings)
    trainer, reference = CudaBackend(cuda, "float32").trainer(name), ReferenceTrainer(cpu)
    for ours, theirs in zip(several(cuda, steps), several(cpu, steps), strict=True):
        expected = sum_of(reference, theirs)
        moved = (expected - float(theirs.weight.sum()) * theirs.base).norm()
        assert moved > 1e-3
        assert (sum_of(trainer, ours).cpu() - expected).norm() < tolerance * moved
    trainer.close()


@pytest.mark.parametrize("name", INDEPENDENT)
def test_fused_agrees_with_the_reference(name: str) -> None:
    check_agreement(INDEPENDENT[name](), "fused", tolerance=2e-2 if name == "resnet" else 2e-3)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_batched_agrees_with_the_reference(name: str) -> None:
    check_agreement(INDEPENDENT[name](), "batched", 3, tolerance=2e-2 if name == "resnet" else 2e-3)


@pytest.mark.parametrize("name", ["mlp", "batch norm"])
def test_the_reference_trainer_agrees_on_cpu_and_gpu(name: str) -> None:
    check_agreement((INDEPENDENT | COUPLED)[name](), "reference", 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"local_optimizer": "adamw", "weight_decay": 0.1},
        {"clip_norm": 0.1},
        {"clip_norm": 0.1, "proximal_mu": 0.5, "local_optimizer": "adamw"},
    ],
)
@pytest.mark.parametrize("steps", [1, 4])
def test_local_optimizers_agree_with_the_reference(changes: dict[str, Any], steps: int) -> None:
    check_agreement(feature_task(), "batched", steps, **changes)


def test_clients_that_have_finished_do_not_move_on_their_momentum() -> None:
    """Clients with fewer samples take fewer steps in an epoch."""
    settings = {"split": "quantity-skew", "beta": 1.0, "local_epochs": 1, "momentum": 0.9}
    cpu, cuda = (workload_of(feature_task(), device, **settings) for device in ("cpu", "cuda"))
    sums = []
    for workload, trainer in ((cpu, ReferenceTrainer(cpu)), (cuda, CudaBackend(cuda, "float32").trainer("batched"))):
        (cohort, *_) = several(workload)
        cohort.local_steps[:] = -(-workload.holdings.num_samples // 5)
        cohort.first[:] = 0
        sums.append(sum_of(trainer, cohort).cpu())
    assert len(set(cpu.holdings.num_samples.tolist())) > 3
    assert (sums[0] - sums[1]).norm() < 2e-3 * (sums[0] - 0.7 * cpu.initial_vector()).norm()


def chosen(workload: Any, steps: int) -> tuple[str, list[str]]:
    clients = SimulatedClients(workload, CudaBackend(workload, "float32"))
    asked = updates([0], [0], [1.0])
    asked.local_steps[:] = steps
    trainer = clients.trainer_for(asked)
    (cohort, *_) = several(workload, steps)
    assert torch.isfinite(sum_of(trainer, cohort)).all()
    clients.close()
    return clients.trainers[-1], clients.notes


class Waits(Mlp):
    """Reads a value back from the GPU, which no graph can record."""

    def forward(self, features: Tensor) -> Tensor:
        if float(features.sum()) > 1e30:
            raise RuntimeError("huge")
        return super().forward(features)


def test_what_graphs_cannot_record_falls_back_and_says_why() -> None:
    assert chosen(workload_of(feature_task(), "cuda"), 1) == ("fused", [])
    assert chosen(workload_of(feature_task(), "cuda"), 2) == ("batched", [])
    for name, why in (("batch norm", "influence each other"), ("dropout", "draws random numbers")):
        trainer, (note,) = chosen(workload_of(COUPLED[name](), "cuda"), 1)
        assert trainer == "reference"
        assert why in note
    trainer, (note,) = chosen(workload_of(feature_task(Waits), "cuda"), 1)
    assert trainer == "reference"
    assert "cannot be recorded as a CUDA graph" in note


@pytest.mark.filterwarnings("ignore:RNN module weights", "ignore:There is a performance drop")
def test_torch_lstm_trains_with_one_step_and_with_several() -> None:
    assert chosen(workload_of(token_task(TorchLstm), "cuda"), 1)[0] in ("fused", "reference")
    assert chosen(workload_of(token_task(TorchLstm), "cuda"), 2)[0] in ("batched", "reference")


@pytest.mark.parametrize(
    "task",
    [
        feature_task(),
        regression_task(),
        regression_task(metrics=rmse),
        INDEPENDENT["lstm"](),
        INDEPENDENT["dict"](),
        feature_task(partial(Mlp, norm=True, dropout=0.5)),
        feature_task(Waits),
    ],
    ids=["features", "regression", "metrics", "sequences", "dict", "modes", "eager"],
)
def test_scores_agree_with_the_cpu(task: Task) -> None:
    cpu, cuda = workload_of(task), workload_of(task, "cuda")
    ours, theirs = Evaluator(cuda, CudaBackend(cuda, "float32")), Evaluator(cpu, CpuBackend(cpu))
    given = ours.score(GlobalModel(cuda.initial_vector(), ""))
    expected = theirs.score(GlobalModel(cpu.initial_vector(), ""))
    assert dict(given.values) == pytest.approx(dict(expected.values), abs=2e-2)
    assert given.loss == pytest.approx(expected.loss, rel=1e-3)
    by_client = ours.client_scores(GlobalModel(cuda.initial_vector(), ""))
    assert by_client.global_loss == pytest.approx(
        theirs.client_scores(GlobalModel(cpu.initial_vector(), "")).global_loss, rel=1e-3
    )
    ours.close()
    theirs.close()


def test_frozen_parameters_are_in_memory_once() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(10, 1_000_000)
            self.frozen.requires_grad_(False)
            self.out = nn.Linear(10, 3)

        def forward(self, features: Tensor) -> Tensor:
            outputs: Tensor = self.out(features + self.frozen.weight[0])
            return outputs

    workload = workload_of(feature_task(Large), "cuda")
    before = torch.cuda.memory_allocated()
    replicas = [workload.replica() for _ in range(10)]
    assert torch.cuda.memory_allocated() - before < 1_000_000
    assert len(replicas) == 10
