"""Messages of single updates as bytes, for remote clients, which use the random numbers of simulated ones on a CPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lesson.core.random import stream
from lesson.learn.compression.base import Compressor, UpdateLayout, decoded, encoded, pack, uniforms, unpack

Values = npt.NDArray[np.float32]


def encode_update(
    compressor: Compressor, update: Values, sizes: Sequence[int], level: float, key: tuple[int, int, int]
) -> tuple[bytes, Values]:
    """Return the message of an update, and what the server decodes; `key` is the seed, the client and the index."""
    seed, client, index = key
    streams = [stream(seed, "compression", client, index)]
    layout = UpdateLayout(sizes, level, lambda count: uniforms(streams, count))
    message = encoded(compressor, torch.from_numpy(update)[None], layout)
    return pack(message), decoded(compressor, message, layout)[0].numpy()


def decode_update(compressor: Compressor, message: bytes, sizes: Sequence[int], level: float) -> Values:
    """Return the update that a message stands for; raise InputError if it does not have the right length."""
    layout = UpdateLayout(sizes, level, lambda count: torch.zeros(1, count))
    like = encoded(compressor, torch.zeros(1, layout.num_values), layout)
    values: Values = decoded(compressor, unpack(message, like), layout)[0].numpy()
    return values
