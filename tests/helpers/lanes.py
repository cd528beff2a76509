"""Lanes and executors with simulated clients or received models, and the model that one client trains."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.trainers import one_row, sum_of
from helpers.views import updates as updates
from lesson.clock.loop import RoundLoop
from lesson.clock.rejections import Rejection
from lesson.learn.chunk import Chunk, Step
from lesson.learn.cpu import CpuBackend
from lesson.learn.evaluation import Evaluator
from lesson.learn.executor import Executor
from lesson.learn.lane import Lane
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.pipeline import Pipeline
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.remote import Received
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.settings.sections import GuardSettings, ServerSettings, TrainingSettings
from lesson.strategies.base import Merge, Updates


class Models:
    """A lane and its executor."""

    def __init__(self, lane: Lane, executor: Executor) -> None:
        self.lane, self.executor = lane, executor

    @property
    def versions(self) -> dict[int, torch.Tensor]:
        return self.lane.versions

    def set(self, version: int, model: torch.Tensor) -> None:
        """Set a version and make it the newest one."""
        self.lane.versions[version], self.lane.version = model, version

    def merge(self, some: Updates, weights: Any, merge: Merge) -> list[Rejection]:
        """Aggregate updates into a new version and return the rejected ones."""
        chunk = Chunk.of([(Step(self.lane.version + 1, merge), some, np.asarray(weights, dtype=np.float64))])
        results = self.executor.submit(self.lane, chunk, wait=True)
        if results.error is not None:
            raise results.error
        return list(results.rounds[0].rejections)

    def pipeline(self, loop: RoundLoop) -> Pipeline:
        return Pipeline(loop, self.lane, self.executor)


def make_models(
    workload: Workload,
    trainer: Any = "auto",
    *,
    learning_rate: float = 0.1,
    lr_cap: float = 1.0,
    server: dict[str, Any] | None = None,
    guards: dict[str, Any] | None = None,
    backend: Any = None,
) -> Models:
    """Return a lane and an executor that trains simulated clients round by round, on the CPU by default."""
    backend = backend or CpuBackend(workload)
    changes = {"learning_rate": learning_rate, "lr_cap": lr_cap}
    training = workload.training.model_copy(update=changes)
    optimizer = ServerOptimizer(ServerSettings(**server or {}))
    lane = Lane(workload.initial_vector(), training, optimizer, GuardSettings(**guards or {}))
    return Models(lane, Executor(SimulatedClients(workload, backend, trainer), Evaluator(workload, backend)))


def received_models(models: dict[int, list[float]], **guards: Any) -> Models:
    """Return a lane with version 0 = (2, 2), the newest one, and version 1 = (5, 5), and these received models."""
    held = Received()
    held.held = {(client, 0): np.array(model, dtype=np.float32) for client, model in models.items()}
    lane = Lane(torch.full((2,), 2.0), TrainingSettings(), ServerOptimizer(ServerSettings()), GuardSettings(**guards))
    lane.versions[1] = torch.full((2,), 5.0)
    return Models(lane, Executor(held, None))


def aggregate(
    models: Models, some: Updates, weights: Sequence[float] | None = None, version: int = 0, **merge: Any
) -> list[Rejection]:
    """Aggregate updates into version + 1, by default with equal weights of sum 1, and return the rejections."""
    given = np.full(len(some), 1 / max(1, len(some))) if weights is None else np.array(weights)
    models.lane.version = version
    return models.merge(some, given, Merge(some.id, given, **merge))


def overflow_from(round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every update that starts in this round or later overflow."""
    usual = Lane.step_sizes

    def step_sizes(self: Lane, given: Updates) -> Any:
        return np.where(given.started_round < round, usual(self, given), np.inf)

    monkeypatch.setattr(Lane, "step_sizes", step_sizes)


def trained(models: Models, client: int, base: int = 0, lr: float = 0.1) -> torch.Tensor:
    """Return the model that a client trains from a version in one step."""
    workload = cast(SimulatedClients, models.executor.source).workload
    return sum_of(ReferenceTrainer(workload), one_row(models.versions[base], client, lr))
