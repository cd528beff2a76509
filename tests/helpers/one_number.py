"""A server whose model is a single number."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lesson.core.arrays import FloatArray
from lesson.learn.aggregate import GroupVectors
from lesson.learn.optimizers import ServerOptimizer
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import Merge, Strategy, Updates


class OneNumber:
    """A server whose model is one number.

    `trained` has the results of each client's trainings, models or updates as the strategy aggregates them, or returns
    the result for the model that a client starts from.
    """

    def __init__(
        self,
        trained: Mapping[int, list[float]] | Callable[[float], float],
        initial: float = 0.0,
        settings: ServerSettings | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.trained, self.models = trained, [torch.tensor([initial], dtype=torch.float64)]
        self.groups = GroupVectors(self.models[0])
        given = settings or ServerSettings()
        self.optimizer = ServerOptimizer(given) if strategy is None else ServerOptimizer.of(given, strategy)

    def merge(self, updates: Updates, weights: FloatArray, merge: Merge, version: int, round: int) -> list[Any]:
        names = [""] * len(updates) if merge.groups is None else merge.groups.names
        means = {name: torch.zeros(1, dtype=torch.float64) for name in names}
        for name, (client, index), base, weight in zip(
            names, updates.keys, updates.base_version.tolist(), weights.tolist(), strict=True
        ):
            known = self.trained
            means[name] += weight * (known(float(self.models[base])) if callable(known) else known[client][index])
        model = self.models[-1]
        if merge.groups is not None:
            aggregated = self.groups.merge(model, means, merge.groups, merge.of)
        else:
            stays = 1 - float(weights.sum()) if merge.of == "models" else 1.0
            aggregated = stays * model + sum(means.values())
        scale, limit = merge.step_scale, merge.step_limit
        self.models.append(self.optimizer.step(model, aggregated, scale, limit=limit, number=version + 1))
        return []

    def forget(self, version: int) -> None: ...
