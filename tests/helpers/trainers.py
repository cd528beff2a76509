"""Data and local training on which trainers are compared."""

from dataclasses import replace

import numpy as np

from lesson.learn.data import Dataset
from lesson.learn.task import Job, Task, Work


def colors() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 400)
    return Dataset("cifar10", images[:350], labels[:350], images[350:], labels[350:])


def make_work(num: int, steps: int = 1) -> Work:
    """Return local training with unequal weights, several step sizes, and first as well as later minibatches."""
    weight = np.arange(1.0, num + 1)
    return Work(
        client=np.arange(num),
        index=np.arange(num) % 3,
        lr=0.1 * (1 + np.arange(num) % 4),
        local_steps=np.full(num, steps),
        weight=0.7 * weight / weight.sum(),
        first=np.arange(num) % 2,
    )


def several(task: Task, steps: int = 1) -> list[Job]:
    """Return cohorts with different base models: all clients, one client, and clients with several minibatches."""
    base, work = task.initial_vector(), make_work(8, steps)
    repeated = replace(work[[3, 3, 3, 4, 4, 5]], first=np.array([0, 1, 2, 0, 1, 0]))
    return [(base, work), (1.1 * base, work[6:7]), (0.9 * base, repeated)]
