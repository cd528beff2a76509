"""Counter-based random numbers: Philox 4×32-10 (Salmon et al. 2011), bit-identical on every device.

A random word depends only on the seed, its purpose and its counter, so a client's draws do not depend on which other
clients train, on which device, or in which order.
"""

import subprocess
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lesson.core.random import number_of

_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_BUMP = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Key = tuple[int, int] | tuple[Tensor, Tensor]
"""Two 32-bit words, the same for all draws or one pair per draw."""
Block = tuple[Tensor, Tensor, Tensor, Tensor]


def key(seed: int, what: str) -> tuple[int, int]:
    """Return the Philox key, two 32-bit words, of a seed and a purpose."""
    number = number_of(seed, what)
    return number & _MASK, number >> 32


def per_row(key: Key, times: int) -> Key:
    """Return a key whose words, if there is one pair per row, are repeated for `times` draws of each row."""
    words: Any = tuple(one.repeat_interleave(times) if isinstance(one, Tensor) else one for one in key)
    pair: Key = words
    return pair


def philox(counter: Block, key: Key) -> Block:
    """Return four random 32-bit words for each counter of four 32-bit words; all are stored as 64-bit integers."""
    a, b, c, d = counter
    left: Any
    right: Any
    left, right = key
    for _ in range(_ROUNDS):
        # Products wrap at 64 bits; the mask removes the sign bits that the shift copies.
        first, second = a * _MULTIPLY[0], c * _MULTIPLY[1]
        a, b, c, d = (
            ((second >> 32) & _MASK) ^ b ^ left,
            second & _MASK,
            ((first >> 32) & _MASK) ^ d ^ right,
            first & _MASK,
        )
        left, right = (left + _BUMP[0]) & _MASK, (right + _BUMP[1]) & _MASK
    return a, b, c, d


def words(key: Key, count: int, *ids: Tensor) -> Tensor:
    """Return `count` random 32-bit words for each element of 1 to 3 id tensors of one shape, (*shape, count).

    A key of tensors has one pair per element, in a shape that can be broadcast to that of the ids.
    """
    kernels = kernels_for(ids[0])
    if kernels is not None:
        drawn: Tensor = kernels.words(key, count, *ids)
        return drawn
    blocks = torch.arange(-(-count // 4), device=ids[0].device)
    rows = [column.unsqueeze(-1) for column in ids]
    rows += [torch.zeros_like(rows[0])] * (3 - len(rows))
    a, b, c, d = torch.broadcast_tensors(blocks, *rows)
    columns: Any = tuple(word.unsqueeze(-1) if isinstance(word, Tensor) else word for word in key)
    return torch.stack(philox((a, b, c, d), columns), dim=-1).flatten(-2)[..., :count]


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """Return the GPU kernels for this tensor; None if it is on a CPU or the kernels are unavailable."""
    return gpu_kernels() if tensor.is_cuda else None


@cache
def gpu_kernels() -> ModuleType | None:
    """Return the Triton kernels; None if Triton or the compiler it needs is unavailable.

    They make the same draws as the functions here in one kernel each, and provide faster layers.
    """
    try:
        from lesson.learn.cuda import kernels

        kernels.check()
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return None
    return kernels
