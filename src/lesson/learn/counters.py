"""Random words by counter: Philox 4×32-10 (Salmon et al. 2011), the same on numpy arrays and torch tensors.

A word depends on the seed, on what it is for, and on its own counter alone, so a client's draws do not depend on who
else trains, where, or in which order.
"""

import hashlib
from typing import TypeVar

import numpy as np
import torch

from lesson.arrays import IntArray

Words = TypeVar("Words", IntArray, torch.Tensor)
_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_BUMP = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def key(seed: int, what: str) -> tuple[int, int]:
    """Two 32-bit words for one purpose of one seed."""
    digest = hashlib.blake2b(repr((int(seed), what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Four random 32-bit words, held in 64-bit integers, for every counter of four such words."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        # Products wrap at 64 bits; the mask takes the sign of the shifted one away.
        first, second = a * _MULTIPLY[0], c * _MULTIPLY[1]
        a, b, c, d = (
            ((second >> 32) & _MASK) ^ b ^ left,
            second & _MASK,
            ((first >> 32) & _MASK) ^ d ^ right,
            first & _MASK,
        )
        left, right = (left + _BUMP[0]) & _MASK, (right + _BUMP[1]) & _MASK
    return a, b, c, d


def words(key: tuple[int, int], count: int, *ids: IntArray) -> IntArray:
    """So many random 32-bit words for each row of up to three id arrays, (num_rows, count)."""
    blocks = np.arange(-(-count // 4))[None, :]
    rows = [np.asarray(column, dtype=np.int64)[:, None] for column in ids]
    zero = np.zeros((1, 1), dtype=np.int64)
    rows += [zero] * (3 - len(rows))
    drawn = philox((blocks + 0 * rows[0], rows[0] + 0 * blocks, rows[1] + 0 * blocks, rows[2] + 0 * blocks), key)
    return np.stack(np.broadcast_arrays(*drawn), axis=-1).reshape(len(rows[0]), -1)[:, :count]
