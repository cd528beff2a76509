"""Which samples a client trains on, drawn from (seed, client, update index, step) alone."""

import numpy as np

from lesson.arrays import IntArray
from lesson.learn.counters import key, words
from lesson.learn.partition import Partition

NO_SAMPLE = -1


class Sampler:
    """Draws minibatches: independent ones without replacement inside each, or passes over all of a client's data."""

    def __init__(self, partition: Partition, batch_size: int, epochs: bool, seed: int) -> None:
        self.partition, self.batch_size, self.epochs = partition, batch_size, epochs
        self._step_key, self._epoch_key = key(seed, "minibatch"), key(seed, "epoch")
        self._num_samples = partition.num_samples

    def batches(self, clients: IntArray, index: IntArray, step: int) -> IntArray:
        """Samples of one minibatch for each client, (num_clients, batch_size); NO_SAMPLE at the end of short ones."""
        draw = self._passes if self.epochs else self._draws
        positions = draw(clients, index, step, self._num_samples[clients])
        samples = self.partition.samples[self.partition.offsets[clients][:, None] + np.maximum(positions, 0)]
        return np.where(positions == NO_SAMPLE, NO_SAMPLE, samples)

    def _draws(self, clients: IntArray, index: IntArray, step: int, sizes: IntArray) -> IntArray:
        """Floyd's sampling: the t-th draw is uniform below n − b + t + 1, or that bound if it was drawn before."""
        batch = np.minimum(self.batch_size, sizes)
        random = words(self._step_key, self.batch_size, np.full(len(clients), step), index, clients)
        chosen = np.full((len(clients), self.batch_size), NO_SAMPLE, dtype=np.int64)
        for turn in range(self.batch_size):
            bound = sizes - batch + turn
            drawn = (random[:, turn] * (bound + 1)) >> 32
            repeated = np.any(chosen[:, :turn] == drawn[:, None], axis=1)
            chosen[:, turn] = np.where(turn < batch, np.where(repeated, bound, drawn), NO_SAMPLE)
        return chosen

    def _passes(self, clients: IntArray, index: IntArray, step: int, sizes: IntArray) -> IntArray:
        """The step-th cut of a client's shuffled data; every pass is shuffled anew."""
        chosen = np.full((len(clients), self.batch_size), NO_SAMPLE, dtype=np.int64)
        for row, (client, number, size) in enumerate(zip(clients, index, sizes, strict=True)):
            per_epoch = -(-int(size) // self.batch_size)
            epoch, cut = divmod(step, per_epoch)
            ids = (np.array([epoch]), np.array([number]), np.array([client]))
            order = np.argsort(words(self._epoch_key, int(size), *ids)[0], kind="stable")
            part = order[cut * self.batch_size : (cut + 1) * self.batch_size]
            chosen[row, : len(part)] = part
        return chosen
