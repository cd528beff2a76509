"""Partitions of the training samples among clients. Each sample belongs to at most one client, except in a `Pool`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.fleet.fleet import find_clients
from lesson.learn.counters import Key, key, words
from lesson.settings.settings import Settings


class Lookup(NamedTuple):
    """Who holds what, on a device."""

    device: str
    sizes: Callable[[Tensor], Tensor]
    """Returns the number of samples of each client."""
    samples: Callable[[Tensor, Tensor], Tensor]
    """Returns samples, shape (..., num_clients, num_positions), given clients and positions among their samples."""


MAX_TRIES = 500


@dataclass(frozen=True, eq=False)
class Partition:
    """Samples of each client, stored one after the other: client i holds samples[offsets[i]:offsets[i + 1]].

    Indexing with a client returns its samples, as indices into the training set.
    """

    samples: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, parts: list[IntArray]) -> "Partition":
        """Return the partition with these samples, one array per client."""
        return cls(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> IntArray:
        return self.samples[self.offsets[client] : self.offsets[client + 1]]

    @property
    def num_samples(self) -> IntArray:
        """Number of samples of each client, shape (num_clients,)."""
        return np.diff(self.offsets)

    def lookup(self, device: str) -> Lookup:
        """Return the tables of this partition on a device."""
        arrays = (self.samples, self.offsets, self.num_samples)
        samples, offsets, sizes = (torch.as_tensor(array, device=device) for array in arrays)
        return Lookup(device, sizes.__getitem__, lambda clients, at: samples[offsets[clients][:, None] + at])


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples of each client, drawn from the whole data set with replacement, with class shares of its own."""

    num_samples: IntArray
    thresholds: IntArray
    """Cumulative class shares without the last, in units of 2⁻³², shape (num_clients, num_classes − 1)."""
    members: IntArray
    """All samples, sorted by class."""
    starts: IntArray
    """Where each class starts in `members`, followed by the number of samples, shape (num_classes + 1,)."""
    secret: Key

    def __getitem__(self, client: int) -> IntArray:
        positions = torch.arange(int(self.num_samples[client]))
        samples: IntArray = self.lookup("cpu").samples(torch.tensor([client]), positions)[0].numpy()
        return samples

    def lookup(self, device: str) -> Lookup:
        """Return functions that draw from this pool on a device."""
        arrays = (self.thresholds, self.members, self.starts[:-1], np.diff(self.starts), self.num_samples)
        thresholds, members, starts, sizes, num_held = (torch.as_tensor(array, device=device) for array in arrays)

        def samples_at(clients: Tensor, positions: Tensor) -> Tensor:
            clients, positions = torch.broadcast_tensors(clients[:, None], positions)
            drawn = words(self.secret, 2, positions, clients)
            chosen = (drawn[..., :1] >= thresholds[clients]).sum(-1)
            return members[starts[chosen] + ((drawn[..., 1] * sizes[chosen]) >> 32)]

        return Lookup(device, num_held.__getitem__, samples_at)


Holdings = Partition | Pool
"""Which samples each client holds."""


def make_partition(
    settings: Settings, num_samples: int, labels: IntArray | None, num_held: IntArray | None = None
) -> Holdings:
    """Return which samples each client holds, as the settings of [data] prescribe.

    `labels` has the class of each of the `num_samples` training samples; None if they have no classes. `num_held` is
    the number of samples of each client in the population of the run; by default, it is drawn here.
    """
    split, beta = settings.data.split, settings.data.beta
    num_clients, seed = settings.fleet.num_clients, settings.run.seed
    if split == "iid":
        return split_iid(num_samples, num_clients, seed)
    if split == "natural":
        raise InputError("[data] split must not be 'natural': the task does not list the samples of its clients")
    if split == "quantity-skew":
        return split_by_quantity(num_samples, num_clients, beta, seed)
    if labels is None:
        raise InputError(
            f"[data] split must be 'iid' or 'quantity-skew', or the task must list the samples of its clients, got "
            f"'{split}': targets are not class labels"
        )
    if split == "dirichlet-per-class":
        return split_dirichlet_per_class(labels, num_clients, beta, settings.training.batch_size, seed)
    if num_held is None:
        num_held = find_clients(settings).num_samples
    if split == "dirichlet-pool":
        return draw_pool(labels, num_held, beta, seed)
    if (needed := int(num_held.sum())) > len(labels):
        source = (
            f"num_samples in {settings.fleet.latencies}" if settings.fleet.latencies else "[data] samples_per_client"
        )
        raise InputError(
            f"{source} requires {needed} samples, but the data set has {len(labels)}; use a smaller number, or fewer "
            "clients"
        )
    return split_dirichlet_per_client(labels, num_held, beta, seed)


def split_iid(num_samples: int, num_clients: int, seed: int) -> Partition:
    """Shuffle all samples and split them into parts whose sizes differ by at most one."""
    _check_enough(num_samples, num_clients, 1)
    shuffled = stream(seed, "partition/iid").permutation(num_samples)
    return Partition.of([np.sort(part) for part in np.array_split(shuffled, num_clients)])


def split_by_quantity(num_samples: int, num_clients: int, beta: float, seed: int) -> Partition:
    """Shuffle all samples and split them into parts of unequal sizes, with shares from Dirichlet(β, …, β).

    As in Li et al. ("Federated Learning on Non-IID Data Silos", 2022), only the sizes are skewed. Every client gets one
    sample, so that no client is without data; the remaining samples are divided by the shares.
    """
    _check_enough(num_samples, num_clients, 1)
    rng = stream(seed, "partition/quantity")
    shares = rng.dirichlet(np.full(num_clients, beta))
    ends = 1 + np.arange(num_clients) + (np.cumsum(shares) * (num_samples - num_clients)).astype(np.int64)
    ends[-1] = num_samples
    return Partition.of([np.sort(part) for part in np.split(rng.permutation(num_samples), ends[:-1])])


def split_dirichlet_per_class(
    labels: IntArray, num_clients: int, beta: float, min_samples: int, seed: int
) -> Partition:
    """Split the samples of each class among clients, with shares from Dirichlet(β, …, β).

    As in Li et al. ("Federated Learning on Non-IID Data Silos", 2022), a client that already holds the average number
    of samples gets none of the remaining classes. The split is drawn again until every client has `min_samples`; after
    MAX_TRIES draws, InputError is raised.
    """
    _check_enough(len(labels), num_clients, min_samples)
    classes = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    for attempt in range(MAX_TRIES):
        rng = stream(seed, "partition/per-class", attempt)
        parts: list[list[IntArray]] = [[] for _ in range(num_clients)]
        held = np.zeros(num_clients)
        for members in classes:
            shares = rng.dirichlet(np.full(num_clients, beta)) * (held < len(labels) / num_clients)
            if not shares.sum() > 0:  # the shares of all remaining clients underflowed
                shares = (held < len(labels) / num_clients).astype(np.float64)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(np.int64)[:-1]
            for client, part in enumerate(np.split(rng.permutation(members), cuts)):
                parts[client].append(part)
                held[client] += len(part)
        if held.min() >= min_samples:
            return Partition.of([np.sort(np.concatenate(part)) for part in parts])
    raise InputError(
        f"[data] beta = {beta:g} leaves one of {num_clients} clients with fewer than {min_samples} samples in each "
        f"of {MAX_TRIES} draws; use a larger beta, fewer clients or split = 'dirichlet-per-client'"
    )


def split_dirichlet_per_client(labels: IntArray, num_samples: IntArray, beta: float, seed: int) -> Partition:
    """Draw `num_samples` samples per client without replacement, with class shares from Dirichlet(β, …, β).

    Clients draw in order. When a class is exhausted, a client draws its missing samples from the remaining classes in
    proportion to its shares, or evenly if these are 0.
    """
    num_clients = len(num_samples)
    rng = stream(seed, "partition/per-client")
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(int(labels.max()) + 1)]
    left = np.array([len(pool) for pool in pools])
    parts = []
    for client in range(num_clients):
        counts = _draw_counts(rng, rng.dirichlet(np.full(len(pools), beta)), int(num_samples[client]), left)
        part = [pool[size - count : size] for pool, size, count in zip(pools, left, counts, strict=True)]
        left = left - counts
        parts.append(np.sort(np.concatenate(part)))
    return Partition.of(parts)


def _draw_counts(rng: np.random.Generator, shares: FloatArray, wanted: int, left: IntArray) -> IntArray:
    """Draw how many samples of each class a client gets, at most `left`."""
    counts = np.zeros(len(left), dtype=np.int64)
    while counts.sum() < wanted:
        open_shares = shares * (counts < left)
        if not open_shares.sum() > 0:
            open_shares = (counts < left).astype(np.float64)
        counts += rng.multinomial(wanted - counts.sum(), open_shares / open_shares.sum())
        counts = np.minimum(counts, left)
    return counts


def _check_enough(num_labels: int, num_clients: int, min_samples: int) -> None:
    if min_samples > num_labels:
        raise InputError(
            f"[training] batch_size must be at most {num_labels}, the number of samples, got {min_samples}"
        )
    if num_clients * min_samples > num_labels:
        raise InputError(
            f"[fleet] num_clients must be at most {num_labels // min_samples}, got {num_clients}: "
            f"there are {num_labels} samples, and every client needs {min_samples}"
        )


def draw_pool(labels: IntArray, num_samples: IntArray, beta: float, seed: int) -> Pool:
    """Let each client draw `num_samples` samples with replacement, with class shares from Dirichlet(β, …, β)."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shares = stream(seed, "partition/pool").dirichlet(np.full(len(counts), beta), size=len(num_samples))
    return Pool(
        num_samples=num_samples,
        thresholds=(np.cumsum(shares, axis=1)[:, :-1] * 2.0**32).astype(np.int64),
        members=np.argsort(classes, kind="stable"),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        secret=key(seed, "pool"),
    )
