"""The reference trainer: one client after the other, without optimizations. All other trainers must agree with it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
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
                batches = workload.batch(ids, samples[steps], numbers).split()
                for batch in batches:
                    if workload.template.traits.refuses_one and int(batch.counts) == 1:
                        continue  # the last sample of an epoch, alone in its minibatch
                    try:
                        outputs = replica.outputs(batch.inputs, training=True)
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


def trained_parts(cohorts: Sequence[Cohort], train: Callable[[Cohort], Tensor]) -> Iterator[tuple[int, Cohort]]:
    """Train the parts of cohorts one after the other; `train` returns the models of a part."""
    return ((place, replace(part, trained=train(part))) for place, part in parts_of(cohorts))


def sums_of(cohorts: Sequence[Cohort], parts: Iterable[tuple[int, Cohort]]) -> list[Tensor]:
    """Return Σ weight · model of each cohort, given its trained parts in the order of `parts_of`."""
    sums: list[Tensor | None] = [None] * len(cohorts)
    for place, part in parts:
        total = sums[place]
        sums[place] = part.weighted_sum() if total is None else total + part.weighted_sum()
    return [total for total in sums if total is not None]


def models_of(cohorts: Sequence[Cohort], parts: Iterable[tuple[int, Cohort]]) -> list[Tensor]:
    """Return the models of each cohort, given its trained parts in the order of `parts_of`."""
    models = [torch.empty(len(cohort), len(cohort.base), device=cohort.base.device) for cohort in cohorts]
    filled = [0] * len(cohorts)
    for place, part in parts:
        begin, filled[place] = filled[place], filled[place] + len(part)
        models[place][begin : filled[place]] = part.models
    return models


class ReferenceTrainer:
    """Trains one client after the other in this process, with the arithmetic that a context manager sets."""

    def __init__(
        self, workload: Workload, arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.workload, self._arithmetic = workload, arithmetic
        self._replica = workload.replica()

    def sums(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        with self._arithmetic():
            return sums_of(cohorts, trained_parts(cohorts, self._train))

    def models(self, cohorts: Sequence[Cohort]) -> list[Tensor]:
        with self._arithmetic():
            return models_of(cohorts, trained_parts(cohorts, self._train))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _train(self, cohort: Cohort) -> Tensor:
        rows = (cohort[row : row + 1] for row in range(len(cohort)))
        return torch.stack([train_client(self.workload, self._replica, row) for row in rows])
