import contextlib

import pytest
import torch

from helpers.ray_cluster import needs_ray, running_cluster
from helpers.small_tasks import tiny_workload
from helpers.trainers import random_cohorts
from lesson.learn.ray_trainer import RayTrainer
from lesson.learn.reference import ReferenceTrainer


@pytest.mark.slow
@needs_ray
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_trains_as_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny_workload(8)
    cohorts, reference = random_cohorts(workload, [70, 8, 1], 0, max_steps=3), ReferenceTrainer(workload)
    with running_cluster(monkeypatch) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with contextlib.closing(RayTrainer(workload)) as trainer:
            given = [*trainer.sums(cohorts), *trainer.models(cohorts)]
    expected = [*reference.sums(cohorts), *reference.models(cohorts)]
    assert all(torch.equal(one, other) for one, other in zip(given, expected, strict=True))
