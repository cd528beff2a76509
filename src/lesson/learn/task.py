"""What is to be learnt: data, who holds which part of it, the model, and how it is trained locally."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.learn.data import Dataset
from lesson.learn.dropout import draw_kept
from lesson.learn.minibatch import NO_SAMPLE, Sampler
from lesson.learn.models import FACTORIES, ModelFactory, Replica, initial_vector, make_model
from lesson.learn.partition import Holdings, Partition, make_partition
from lesson.settings.settings import Settings

SHARE = 0.1


def hold_out(holdings: Holdings, seed: int) -> tuple[Partition, Partition]:
    """What each client trains on, and what it holds out: max(1, round(n / 10)) of its n samples, none of a single one.

    Drawn by a stream of its own for each client. Samples that a client of a pool holds more than once count as one, so
    that none is on both sides.
    """
    parts = [_hold_out(holdings[client], seed, client) for client in range(len(holdings.num_samples))]
    training, held = (Partition.of(list(side)) for side in zip(*parts, strict=True))
    if not len(held.samples):
        raise InputError("clients that hold out a tenth must have 2 samples or more; take fewer clients")
    return training, held


def _hold_out(samples: IntArray, seed: int, client: int) -> tuple[IntArray, IntArray]:
    distinct = np.unique(samples)
    if len(distinct) < 2:
        return samples, samples[:0]
    count = max(1, round(SHARE * len(distinct)))
    held = np.isin(samples, stream(seed, "held-out", client).choice(distinct, count, replace=False))
    return samples[~held], samples[held]


@dataclass(frozen=True, eq=False)
class Work:
    """Client work that started from the same model version; arrays are (num_updates,), sorted by client and index."""

    client: IntArray
    index: IntArray
    lr: FloatArray
    local_steps: IntArray
    weight: FloatArray
    """What each trained model counts for in the sum that is asked for."""
    first: IntArray
    """Which of its update's minibatches the first step takes."""

    def __len__(self) -> int:
        return len(self.client)

    def __getitem__(self, rows: slice | IntArray) -> "Work":
        return Work(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def joined(parts: Sequence[Work]) -> Work:
    """Work of several cohorts, one after the other."""
    return Work(*(np.concatenate([getattr(part, name) for part in parts]) for name in Work.__dataclass_fields__))


MAX_DRAWN, MAX_STEPS = 1 << 24, 1024
"""Numbers that may be held while minibatches are drawn, and steps that are drawn together."""
Job = tuple[Tensor, Work]
"""A cohort: the model it started from, and its work."""
Ids = tuple[Tensor, Tensor]
"""Clients and the indices of their updates."""


class Batch(NamedTuple):
    """Samples to train on, one after the other."""

    images: Tensor
    labels: Tensor
    kept: Tensor | None
    """Dropout factors, for a model that has such."""
    counts: Tensor
    """How many samples each minibatch has, (num_rows,)."""

    def split(self) -> "list[Batch]":
        """The minibatches one by one."""
        sizes = self.counts.tolist()
        kept = [None] * len(sizes) if self.kept is None else self.kept.split(sizes)
        return list(map(Batch, self.images.split(sizes), self.labels.split(sizes), kept, self.counts))


class Task:
    """Everything a trainer needs, on one device. Images stay bytes, colors innermost, until a minibatch is made."""

    def __init__(
        self,
        dataset: Dataset,
        holdings: Holdings,
        factory: ModelFactory,
        batch_size: int,
        epochs: bool,
        seed: int,
        device: str = "cpu",
        proximal_mu: float = 0.0,
        held_out: Holdings | None = None,
    ) -> None:
        self.holdings, self.factory, self.seed, self.batch_size = holdings, factory, seed, batch_size
        self.device, self.proximal_mu, self.held_out = device, proximal_mu, held_out
        self.sampler = Sampler(holdings, batch_size, epochs, seed, device)
        self.train_images, self.train_labels = _on_device(dataset.train_images, dataset.train_labels, device)
        self.test_images, self.test_labels = _on_device(dataset.test_images, dataset.test_labels, device)

    def steps_at_once(self, work: Work) -> int:
        """How many minibatches of some work can be drawn together in little memory."""
        return max(1, min(MAX_STEPS, self._rows_at_once(work) // len(work)))

    def minibatches(self, work: Work, num_steps: int, begin: int = 0) -> Tensor:
        """Samples of minibatches of some work from a step on, (num_steps, num_updates, width); see `Sampler`."""
        at_once = max(1, self._rows_at_once(work) // num_steps)
        parts = [work[row : row + at_once] for row in range(0, len(work), at_once)]
        drawn = [self._drawn(part, num_steps, begin) for part in parts]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, dim=1)

    def _rows_at_once(self, work: Work) -> int:
        """How many minibatches, of whichever of these clients, can be drawn together."""
        return int(MAX_DRAWN / self.sampler.num_held(self.holdings.num_samples[work.client]))

    def _drawn(self, work: Work, num_steps: int, begin: int) -> Tensor:
        sizes = self.holdings.num_samples[work.client]
        per_pass = -(-sizes // self.batch_size)
        last = np.minimum(begin + num_steps, work.local_steps) - 1
        num_passes = max(1, int((last // per_pass - begin // per_pass).max()) + 1)
        first = to_device(work.first, self.device)
        return self.sampler.batches(*self.ids(work), num_steps, int(sizes.max()), num_passes, first, begin)

    def ids(self, work: Work) -> Ids:
        """Client and update index of some work, on the device."""
        return to_device(work.client, self.device), to_device(work.index, self.device)

    def batch(self, replica: Replica, ids: Ids, padded: Tensor, step: Tensor) -> "Batch":
        """The samples of minibatches, (num_rows, batch_size), in a row and without the padding.

        `ids` and `step` tell of each row whose update it belongs to and which of its minibatches it is.
        """
        there = padded != NO_SAMPLE
        samples = padded[there]
        kept = None
        if replica.num_dropout_units:
            rows, columns = there.nonzero(as_tuple=True)
            client, index = ids
            places = step[rows] * self.batch_size + columns
            kept = draw_kept(self.seed, replica.num_dropout_units, client[rows], index[rows], places)
        return Batch(scaled(self.train_images[samples]), self.train_labels[samples], kept, there.sum(1))

    def initial_vector(self) -> Tensor:
        """The model every strategy of this seed begins with."""
        return initial_vector(self.factory, self.seed).to(self.device)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's arrays, by name."""
        model = make_model(self.factory)
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    def replica(self) -> Replica:
        """A model of one's own to load vectors into."""
        return Replica(self.factory, self.device)


def make_task(
    settings: Settings,
    dataset: Dataset,
    num_clients: int,
    seed: int,
    factory: ModelFactory | None = None,
    device: str = "cpu",
    holding_out: bool = False,
) -> Task:
    """The task of a scenario on a data set, with the paper's network for it unless another is given.

    Where clients hold samples out, `holdings` is the rest, which they train on.
    """
    chosen = factory or FACTORIES[dataset.name]
    holdings = make_partition(settings, dataset.train_labels, num_clients, seed)
    held_out = None
    if holding_out:
        holdings, held_out = hold_out(holdings, seed)
    epochs, mu = settings.training.local_epochs > 0, settings.training.proximal_mu
    return Task(dataset, holdings, chosen, settings.training.batch_size, epochs, seed, device, mu, held_out)


def scaled(images: Tensor) -> Tensor:
    """Bytes with colors innermost as numbers in [0, 1], in the same layout, which convolutions are fastest on."""
    values = torch.empty(images.shape, device=images.device)
    return torch.div(images, 255, out=values).permute(0, 3, 1, 2)


def to_device(array: IntArray | FloatArray, device: str) -> Tensor:
    """A tensor on a device, without waiting for what the device still does."""
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _on_device(images: np.ndarray, labels: IntArray, device: str) -> tuple[Tensor, Tensor]:
    colors_innermost = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return torch.tensor(colors_innermost, device=device), torch.tensor(labels, device=device)
