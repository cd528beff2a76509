"""The learning task: data, its partition among clients, the model, and the minibatches of local training."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.learn.cohort import Cohort
from lesson.learn.data import Dataset
from lesson.learn.device import to_device
from lesson.learn.dropout import draw_kept
from lesson.learn.minibatch import NO_SAMPLE, Sampler
from lesson.learn.models import FACTORIES, ModelFactory, Replica, initial_vector, make_model
from lesson.learn.partition import Holdings, Partition, make_partition
from lesson.settings.sections import TrainingSettings
from lesson.settings.settings import Settings

SHARE = 0.1
MAX_LOCAL_SAMPLES = 10**8
"""Samples of one local training, repeated ones included: 1,000 passes over all of MNIST, and more."""


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

    images: Tensor
    labels: Tensor
    kept: Tensor | None
    """Dropout factors; None for a model without dropout."""
    counts: Tensor
    """Number of samples in each minibatch, shape (num_rows,)."""

    def split(self) -> "list[Batch]":
        """Return the minibatches one by one."""
        sizes = self.counts.tolist()
        kept = [None] * len(sizes) if self.kept is None else self.kept.split(sizes)
        return list(map(Batch, self.images.split(sizes), self.labels.split(sizes), kept, self.counts))


class Task:
    """Everything a trainer needs, on one device. Images are stored as bytes in channels-last order."""

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
        first = to_device(cohort.first, self.device)
        return self.sampler.batches(*self.ids(cohort), num_steps, int(sizes.max()), num_passes, first, begin)

    def ids(self, cohort: Cohort) -> Ids:
        """Return clients and update indices of this cohort, on the device."""
        return to_device(cohort.client, self.device), to_device(cohort.index, self.device)

    def batch(self, replica: Replica, ids: Ids, padded: Tensor, step: Tensor) -> "Batch":
        """Return the samples of padded minibatches, shape (num_rows, width), concatenated without the padding.

        `ids` says which update each row belongs to, and `step` which of its minibatches it is.
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
        """Return the initial model, which is the same for all strategies with this seed."""
        return initial_vector(self.factory, self.seed).to(self.device)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the model's parameters by name."""
        model = make_model(self.factory)
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}

    def replica(self) -> Replica:
        """Return a new model to load vectors into."""
        return Replica(self.factory, self.device)


def make_task(
    settings: Settings,
    dataset: Dataset,
    num_clients: int,
    seed: int,
    factory: ModelFactory | None = None,
    device: str = "cpu",
    holding_out: bool = False,
    num_samples: IntArray | None = None,
) -> Task:
    """Return the task of these settings on a data set, with the paper's network for it by default.

    If clients hold out samples, `holdings` has the remaining ones, which they train on. `num_samples` is
    passed to `make_partition`.
    """
    chosen = factory or FACTORIES[dataset.name]
    holdings = make_partition(settings, dataset.train_labels, num_clients, seed, num_samples)
    _check_work(settings.training, holdings)
    held_out = None
    if holding_out:
        holdings, held_out = hold_out(holdings, seed)
    epochs, mu = settings.training.local_epochs > 0, settings.training.proximal_mu
    return Task(dataset, holdings, chosen, settings.training.batch_size, epochs, seed, device, mu, held_out)


def _check_work(training: TrainingSettings, holdings: Holdings) -> None:
    """Raise if a local training would take so long that the run seems to hang."""
    most = max(1, int(holdings.num_samples.max()))
    name, per_pass = (
        ("local_epochs", most) if training.local_epochs else ("local_steps", min(training.batch_size, most))
    )
    if getattr(training, name) > MAX_LOCAL_SAMPLES // per_pass:
        raise InputError(
            f"[training] {name} must be <= {MAX_LOCAL_SAMPLES // per_pass}, got {getattr(training, name)}: one local "
            "training may process at most 10^8 samples"
        )


def scaled(images: Tensor) -> Tensor:
    """Convert bytes in channels-last order to floats in [0, 1] of shape (num, channels, height, width).

    The memory layout stays channels-last, in which convolutions are fastest.
    """
    values = torch.empty(images.shape, device=images.device)
    return torch.div(images, 255, out=values).permute(0, 3, 1, 2)


def _on_device(images: np.ndarray, labels: IntArray, device: str) -> tuple[Tensor, Tensor]:
    colors_innermost = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return torch.tensor(colors_innermost, device=device), torch.tensor(labels, device=device)
