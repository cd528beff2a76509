"""Minibatches, drawn at random from the seed, the client, the index of its update and the step alone."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.learn.counters import Key, kernels_for, key, words
from lesson.learn.partition import Holdings, Lookup

NO_SAMPLE = -1


class Keys(NamedTuple):
    """Keys of the random numbers of local training."""

    minibatch: Key
    epoch: Key
    dropout: Key

    @classmethod
    def of(cls, seed: int) -> Self:
        """Return the keys of a seed."""
        return cls(*(key(seed, what) for what in cls._fields))


class Sampler:
    """Draws minibatches: independent ones, each without replacement, or epochs over all samples of a client.

    `width` is the largest number of samples in a minibatch, `longest` that of a client.
    """

    def __init__(self, holdings: Lookup, batch_size: int, epochs: bool, keys: Keys, width: int, longest: int) -> None:
        self.batch_size, self.epochs, self.keys = batch_size, epochs, keys
        self.width, self._longest, self._holdings = width, longest, holdings
        self._turns = torch.arange(width, device=holdings.device)

    @classmethod
    def of(cls, holdings: Holdings, batch_size: int, epochs: bool, seed: int, device: str = "cpu") -> Self:
        """Return the sampler of a run."""
        longest = int(holdings.num_samples.max())
        return cls(holdings.lookup(device), batch_size, epochs, Keys.of(seed), min(batch_size, longest), longest)

    def batches(
        self,
        clients: Tensor,
        index: Tensor,
        num_steps: int,
        longest: int | None = None,
        num_passes: int = 1,
        first: Tensor | None = None,
        begin: int = 0,
        most_samples: Tensor | None = None,
    ) -> Tensor:
        """Return the samples of minibatches, shape (num_steps, num_clients, width), padded at the end with NO_SAMPLE.

        The first step is `begin`. `longest` is the largest number of samples of any of these clients. `num_passes` is
        the largest number of epochs that these steps span for any of them; minibatches of later epochs are meaningless.
        Independent minibatches are numbered from `first`, and have at most `most_samples`; those of epochs are numbered
        from 0.
        """
        sizes = self._holdings.sizes(clients)
        if self.epochs:
            positions = self._passes(clients, index, num_steps, sizes, longest or self._longest, num_passes, begin)
        else:
            positions = self._draws(clients, index, num_steps, sizes, first, begin, most_samples)
        samples = self._holdings.samples(clients, positions.clamp(min=0))
        return torch.where(positions == NO_SAMPLE, NO_SAMPLE, samples)

    def num_held(self, sizes: IntArray) -> float:
        """Return how many numbers are in memory per minibatch while they are drawn; `sizes` is samples per client."""
        if not self.epochs:
            return self.width
        shortest_pass = -(-int(sizes.min()) // self.batch_size)
        return max(self.width, int(sizes.max()) / max(1, shortest_pass))

    def _draws(
        self,
        clients: Tensor,
        index: Tensor,
        num_steps: int,
        sizes: Tensor,
        first: Tensor | None,
        begin: int,
        most_samples: Tensor | None,
    ) -> Tensor:
        """Draw positions without replacement by Floyd's algorithm, shape (num_steps, num_clients, width).

        In turn t a number in [0, n − b + t] is drawn; if it has been chosen before, the bound n − b + t is chosen
        instead. A number has been chosen before if an earlier turn drew it as well, or if it is the bound of an earlier
        turn that chose its bound. Such chains are followed 1, 2, 4, … turns back, for all turns at once.
        """
        steps = torch.arange(begin, begin + num_steps, device=clients.device)[:, None]
        steps = steps if first is None else steps + first
        counts = sizes.clamp(max=self.batch_size)
        counts = counts if most_samples is None else torch.minimum(counts, most_samples)
        ids = torch.broadcast_tensors(steps, index, clients, sizes, counts)
        kernels = kernels_for(clients)
        if kernels is not None:
            drawn_there: Tensor = kernels.draws(self.keys.minibatch, self.width, *ids)
            return drawn_there
        turns = self._turns
        bounds = (sizes - counts)[:, None] + turns
        drawn = (words(self.keys.minibatch, self.width, *ids[:3]) * (bounds + 1)) >> 32
        repeated = _repeated(drawn)
        taken_by = drawn - (sizes - counts)[:, None]  # the turn whose bound is this number
        before = torch.where((taken_by >= 0) & (taken_by < turns), taken_by, turns)
        reach = 1
        while reach < self.width:
            repeated = repeated | repeated.gather(-1, before)
            before, reach = before.gather(-1, before), 2 * reach
        return torch.where(turns < counts[:, None], torch.where(repeated, bounds, drawn), NO_SAMPLE)

    def _passes(
        self, clients: Tensor, index: Tensor, num_steps: int, sizes: Tensor, longest: int, num_passes: int, begin: int
    ) -> Tensor:
        """Cut each client's shuffled positions into minibatches, padded as in `batches`; each epoch is reshuffled."""
        per_epoch = -(-sizes // self.batch_size)
        steps = torch.arange(begin, begin + num_steps, device=clients.device)[:, None]
        before = begin // per_epoch
        epoch, cut = (steps // per_epoch - before).clamp(max=num_passes - 1), steps % per_epoch
        passes = torch.arange(num_passes, device=clients.device)[:, None] + before
        random = words(self.keys.epoch, longest, *torch.broadcast_tensors(passes, index, clients))
        beyond = torch.arange(longest, device=clients.device) >= sizes[:, None]
        orders = random.masked_fill(beyond, 1 << 32).sort(stable=True).indices
        places = cut[..., None] * self.batch_size + self._turns
        columns = torch.arange(len(clients), device=clients.device)
        chosen = orders[epoch[..., None], columns[:, None], places.clamp(max=longest - 1)]
        return torch.where(places < sizes[:, None], chosen, NO_SAMPLE)


def sample_weights(padded: Tensor, scale: Tensor) -> Tensor:
    """Return the weight of each place in padded minibatches, shape (num_rows, width), in float32.

    The samples of a row share its `scale`, shape (num_rows,), equally; padding has weight 0.
    """
    is_sample = padded != NO_SAMPLE
    return torch.where(is_sample, (scale / is_sample.sum(1))[:, None], 0.0).to(torch.float32)


def _repeated(drawn: Tensor) -> Tensor:
    """Return whether an earlier turn drew the same number, in the shape of `drawn`."""
    ordered, places = drawn.sort(dim=-1, stable=True)
    same = torch.zeros_like(drawn, dtype=torch.bool)
    same[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return torch.zeros_like(same).scatter(-1, places, same)
