"""Data and cohorts on which trainers are compared."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from lesson.learn.backend import Trainer
from lesson.learn.cohort import Cohort
from lesson.learn.data import Samples
from lesson.learn.workload import Workload

MANY = 1000
"""Samples that no minibatch has."""


def colors() -> Samples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, 400)
    return Samples(images[:350], labels[:350], images[350:], labels[350:])


def make_cohort(base: Tensor, num: int, steps: int = 1) -> Cohort:
    """Return a cohort with unequal weights, several step sizes, first and later minibatches, and a limited one."""
    weight = np.arange(1.0, num + 1)
    return Cohort(
        base,
        client=np.arange(num),
        index=np.arange(num) % 3,
        lr=0.1 * (1 + np.arange(num) % 4),
        local_steps=np.full(num, steps),
        weight=0.7 * weight / weight.sum(),
        first=np.arange(num) % 2,
        most_samples=np.where(np.arange(num) % 4 == 3, 3, MANY),
        level=np.full(num, np.nan),
    )


def one_row(
    base: Tensor,
    client: int,
    lr: float,
    index: int = 0,
    local_steps: int = 1,
    first: int = 0,
    most_samples: int = MANY,
) -> Cohort:
    """Return a cohort of a single client with weight 1."""
    whole = (np.array([value]) for value in (client, index, local_steps, first, most_samples))
    columns = dict(zip(("client", "index", "local_steps", "first", "most_samples"), whole, strict=True))
    return Cohort(base, lr=np.array([lr]), weight=np.ones(1), level=np.full(1, np.nan), **columns)


def random_cohorts(workload: Workload, sizes: Sequence[int], seed: int, max_steps: int = 1) -> list[Cohort]:
    """Return cohorts of these sizes that start from different models; step sizes, steps and weights are random."""
    rng, num_clients = np.random.default_rng(seed), len(workload.holdings.num_samples)
    return [
        Cohort(
            float(rng.uniform(0.9, 1.1)) * workload.initial_vector(),
            client=np.sort(rng.integers(0, num_clients, size)),
            index=rng.integers(0, 4, size),
            lr=rng.uniform(0.03, 0.12, size),
            local_steps=rng.integers(1, max_steps + 1, size),
            weight=rng.uniform(0.1, 1.0, size) / size,
            first=rng.integers(0, 3, size),
            most_samples=rng.choice([2, MANY], size),
            level=np.full(size, np.nan),
        )
        for size in sizes
    ]


def check_agreement(
    trainer: Trainer, reference: Trainer, cohorts: Sequence[Cohort], tolerance: float, device: str = "cpu"
) -> None:
    """Compare sums and models with those of a reference on the CPU, relative to how far training moves a model."""
    on_device = [replace(cohort, base=cohort.base.to(device)) for cohort in cohorts]
    models, sums = trainer.models(on_device), trainer.sums(on_device)
    expected = zip(reference.models(cohorts), reference.sums(cohorts), strict=True)
    for cohort, given, total, (wanted, wanted_total) in zip(cohorts, models, sums, expected, strict=True):
        moved = (wanted - cohort.base).norm(dim=1)
        assert moved.min() > 1e-3
        assert ((given.cpu() - wanted).norm(dim=1) <= tolerance * moved).all()
        assert (total.cpu() - wanted_total).norm() <= tolerance * float(cohort.weight @ moved.numpy())


def sum_of(trainer: Trainer, cohort: Cohort) -> Tensor:
    """Return the weighted sum of the models of a single cohort."""
    return trainer.sums([cohort])[0]
