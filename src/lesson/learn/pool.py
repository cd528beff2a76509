"""Data for any number of virtual clients: each draws its samples from the whole data set, with replacement.

Nothing is stored but each client's shares of the classes. The sample at a position is worked out when it is asked for,
from (seed, client, position) alone, so the cost follows who trains and not who exists.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.core.streams import stream
from lesson.learn.counters import Key, key, words
from lesson.learn.holdings import Lookup


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
