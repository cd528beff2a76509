"""Model servers with simulated clients or received models, and the model that one client trains."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.trainers import one_row, sum_of
from helpers.views import updates as updates
from lesson.clock.rejections import Rejection
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.guards import NormGuard
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.remote import Received
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.settings.sections import GuardSettings, ServerSettings, TrainingSettings
from lesson.strategies.base import Merge, Updates


def make_server(
    workload: Workload,
    trainer: Any = "auto",
    *,
    learning_rate: float = 0.1,
    lr_cap: float = 1.0,
    server: dict[str, Any] | None = None,
    guards: dict[str, Any] | None = None,
    backend: Any = None,
) -> ModelServer:
    """Return a model server with simulated clients, which are trained on the CPU by default."""
    backend = backend or CpuBackend(workload)
    return ModelServer(
        workload.initial_vector(),
        SimulatedClients(workload, backend, trainer),
        TrainingSettings(learning_rate=learning_rate, lr_cap=lr_cap, proximal_mu=workload.training.proximal_mu),
        ServerOptimizer(ServerSettings(**server or {})),
        NormGuard(GuardSettings(**guards or {})),
        signals=Evaluator(workload, backend).signals(),
    )


def received_server(models: dict[int, list[float]], **guards: Any) -> ModelServer:
    """Return a server with versions 0, (2, 2), and 1, (5, 5), and these models that remote clients have sent."""
    held = Received()
    held.held = {(client, 0): np.array(model, dtype=np.float32) for client, model in models.items()}
    optimizer, guard = ServerOptimizer(ServerSettings()), NormGuard(GuardSettings(**guards))
    server = ModelServer(torch.full((2,), 2.0), held, TrainingSettings(), optimizer, guard)
    server.versions[1] = torch.full((2,), 5.0)
    return server


def aggregate(
    server: ModelServer, some: Updates, weights: Sequence[float] | None = None, version: int = 0, **merge: Any
) -> list[Rejection]:
    """Aggregate updates into version + 1, by default with equal weights of sum 1, and return the rejections."""
    given = np.full(len(some), 1 / max(1, len(some))) if weights is None else np.array(weights)
    return server.merge(some, given, Merge(some.id, given, **merge), version, round=version + 1)


def overflow_from(round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every update that starts in this round or later overflow."""
    usual = ModelServer.step_sizes

    def step_sizes(self: ModelServer, given: Updates) -> Any:
        return np.where(given.started_round < round, usual(self, given), np.inf)

    monkeypatch.setattr(ModelServer, "step_sizes", step_sizes)


def trained(server: ModelServer, client: int, base: int = 0, lr: float = 0.1) -> torch.Tensor:
    """Return the model that a client trains from a version in one step."""
    workload = cast(SimulatedClients, server.source).workload
    return sum_of(ReferenceTrainer(workload), one_row(server.versions[base], client, lr))
