"""How the training samples are divided among clients. Every sample belongs to at most one client, but for pool.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.fleet.population import draw_population
from lesson.learn.counters import Key, key, words
from lesson.settings.settings import Settings

Lookup = Callable[[Tensor, Tensor], Tensor]


class Holdings(Protocol):
    """Which samples each client holds."""

    @property
    def num_samples(self) -> IntArray:
        """Samples of each client, (num_clients,)."""
        ...

    def __getitem__(self, client: int) -> IntArray:
        """The samples of one client."""
        ...

    def lookup(self, device: str) -> Lookup:
        """A function on a device: the samples at these positions among those of these clients."""
        ...


MAX_TRIES = 500


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client holds: those of client i are samples[offsets[i]:offsets[i + 1]]."""

    samples: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, parts: list[IntArray]) -> "Partition":
        """The partition of one array of samples per client."""
        return cls(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> IntArray:
        return self.samples[self.offsets[client] : self.offsets[client + 1]]

    @property
    def num_samples(self) -> IntArray:
        """Samples of each client, (num_clients,)."""
        return np.diff(self.offsets)

    def lookup(self, device: str) -> Lookup:
        """A function on a device: the samples at these positions among those of these clients."""
        return _StoredLookup(torch.as_tensor(self.samples, device=device), torch.as_tensor(self.offsets, device=device))


@dataclass(frozen=True, eq=False)
class _StoredLookup:
    samples: Tensor
    offsets: Tensor

    def __call__(self, clients: Tensor, positions: Tensor) -> Tensor:
        return self.samples[self.offsets[clients] + positions]


def make_partition(settings: Settings, labels: IntArray, num_clients: int, seed: int) -> Holdings:
    """What each client holds in a scenario."""
    if settings.data.split == "iid":
        return split_iid(labels, num_clients, seed)
    if settings.data.split == "dirichlet-per-class":
        return split_dirichlet_per_class(labels, num_clients, settings.data.beta, settings.training.batch_size, seed)
    num_samples = draw_population(settings, num_clients, seed).num_samples
    if settings.data.split == "dirichlet-pool":
        return draw_pool(labels, num_samples, settings.data.beta, seed)
    return split_dirichlet_per_client(labels, num_samples, settings.data.beta, seed)


def split_iid(labels: IntArray, num_clients: int, seed: int) -> Partition:
    """All samples, shuffled and cut into parts whose sizes differ by at most one."""
    _check_enough(len(labels), num_clients, 1)
    shuffled = stream(seed, "partition/iid").permutation(len(labels))
    return Partition.of([np.sort(part) for part in np.array_split(shuffled, num_clients)])


def split_dirichlet_per_class(
    labels: IntArray, num_clients: int, beta: float, min_samples: int, seed: int
) -> Partition:
    """All samples; each class is divided by shares drawn from Dirichlet(β, …, β) over clients.

    The balance rule of Li et al. ("Federated Learning on Non-IID Data Silos", 2022): a client that already holds its
    average of samples gets none of the classes that follow. Drawn again until everybody has `min_samples`.
    """
    _check_enough(len(labels), num_clients, min_samples)
    classes = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    for attempt in range(MAX_TRIES):
        rng = stream(seed, "partition/per-class", attempt)
        parts: list[list[IntArray]] = [[] for _ in range(num_clients)]
        held = np.zeros(num_clients)
        for members in classes:
            shares = rng.dirichlet(np.full(num_clients, beta)) * (held < len(labels) / num_clients)
            if not shares.sum() > 0:  # every open client drew a share too small for floating point
                shares = (held < len(labels) / num_clients).astype(np.float64)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(np.int64)[:-1]
            for client, part in enumerate(np.split(rng.permutation(members), cuts)):
                parts[client].append(part)
                held[client] += len(part)
        if held.min() >= min_samples:
            return Partition.of([np.sort(np.concatenate(part)) for part in parts])
    raise InputError(
        f"[data] beta = {beta:g} leaves one of {num_clients} clients with fewer than {min_samples} samples in each "
        f"of {MAX_TRIES} draws; take a larger beta, fewer clients or split = 'dirichlet-per-client'"
    )


def split_dirichlet_per_client(labels: IntArray, num_samples: IntArray, beta: float, seed: int) -> Partition:
    """So many samples for each client, its classes drawn with shares from Dirichlet(β, …, β), without replacement.

    Clients are served in order. When a class runs out, what a client still lacks is drawn from the classes that are
    left, in proportion to the client's shares of them, evenly if it has none.
    """
    num_clients = len(num_samples)
    if num_samples.sum() > len(labels):
        raise InputError(
            f"[data] samples_per_client asks for {num_samples.sum()} samples, there are {len(labels)}; take fewer"
        )
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
    """How many samples of each class a client gets, within what is left."""
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
            f"[training] batch_size must be at most {num_labels}, the samples there are, got {min_samples}"
        )
    if num_clients * min_samples > num_labels:
        raise InputError(
            f"[fleet] num_clients must be at most {num_labels // min_samples}, got {num_clients}: "
            f"there are {num_labels} samples, and every client needs {min_samples}"
        )


@dataclass(frozen=True, eq=False)
class Pool:
    """Which samples each client holds: `num_samples` draws from the data set, by its own shares of the classes."""

    num_samples: IntArray
    thresholds: IntArray
    """Upper ends of the classes' shares but the last, in 2⁻³², (num_clients, num_classes - 1)."""
    members: IntArray
    """All samples, class by class."""
    starts: IntArray
    """Where each class begins in `members`, and the end."""
    secret: Key

    def __len__(self) -> int:
        return len(self.num_samples)

    def __getitem__(self, client: int) -> IntArray:
        positions = torch.arange(int(self.num_samples[client]))
        samples: IntArray = self.lookup("cpu")(torch.tensor(client), positions).numpy()
        return samples

    def lookup(self, device: str) -> Lookup:
        """A function on a device: the samples at these positions among those of these clients."""
        arrays = (self.thresholds, self.members, self.starts[:-1], np.diff(self.starts))
        return _PoolLookup(self.secret, *(torch.as_tensor(array, device=device) for array in arrays))


@dataclass(frozen=True, eq=False)
class _PoolLookup:
    secret: Key
    thresholds: Tensor
    members: Tensor
    starts: Tensor
    class_sizes: Tensor

    def __call__(self, clients: Tensor, positions: Tensor) -> Tensor:
        clients, positions = torch.broadcast_tensors(clients, positions)
        drawn = words(self.secret, 2, positions, clients)
        chosen = (drawn[..., :1] >= self.thresholds[clients]).sum(-1)
        return self.members[self.starts[chosen] + ((drawn[..., 1] * self.class_sizes[chosen]) >> 32)]


def draw_pool(labels: IntArray, num_samples: IntArray, beta: float, seed: int) -> Pool:
    """So many samples for each client, its classes drawn with shares from Dirichlet(β, …, β)."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shares = stream(seed, "partition/pool").dirichlet(np.full(len(counts), beta), size=len(num_samples))
    return Pool(
        num_samples=num_samples,
        thresholds=(np.cumsum(shares, axis=1)[:, :-1] * 2.0**32).astype(np.int64),
        members=np.argsort(classes, kind="stable"),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        secret=key(seed, "pool"),
    )
