"""Completion times of transfers whose rate changes from one block of time to the next, integrated exactly.

Block b covers the seconds [b·coherence_s, (b + 1)·coherence_s), the same for all clients.
"""

from collections.abc import Callable

import numpy as np

from lesson.core.arrays import FloatArray, IntArray

Rates = Callable[[IntArray, IntArray], FloatArray]
"""Rates in bits per second, shape (n, K), of clients (n, 1) in time blocks (n, K)."""

MAX_BLOCKS = 1_000_000
"""Maximum number of blocks of a transfer, which never completes if it needs more; a rate of 0 would loop forever."""

_FIRST_BLOCKS, _MOST_BLOCKS = 256, 4096
"""Limits of the blocks processed at once. A rate of 0 or of almost 0 may last for one block or for a million."""
_MAX_ROWS = 1 << 14
_MAX_ELEMENTS = 1 << 18
"""Clients and rates processed at once: enough to amortize the cost of a call, few enough for the cache."""


def block_at(time_s: FloatArray, coherence_s: float) -> IntArray:
    """Return the block of each finite time, shape (n,); block 0 if `coherence_s` is inf."""
    if np.isinf(coherence_s):
        return np.zeros(len(time_s), dtype=np.int64)
    blocks = np.floor(time_s / coherence_s)
    # The division rounds, so the quotient may be off by one at a block's boundary; the comparison is exact.
    blocks -= blocks * coherence_s > time_s
    blocks += (blocks + 1) * coherence_s <= time_s
    return blocks.astype(np.int64)


def finish_s(clients: IntArray, begin_s: FloatArray, bits: FloatArray, rates: Rates, coherence_s: float) -> FloatArray:
    """Return when each transfer completes, shape (n,), or inf. Each starts at its `begin_s`, on its own band.

    A client's result is bit-identical whichever other clients are passed.
    """
    through_s = begin_s.astype(np.float64)
    under_way = np.flatnonzero((bits > 0) & np.isfinite(begin_s))
    for first in range(0, len(under_way), _MAX_ROWS):
        rows = under_way[first : first + _MAX_ROWS]
        through_s[rows] = _finish_s(clients[rows], begin_s[rows], bits[rows], rates, coherence_s)
    return through_s


def _finish_s(clients: IntArray, begin_s: FloatArray, bits: FloatArray, rates: Rates, coherence_s: float) -> FloatArray:
    """Return when each transfer completes, shape (n,): the rest of its first block, then whole blocks."""
    block = block_at(begin_s, coherence_s)
    rate_bps = rates(clients[:, None], block[:, None])[:, 0]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        through_s = begin_s + bits / rate_bps
        sent_bits = rate_bps * ((block + 1) * coherence_s - begin_s)
        per_block_bits = rate_bps * coherence_s
    rows = np.flatnonzero(sent_bits < bits)
    through_s[rows] = np.inf
    clients, bits, block = clients[rows], bits[rows], block[rows] + 1
    sent_bits, per_block_bits = sent_bits[rows], per_block_bits[rows]
    num_seen = 1
    while len(rows) and num_seen < MAX_BLOCKS:
        num_blocks = _num_blocks(bits - sent_bits, per_block_bits, num_seen)
        rate = rates(clients[:, None], block[:, None] + np.arange(num_blocks))
        # The running sum continues block by block, so that the result does not depend on how blocks are batched.
        total_bits = rate * coherence_s
        total_bits[:, 0] += sent_bits
        np.cumsum(total_bits, axis=1, out=total_bits)
        done = np.flatnonzero(total_bits[:, -1] >= bits)
        column = np.count_nonzero(total_bits[done] < bits[done, None], axis=1)
        before_bits = np.where(column > 0, total_bits[done, column - 1], sent_bits[done])
        through_s[rows[done]] = (block[done] + column) * coherence_s + (bits[done] - before_bits) / rate[done, column]
        left = np.flatnonzero(total_bits[:, -1] < bits)
        per_block_bits = (total_bits[left, -1] - sent_bits[left]) / num_blocks
        rows, clients, bits, block = rows[left], clients[left], bits[left], block[left] + num_blocks
        sent_bits = total_bits[left, -1]
        num_seen += num_blocks
    return through_s


def _num_blocks(left_bits: FloatArray, per_block_bits: FloatArray, num_seen: int) -> int:
    """Return how many blocks to evaluate next: as many as the median transfer needs, or as have been evaluated.

    This way, at most about as many rates are evaluated in vain as are used.
    """
    at_most = min(MAX_BLOCKS - num_seen, max(num_seen, _FIRST_BLOCKS), _MOST_BLOCKS)
    with np.errstate(divide="ignore", over="ignore"):
        needed = left_bits / per_block_bits
        typical = float(np.median(needed) if len(needed) > 1 else needed[0]) + 1
    return max(int(min(typical, _MAX_ELEMENTS // len(left_bits), at_most)), 1)
