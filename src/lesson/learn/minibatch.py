"""Which samples a client trains on, drawn from (seed, client, update index, step) alone."""

import torch
from torch import Tensor

from lesson.core.arrays import IntArray
from lesson.learn.counters import kernels_for, key, words
from lesson.learn.partition import Holdings

NO_SAMPLE = -1
MAX_PAIRS = 64
"""Samples of a minibatch that are compared each with each; in a larger one, repeated draws are found by sorting."""


class Sampler:
    """Draws minibatches: independent ones without replacement inside each, or passes over all of a client's data."""

    def __init__(self, holdings: Holdings, batch_size: int, epochs: bool, seed: int, device: str = "cpu") -> None:
        self.batch_size, self.epochs = batch_size, epochs
        self._step_key, self._epoch_key = key(seed, "minibatch"), key(seed, "epoch")
        self._sizes = torch.tensor(holdings.num_samples, device=device)
        self._longest = int(holdings.num_samples.max())
        self.width = min(batch_size, self._longest)
        """The most samples a minibatch can have."""
        self._samples_at = holdings.lookup(device)
        self._turns = torch.arange(self.width, device=device)

    def batches(
        self,
        clients: Tensor,
        index: Tensor,
        num_steps: int,
        longest: int | None = None,
        num_passes: int = 1,
        first: Tensor | None = None,
        begin: int = 0,
    ) -> Tensor:
        """Samples of so many of each client's minibatches, from step `begin` on, (num_steps, num_clients, width); short
        ones end with NO_SAMPLE.

        `longest` is the most samples one of these clients has, `num_passes` the most passes one of them begins or
        continues in these steps; what is drawn for steps beyond them means nothing. Independent minibatches are counted
        from `first` on, passes from 0.
        """
        sizes = self._sizes[clients]
        if self.epochs:
            positions = self._passes(clients, index, num_steps, sizes, longest or self._longest, num_passes, begin)
        else:
            positions = self._draws(clients, index, num_steps, sizes, first, begin)
        samples = self._samples_at(clients[None, :, None], positions.clamp(min=0))
        return torch.where(positions == NO_SAMPLE, NO_SAMPLE, samples)

    def num_held(self, sizes: IntArray) -> float:
        """Numbers held while a step of one of the clients with so many samples is drawn."""
        if not self.epochs:
            return self.width * min(self.width, MAX_PAIRS)
        shortest_pass = -(-int(sizes.min()) // self.batch_size)
        return max(self.width, int(sizes.max()) / max(1, shortest_pass))

    def _draws(
        self, clients: Tensor, index: Tensor, num_steps: int, sizes: Tensor, first: Tensor | None, begin: int
    ) -> Tensor:
        """Floyd's sampling: the t-th draw is uniform below n − b + t + 1, or that bound if it was drawn before.

        It was drawn before if an earlier turn drew the same number, or drew a number that had been drawn before and
        took this one, its bound, instead. Following such a chain two, four, eight … turns back settles all at once.
        """
        steps = torch.arange(begin, begin + num_steps, device=clients.device)[:, None]
        steps = steps if first is None else steps + first
        ids = torch.broadcast_tensors(steps, index, clients, sizes)
        kernels = kernels_for(clients)
        if kernels is not None:
            drawn_there: Tensor = kernels.draws(self._step_key, self.width, *ids)
            return drawn_there
        batch, turns = sizes.clamp(max=self.batch_size), self._turns
        bounds = (sizes - batch)[:, None] + turns
        drawn = (words(self._step_key, self.width, *ids[:3]) * (bounds + 1)) >> 32
        repeated = _repeated(drawn, turns)
        taken_by = drawn - (sizes - batch)[:, None]  # the turn whose bound this is
        before = torch.where((taken_by >= 0) & (taken_by < turns), taken_by, turns)
        reach = 1
        while reach < self.width:
            repeated = repeated | repeated.gather(-1, before)
            before, reach = before.gather(-1, before), 2 * reach
        return torch.where(turns < batch[:, None], torch.where(repeated, bounds, drawn), NO_SAMPLE)

    def _passes(
        self, clients: Tensor, index: Tensor, num_steps: int, sizes: Tensor, longest: int, num_passes: int, begin: int
    ) -> Tensor:
        """The cuts of each client's shuffled data; every pass is shuffled anew."""
        per_epoch = -(-sizes // self.batch_size)
        steps = torch.arange(begin, begin + num_steps, device=clients.device)[:, None]
        before = begin // per_epoch
        epoch, cut = (steps // per_epoch - before).clamp(max=num_passes - 1), steps % per_epoch
        passes = torch.arange(num_passes, device=clients.device)[:, None] + before
        random = words(self._epoch_key, longest, *torch.broadcast_tensors(passes, index, clients))
        beyond = torch.arange(longest, device=clients.device) >= sizes[:, None]
        orders = random.masked_fill(beyond, 1 << 32).sort(stable=True).indices
        places = cut[..., None] * self.batch_size + self._turns
        columns = torch.arange(len(clients), device=clients.device)
        chosen = orders[epoch[..., None], columns[:, None], places.clamp(max=longest - 1)]
        return torch.where(places < sizes[:, None], chosen, NO_SAMPLE)


def _repeated(drawn: Tensor, turns: Tensor) -> Tensor:
    """Whether an earlier turn drew the same number, of the same shape."""
    if len(turns) <= MAX_PAIRS:
        return ((drawn[..., :, None] == drawn[..., None, :]) & (turns[:, None] > turns)).any(-1)
    ordered, places = drawn.sort(dim=-1, stable=True)
    same = torch.zeros_like(drawn, dtype=torch.bool)
    same[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    return torch.zeros_like(same).scatter(-1, places, same)
