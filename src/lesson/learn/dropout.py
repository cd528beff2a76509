"""Dropout of 0.75 from each client's own stream: two random bits a unit, kept where both are 0."""

import numpy as np
import torch
from torch import Tensor

from lesson.arrays import IntArray
from lesson.learn.counters import key, words

UNITS_PER_WORD = 16
SCALE = 4.0

# The factors of the four units whose bits are in one byte.
_FACTORS = np.array(
    [[SCALE * ((byte >> shift) & 3 == 0) for shift in (0, 2, 4, 6)] for byte in range(256)], dtype=np.float32
)


def draw_kept(seed: int, num_units: int, clients: IntArray, index: IntArray, places: IntArray) -> Tensor:
    """Factors of the units of each sample, (num_samples, num_units): 4 for a quarter of them, 0 for the others.

    A sample is told by its client, the client's update index and its place among all samples of that update.
    """
    random = words(key(seed, "dropout"), -(-num_units // UNITS_PER_WORD), places, index, clients)
    factors = _FACTORS[random.astype(np.uint32).view(np.uint8)].reshape(len(places), -1)
    return torch.from_numpy(factors[:, :num_units])
