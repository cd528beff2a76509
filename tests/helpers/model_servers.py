"""Model servers with simulated clients, updates made by hand, and the model that one client trains."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.trainers import one_row, sum_of
from lesson.clock.faults import CorruptedUploads
from lesson.learn.backend import WindowRule
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.robust.guard import MergeGuard
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings, TrainingSettings
from lesson.strategies.base import Updates


def make_server(
    workload: Workload,
    trainer: Any = "auto",
    *,
    learning_rate: float = 0.1,
    lr_cap: float = 1.0,
    server: dict[str, Any] | None = None,
    guards: dict[str, Any] | None = None,
    faults: CorruptedUploads | None = None,
    needs: frozenset[str] = frozenset(),
    backend: Any = None,
    window: WindowRule | None = None,
) -> ModelServer:
    """Return a model server with simulated clients, which are trained on the CPU by default."""
    backend = backend or CpuBackend(workload)
    return ModelServer(
        workload.initial_vector(),
        SimulatedClients(workload, backend, trainer, faults),
        TrainingSettings(learning_rate=learning_rate, lr_cap=lr_cap, proximal_mu=workload.training.proximal_mu),
        ServerOptimizer(ServerSettings(**server or {})),
        MergeGuard(GuardSettings(**guards or {})),
        needs=needs,
        signals=Evaluator(workload, backend).signals(),
        window=window,
    )


def updates(client: list[int], base: list[int], scale: list[float]) -> Updates:
    count = len(client)
    whole, real = np.zeros(count, dtype=np.int64), np.zeros(count)
    return Updates(
        id=np.arange(count),
        client=np.array(client, dtype=np.int64),
        base_version=np.array(base, dtype=np.int64),
        started_round=whole,
        started_s=real,
        expected_s=real,
        arrived_s=real,
        index=whole,
        lr_scale=np.array(scale, dtype=float),
        local_steps=whole + 1,
        batches=whole + 1,
        compute_scale=real + 1,
        in_turn=whole > 0,
    )


def overflow_from(round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every update that starts in this round or later overflow."""
    usual = ModelServer.step_sizes

    def step_sizes(self: ModelServer, given: Updates) -> Any:
        return np.where(given.started_round < round, usual(self, given), np.inf)

    monkeypatch.setattr(ModelServer, "step_sizes", step_sizes)


def workload_of(server: ModelServer) -> Workload:
    """Return the workload of a model server with simulated clients."""
    return cast(SimulatedClients, server.source).workload


def trained(server: ModelServer, client: int, base: int = 0, lr: float = 0.1) -> torch.Tensor:
    """Return the model that a client trains from a version in one step."""
    return sum_of(ReferenceTrainer(workload_of(server)), one_row(server.versions[base], client, lr))
