"""Counter-based random streams: what is drawn depends on its own name, never on what was drawn before."""

import hashlib

import numpy as np


def stream(seed: int, what: str, *index: int) -> np.random.Generator:
    """A generator of its own for (seed, what, index…), the same on every machine and in any order.

    The i-th number of the stream belongs to client i wherever one array is drawn for a whole population,
    so a client keeps its numbers when the population grows.
    """
    name = repr((int(seed), what, *map(int, index)))
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
