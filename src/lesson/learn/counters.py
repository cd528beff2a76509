"""Random words by counter: Philox 4×32-10 (Salmon et al. 2011), the same bits on every device.

A word depends on the seed, on what it is for, and on its own counter alone, so a client's draws do not depend on who
else trains, where, or in which order.
"""

import hashlib
import subprocess
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_BUMP = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Key = tuple[int, int]
Block = tuple[Tensor, Tensor, Tensor, Tensor]


def key(seed: int, what: str) -> Key:
    """Two 32-bit words for one purpose of one seed."""
    digest = hashlib.blake2b(repr((int(seed), what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(counter: Block, key: Key) -> Block:
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


def words(key: Key, count: int, *ids: Tensor) -> Tensor:
    """So many random 32-bit words for each row of up to three id tensors of one shape, (*shape, count)."""
    kernels = kernels_for(ids[0])
    if kernels is not None:
        drawn: Tensor = kernels.words(key, count, *ids)
        return drawn
    blocks = torch.arange(-(-count // 4), device=ids[0].device)
    rows = [column.unsqueeze(-1) for column in ids]
    rows += [torch.zeros_like(rows[0])] * (3 - len(rows))
    a, b, c, d = torch.broadcast_tensors(blocks, *rows)
    return torch.stack(philox((a, b, c, d), key), dim=-1).flatten(-2)[..., :count]


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """The kernels for what lies where this tensor does; None on a CPU, and where they cannot be had."""
    return gpu_kernels() if tensor.is_cuda else None


@cache
def gpu_kernels() -> ModuleType | None:
    """The same draws in one kernel each, and faster layers; None where Triton or the compiler it needs is not there."""
    try:
        from lesson.learn.cuda import kernels

        kernels.check()
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return None
    return kernels
