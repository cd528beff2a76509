"""The reference trainer: one client after the other, without optimizations. All other trainers must agree with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lesson.core.errors import RunStoppedError, describe
from lesson.learn.cohort import Cohort
from lesson.learn.device import lacks_memory
from lesson.learn.local_optimizer import LocalTraining
from lesson.learn.template import Replica
from lesson.learn.workload import Workload

BLOCK = 64
STEPS_AT_ONCE, MAX_GATHERED = 64, 1 << 14
"""Largest number of steps whose samples are gathered together, and largest number of these samples."""


def train_client(workload: Workload, replica: Replica, cohort: Cohort) -> Tensor:
    """Return the model of a cohort's only row after its local steps, Eq. (12), with FedProx's term if μ > 0."""
    base = cohort.base
    replica.load(base.clone())
    local = LocalTraining(workload.training, replica, base)
    num_steps, (client, index) = int(cohort.local_steps[0]), workload.ids(cohort)
    first, lr = int(cohort.first[0]), float(cohort.lr[0])
    at_once = workload.steps_at_once(cohort)
    with workload.seeded(int(cohort.client[0]), int(cohort.index[0])) as seed_step:
        most = STEPS_AT_ONCE if seed_step is None else 1
        gathered = max(1, min(most, MAX_GATHERED // workload.sampler.width))
        for begin in range(0, num_steps, at_once):
            samples = workload.minibatches(cohort, min(at_once, num_steps - begin), begin)[:, 0]
            for steps in torch.arange(len(samples), device=base.device).split(gathered):
                ids = client.expand(len(steps)), index.expand(len(steps))
                numbers = steps + begin + first
                if seed_step is not None:  # before the samples are prepared, which may draw random numbers, too
                    seed_step(int(numbers[0]))
                batches = workload.batch(replica, ids, samples[steps], numbers).split()
                for batch in batches:
                    if workload.template.traits.refuses_one and int(batch.counts) == 1:
                        continue  # the last sample of an epoch, alone in its minibatch
                    try:
                        outputs = replica.outputs(batch.inputs, batch.kept, training=True)
                        local.descend(workload.loss.mean(outputs, batch.targets), lr)
                    except Exception as error:  # a custom model or loss may raise anything
                        if lacks_memory(error):
                            raise
                        whom, size = f"client {int(cohort.client[0])}", int(batch.counts)
                        raise RunStoppedError(
                            f"{whom} cannot train on a minibatch of size {size}: {describe(error)}"
                        ) from error
    return replica.vector()


def parts_of(cohorts: Sequence[Cohort]) -> list[tuple[int, Cohort]]:
    """Return the cohorts in parts of at most BLOCK rows, each with the place of its cohort in `cohorts`.

    The sum of a cohort is the sum of those of its parts, in this order.
    """
    return [
        (place, cohort[begin : begin + BLOCK])
        for place, cohort in enumerate(cohorts)
        for begin in range(0, len(cohort), BLOCK)
    ]


def blocks_of(parts: Sequence[tuple[int, Cohort]]) -> list[list[tuple[int, Cohort]]]:
    """Return consecutive parts in blocks of at most BLOCK rows."""
    blocks = list[list[tuple[int, Cohort]]]()
    room = 0
    for part in parts:
        if len(part[1]) > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(part)
        room -= len(part[1])
    return blocks


def add_parts(parts: Iterable[tuple[int, Tensor]], num_cohorts: int) -> list[Tensor]:
    """Return the sum of each cohort, given the sums of its parts in the order of `parts_of`."""
    sums: list[Tensor | None] = [None] * num_cohorts
    for place, part in parts:
        total = sums[place]
        sums[place] = part if total is None else total + part
    return [total for total in sums if total is not None]


def join_parts(parts: Iterable[tuple[int, Tensor]], num_cohorts: int) -> list[Tensor]:
    """Return the models of each cohort, given those of its parts in the order of `parts_of`."""
    models: list[list[Tensor]] = [[] for _ in range(num_cohorts)]
    for place, part in parts:
        models[place].append(part)
    return [torch.cat(each) for each in models]


def sum_by_blocks(cohort: Cohort, train: Callable[[Cohort], Tensor]) -> Tensor:
    """Return Σ weight · model of a cohort, shape (num_parameters,); at most BLOCK models are in memory at a time."""
    total: Tensor | None = None
    for begin in range(0, len(cohort), BLOCK):
        part = cohort[begin : begin + BLOCK]
        block = replace(part, trained=train(part)).weighted_sum()
        total = block if total is None else total + block
    assert total is not None, "a cohort has at least one row"
    return total


def models_by_blocks(cohort: Cohort, train: Callable[[Cohort], Tensor]) -> Tensor:
    """Return the models of a cohort, shape (num_rows, num_parameters), trained BLOCK at a time."""
    models = torch.empty(len(cohort), len(cohort.base), device=cohort.base.device)
    for begin in range(0, len(cohort), BLOCK):
        models[begin : begin + BLOCK] = train(cohort[begin : begin + BLOCK])
    return models


class ReferenceTrainer:
    """Trains one client after the other in this process."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._replica = workload.replica()

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the weighted sum of the trained models of each cohort."""
        return [sum_by_blocks(cohort, self._train) for cohort in cohorts]

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Return the trained models of each cohort, shape (num_rows, num_parameters)."""
        return [models_by_blocks(cohort, self._train) for cohort in cohorts]

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _train(self, cohort: Cohort) -> Tensor:
        rows = (cohort[row : row + 1] for row in range(len(cohort)))
        return torch.stack([train_client(self.workload, self._replica, row) for row in rows])
