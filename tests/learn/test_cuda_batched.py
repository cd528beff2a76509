"""The batched trainer of GPUs, executed on the CPU: graphs are replaced by the functions that they would record."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from helpers.small_tasks import TinyNet, image_workload, tiny_data
from lesson import Settings
from lesson.learn.cohort import Cohort
from lesson.learn.cuda import batched
from lesson.learn.reference import ReferenceTrainer


class CalledGraph:
    """Calls the function that a graph would record; as a recording does, it first calls it twice."""

    def __init__(self, body: Callable[[], None], *_: object) -> None:
        self.replay = body
        body()
        body()

    def close(self) -> None:
        pass


class CopiedInputs:
    def __init__(self, to: torch.Tensor) -> None:
        self._to, self._numbers = to, torch.zeros_like(to)

    def send(self, write: Callable[..., None]) -> None:
        write(self._numbers.numpy(), self._numbers.view(torch.float64).numpy())
        self._to.copy_(self._numbers)


def random_cohort(base: torch.Tensor, rng: np.random.Generator) -> Cohort:
    count = int(rng.integers(1, 5))
    return Cohort(
        base + 0.01 * torch.from_numpy(rng.standard_normal(len(base))).float(),
        client=np.sort(rng.choice(8, count, replace=False)),
        index=rng.integers(0, 4, count),
        lr=rng.uniform(0.01, 0.1, count),
        local_steps=rng.integers(1, 6, count),
        weight=rng.uniform(0.1, 1, count),
        first=np.zeros(count, dtype=np.int64),
    )


@pytest.mark.parametrize(
    "training", [{}, {"momentum": 0.9}, {"proximal_mu": 0.1}, {"local_epochs": 2}, {"clip_norm": 0.5}], ids=str
)
def test_steps_that_graphs_draw_and_count_agree_with_the_reference(
    training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of several cohorts take unequal numbers of steps, so that later steps run on smaller graphs."""
    monkeypatch.setattr(batched, "Graph", CalledGraph)
    monkeypatch.setattr(batched, "GraphInputs", CopiedInputs)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    workload = image_workload(
        Settings(split="iid", training={"batch_size": 5, **training}), tiny_data(), 8, 0, TinyNet, "cpu"
    )
    trainer, reference = batched.CudaBatchedTrainer(workload, "float32"), ReferenceTrainer(workload)
    rng = np.random.default_rng(0)
    for _ in range(3):
        cohorts = [random_cohort(workload.initial_vector(), rng) for _ in range(3)]
        for given, wanted in zip(trainer.sums(cohorts), reference.sums(cohorts), strict=True):
            assert (given - wanted).norm() < 1e-5 * wanted.norm()
