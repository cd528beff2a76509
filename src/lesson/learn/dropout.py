"""Dropout with rate 0.75, drawn per client: each unit gets two random bits and is kept if both are 0."""

import numpy as np
import torch
from torch import Tensor

from lesson.learn.counters import Key, kernels_for, words

UNITS_PER_WORD = 16
SCALE = 4.0

# Row b has the factors of the four units whose random bits are the byte b.
_FACTORS = np.array(
    [[SCALE * ((byte >> shift) & 3 == 0) for shift in (0, 2, 4, 6)] for byte in range(256)], dtype=np.float32
)


def draw_factors(secret: Key, num_units: int, clients: Tensor, index: Tensor, places: Tensor) -> Tensor:
    """Draw the dropout factors of each sample, shape (num_samples, num_units): 4 with probability 1/4, otherwise 0.

    A draw depends on the client, the index of its update and the sample's position among all samples of that update.
    """
    kernels = kernels_for(places)
    if kernels is not None:
        drawn: Tensor = kernels.dropout_factors(secret, num_units, places, index, clients)
        return drawn
    random = words(secret, -(-num_units // UNITS_PER_WORD), places, index, clients)
    if random.is_cuda:
        shifts = torch.arange(0, 32, 2, device=random.device)
        return (((random[..., None] >> shifts) & 3 == 0) * SCALE).flatten(1)[:, :num_units]
    factors = _FACTORS[random.to(torch.int32).numpy().view(np.uint8)].reshape(len(random), -1)
    return torch.from_numpy(factors[:, :num_units])
