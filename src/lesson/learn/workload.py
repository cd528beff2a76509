"""The workload of a run on one device: the task's data, its partition among clients, the model and the minibatches."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.core.random import number_of, stream
from lesson.learn.cohort import Cohort
from lesson.learn.counters import Key, per_row
from lesson.learn.device import to_device
from lesson.learn.dropout import draw_factors
from lesson.learn.minibatch import NO_SAMPLE, Sampler
from lesson.learn.partition import Holdings, Partition, make_partition
from lesson.learn.task import Arrays, Task
from lesson.learn.template import GENERATORS, Replica, Template, prepared
from lesson.learn.trees import map_tensors, num_samples, split
from lesson.settings.sections import TrainingSettings
from lesson.settings.settings import Settings

SHARE = 0.1
REFUSES_ONE = "it cannot train on a single sample, for example because of BatchNorm"


def hold_out(holdings: Holdings, seed: int) -> tuple[Partition, Partition]:
    """Split each client's samples into those it trains on and those it holds out.

    A client with n distinct samples holds out max(1, round(n / 10)) of them, or none if n < 2. Each client has its own
    random stream. If it holds a sample several times, as in a pool, all copies are on the same side. InputError is
    raised if no client holds out any sample.
    """
    parts = [_hold_out(holdings[client], seed, client) for client in range(len(holdings.num_samples))]
    training, held = (Partition.of(list(side)) for side in zip(*parts, strict=True))
    if not len(held.samples):
        raise InputError("no client has the 2 distinct samples needed to hold one out; reduce fleet.num_clients")
    return training, held


def _hold_out(samples: IntArray, seed: int, client: int) -> tuple[IntArray, IntArray]:
    distinct = np.unique(samples)
    if len(distinct) < 2:
        return samples, samples[:0]
    count = max(1, round(SHARE * len(distinct)))
    held = np.isin(samples, stream(seed, "held-out", client).choice(distinct, count, replace=False))
    return samples[~held], samples[held]


MAX_DRAWN, MAX_STEPS = 1 << 24, 1024
"""Largest number of values held while minibatches are drawn, and largest number of steps drawn together."""
Ids = tuple[Tensor, Tensor]
"""Clients, and the indices of their updates."""


class Batch(NamedTuple):
    """Samples of one or more minibatches, one after the other."""

    inputs: Any
    """Inputs as the model gets them, with dropout factors for a model with `num_dropout_units`."""
    targets: Any
    counts: Tensor
    """Number of samples in each minibatch, shape (num_rows,)."""

    def split(self) -> "list[Batch]":
        """Return the minibatches one by one."""
        sizes = self.counts.tolist()
        return list(map(Batch, split(self.inputs, sizes), split(self.targets, sizes), self.counts))


class Workload:
    """Everything a trainer needs, on one device."""

    def __init__(
        self,
        task: Task,
        holdings: Holdings,
        training: TrainingSettings,
        seed: int,
        device: str = "cpu",
        held_out: Holdings | None = None,
    ) -> None:
        self.task, self.holdings, self.training, self.seed = task, holdings, training, seed
        self.device, self.held_out, self.batch_size = device, held_out, training.batch_size
        self.template = Template(task, seed, device)
        self.loss = self.template.loss
        self.sampler = Sampler.of(holdings, self.batch_size, training.local_epochs > 0, seed, device)
        if self.template.traits.refuses_one:
            _check_pairs(self.batch_size, holdings)
        on_device: tuple[Arrays, ...] = map_tensors(lambda one: one.to(device), (*task.train, *task.test))
        self.train_inputs, self.train_targets, self.test_inputs, self.test_targets = on_device

    def with_holdings(self, holdings: Holdings, seed: int) -> Self:
        """Return a workload with other clients and another seed that shares the data and the model."""
        other = copy.copy(self)
        other.holdings, other.seed, other.held_out = holdings, seed, None
        other.sampler = Sampler.of(holdings, self.batch_size, self.sampler.epochs, seed, self.device)
        return other

    def steps_at_once(self, cohort: Cohort) -> int:
        """Return how many steps of this cohort can be drawn together in limited memory."""
        return max(1, min(MAX_STEPS, self._rows_at_once(cohort) // len(cohort)))

    def minibatches(self, cohort: Cohort, num_steps: int, begin: int = 0) -> Tensor:
        """Return the samples of minibatches from step `begin` on, shape (num_steps, len(cohort), width).

        They are padded as in `Sampler.batches`.
        """
        at_once = max(1, self._rows_at_once(cohort) // num_steps)
        parts = [cohort[row : row + at_once] for row in range(0, len(cohort), at_once)]
        drawn = [self._drawn(part, num_steps, begin) for part in parts]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim=1)

    def _rows_at_once(self, cohort: Cohort) -> int:
        """Return how many minibatches of these clients can be drawn together."""
        return int(MAX_DRAWN / self.sampler.num_held(self.holdings.num_samples[cohort.client]))

    def _drawn(self, cohort: Cohort, num_steps: int, begin: int) -> Tensor:
        sizes = self.holdings.num_samples[cohort.client]
        per_pass = -(-sizes // self.batch_size)
        last = np.minimum(begin + num_steps, cohort.local_steps) - 1
        num_passes = max(1, int((last // per_pass - begin // per_pass).max()) + 1)
        first, most = to_device(cohort.first, self.device), to_device(cohort.most_samples, self.device)
        return self.sampler.batches(*self.ids(cohort), num_steps, int(sizes.max()), num_passes, first, begin, most)

    def ids(self, cohort: Cohort) -> Ids:
        """Return clients and update indices of this cohort, on the device."""
        return to_device(cohort.client, self.device), to_device(cohort.index, self.device)

    def batch(self, ids: Ids, padded: Tensor, step: Tensor) -> Batch:
        """Return the samples of padded minibatches, shape (num_rows, width), concatenated without the padding.

        `ids` says which update each row belongs to, and `step` which of its minibatches it is.
        """
        is_sample = padded != NO_SAMPLE
        inputs, targets = self.samples(padded[is_sample])
        if self.template.num_dropout_units:
            rows, columns = is_sample.nonzero(as_tuple=True)
            client, index = ids
            places = step[rows] * self.batch_size + columns
            inputs = self._with_dropout(inputs, client[rows], index[rows], places, self.sampler.keys.dropout)
        return Batch(inputs, targets, is_sample.sum(1))

    def padded_batch(self, ids: Ids, padded: Tensor, step: Tensor, dropout_key: Key | None = None) -> tuple[Any, Any]:
        """Return inputs and targets of padded minibatches, with an arbitrary sample in each place of the padding.

        Their shapes do not depend on what was drawn, so that the computation can be recorded as a CUDA graph. Rows of
        several runs have their own `dropout_key`.
        """
        inputs, targets = self.samples(padded.clamp(min=0).flatten())
        if self.template.num_dropout_units:
            places = step[:, None] * self.batch_size + torch.arange(padded.shape[1], device=padded.device)
            secret = self.sampler.keys.dropout if dropout_key is None else dropout_key
            columns = torch.broadcast_tensors(ids[0][:, None], ids[1][:, None], places)
            client, index, places = (column.flatten() for column in columns)
            inputs = self._with_dropout(inputs, client, index, places, per_row(secret, padded.shape[1]))
        return inputs, targets

    def _with_dropout(self, inputs: Any, client: Tensor, index: Tensor, places: Tensor, secret: Key) -> tuple[Any, ...]:
        """Return inputs with dropout factors; `places` are positions among all samples of an update."""
        factors = draw_factors(secret, self.template.num_dropout_units, client, index, places)
        return (*inputs, factors) if isinstance(inputs, tuple) else (inputs, factors)

    def samples(self, samples: Tensor) -> tuple[Any, Any]:
        """Return inputs, as the model gets them, and targets of training samples."""
        inputs, targets = self.raw_samples(samples)
        return prepared(self.task, inputs), targets

    def raw_samples(self, samples: Tensor | None) -> tuple[Arrays, Arrays]:
        """Return inputs and targets of training samples, or of the test data."""
        if samples is None:
            return self.test_inputs, self.test_targets
        pair: tuple[Arrays, Arrays] = map_tensors(lambda one: one[samples], (self.train_inputs, self.train_targets))
        return pair

    @contextmanager
    def seeded(self, client: int, index: int) -> Iterator[Callable[[int], None] | None]:
        """Give the local training of a client its own random numbers, if the model draws any.

        The context manager returns a function to call before each step, or None if the model draws no random numbers.
        The state of torch's generators is restored afterwards.
        Threads take turns, since torch's generators belong to the process.
        """
        if not self.template.traits.random:
            yield None
            return

        def seed_step(step: int) -> None:
            torch.manual_seed(number_of(self.seed, "model-randomness", client, index, step))

        with self._own_generators():
            yield seed_step

    @contextmanager
    def seeded_scores(self, chunk: int) -> Iterator[None]:
        """Give the evaluation of a chunk of samples its own random numbers, if the model draws any there."""
        if not self.template.traits.random_scores:
            yield
            return
        with self._own_generators():
            torch.manual_seed(number_of(self.seed, "evaluation", chunk))
            yield

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        devices = [torch.cuda.current_device()] if self.device == "cuda" else []
        with GENERATORS, torch.random.fork_rng(devices=devices):
            yield

    def initial_vector(self) -> Tensor:
        """Return the initial model, which is the same for all strategies with this seed."""
        return self.template.initial_vector()

    def replica(self) -> Replica:
        """Return a new copy of the model to load vectors into."""
        return Replica(self.template)


def make_workload(
    settings: Settings,
    task: Task,
    holding_out: bool = False,
    num_held: IntArray | None = None,
    device: str | None = None,
) -> Workload:
    """Return the workload of a run; `num_held` is passed to `make_partition`.

    By default, its `device` is that of the settings.

    If clients hold out samples, for a strategy that needs their accuracy, `holdings` has the remaining ones, which they
    train on.
    """
    holdings: Holdings
    seed = settings.run.seed
    if task.clients is not None and settings.has_natural_split:
        holdings = Partition.of(chosen_clients(task.clients, settings.fleet.num_clients, seed))
    else:
        holdings = make_partition(settings, num_samples(task.train[1]), task.labels, num_held)
    held_out = None
    if holding_out:
        holdings, held_out = hold_out(holdings, seed)
    return Workload(task, holdings, settings.training, seed, device or settings.run.device, held_out)


def chosen_clients(clients: Sequence[IntArray], num_clients: int, seed: int) -> list[IntArray]:
    """Draw `num_clients` clients of a task, and return the samples of each in the task's order."""
    if num_clients > len(clients):
        raise InputError(
            f"[fleet] num_clients must be at most {len(clients)}, the number of clients of the task, got {num_clients}"
        )
    chosen = stream(seed, "clients").choice(len(clients), num_clients, replace=False)
    return [clients[place] for place in np.sort(chosen).tolist()]


def _check_pairs(batch_size: int, holdings: Holdings) -> None:
    """Raise InputError if every minibatch of a client would have a single sample."""
    if batch_size < 2:
        raise InputError(f"[training] batch_size must be >= 2 for this model, got {batch_size}: {REFUSES_ONE}")
    if alone := int(np.count_nonzero(holdings.num_samples == 1)):
        raise InputError(
            f"every client must have at least 2 samples for this model, but {alone} have one: {REFUSES_ONE}; leave out "
            "clients with one sample"
        )
