"""Hand-made updates, and the model that one client trains."""

import numpy as np
import torch

from helpers.small_tasks import cohort
from lesson.learn.learner import Learner
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.task import Work
from lesson.strategies.base import Updates


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


def trained(learner: Learner, client: int, base: int, lr: float) -> torch.Tensor:
    work = Work(np.array([client]), np.array([0]), np.array([lr]), np.array([1]), np.array([1.0]), np.array([0]))
    return cohort(ReferenceTrainer(learner.task), learner.versions[base], work)
