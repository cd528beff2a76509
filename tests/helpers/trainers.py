"""Data and cohorts on which trainers are compared."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from lesson.learn.backend import Trainer
from lesson.learn.cohort import Cohort
from lesson.learn.data import Dataset
from lesson.learn.workload import Workload


def colors() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 400)
    return Dataset("cifar10", images[:350], labels[:350], images[350:], labels[350:])


def make_cohort(base: Tensor, num: int, steps: int = 1) -> Cohort:
    """Return a cohort with unequal weights, several step sizes, and first as well as later minibatches."""
    weight = np.arange(1.0, num + 1)
    return Cohort(
        base,
        client=np.arange(num),
        index=np.arange(num) % 3,
        lr=0.1 * (1 + np.arange(num) % 4),
        local_steps=np.full(num, steps),
        weight=0.7 * weight / weight.sum(),
        first=np.arange(num) % 2,
    )


def one_row(base: Tensor, client: int, lr: float, index: int = 0, local_steps: int = 1, first: int = 0) -> Cohort:
    """Return a cohort of a single client with weight 1."""
    whole = (np.array([value]) for value in (client, index, local_steps, first))
    columns = dict(zip(("client", "index", "local_steps", "first"), whole, strict=True))
    return Cohort(base, lr=np.array([lr]), weight=np.ones(1), **columns)


def several(workload: Workload, steps: int = 1) -> list[Cohort]:
    """Return cohorts with different base models: all clients, one client, and clients with several minibatches."""
    base = workload.initial_vector()
    everybody = make_cohort(base, 8, steps)
    repeated = replace(everybody[np.array([3, 3, 3, 4, 4, 5])], first=np.array([0, 1, 2, 0, 1, 0]))
    return [everybody, replace(everybody[6:7], base=1.1 * base), replace(repeated, base=0.9 * base)]


def sum_of(trainer: Trainer, cohort: Cohort) -> Tensor:
    """Return the weighted sum of the models of a single cohort."""
    return trainer.sums([cohort])[0]
