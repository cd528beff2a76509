"""One band shared by many clients: split equally among the uploading clients, or used by one client at a time.

All rates are constant between two events (a client becomes ready, a block of time ends, an upload completes), so time
advances from event to event and nothing is approximated.
"""

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray, membership
from lesson.radio.transfer import block_at

MAX_IDLE_BLOCKS = 1_000_000
"""Maximum number of consecutive blocks in which no bit is sent; otherwise, a rate of 0 would loop forever.

In a forecast without an end, it is the number of blocks without a completed upload: one that needs more never
completes, as in `transfer`.
"""

SharedRates = Callable[[IntArray, int, int], FloatArray]
"""Rates in bits per second, shape (n,), from the clients (n,), the time block and how many clients share the band."""


class _Uploads(NamedTuple):
    """Uploads in the order in which they were added; arrays have shape (n,)."""

    client: IntArray
    ready_s: FloatArray
    left_bits: FloatArray
    sent_s: FloatArray
    through_s: FloatArray
    """When each upload completes; inf until then."""


class SharedBand:
    """Uploads over one shared band, at most one per client; an upload stays until it is removed."""

    SAVED = ("_uploads", "_now_s")

    def __init__(self, discipline: Literal["equal", "in-turn"], rates: SharedRates, coherence_s: float) -> None:
        self._in_turn = discipline == "in-turn"
        self._rates, self._coherence_s = rates, coherence_s
        self._uploads = _Uploads(NO_CLIENTS, *np.empty((4, 0)))
        self._now_s = 0.0

    def add(self, clients: IntArray, ready_s: FloatArray, bits: FloatArray) -> None:
        """Add uploads of clients that have none. Each starts, or queues for its turn, at `ready_s`; inf means never."""
        # A ready time that was rounded into the past must not overtake the current senders.
        ready_s = np.maximum(ready_s, self._now_s)
        new = _Uploads(clients, ready_s, bits, np.zeros(len(clients)), np.full(len(clients), np.inf))
        self._uploads = _Uploads._make(map(np.concatenate, zip(self._uploads, new, strict=True)))

    def remove(self, clients: IntArray) -> None:
        """Remove the uploads of these clients, complete or not."""
        keep = ~membership(self._uploads.client, clients)[0]
        self._uploads = _Uploads._make(column[keep] for column in self._uploads)

    def forecast(self) -> tuple[IntArray, FloatArray]:
        """Return all clients, in the order of `add`, and when their uploads complete if no more are added.

        The time is inf for an upload that never completes.
        """
        uploads, now_s = copy.deepcopy(self._uploads), self._now_s
        while now_s < np.inf:
            now_s = self._step(uploads, now_s, np.inf)
        return uploads.client, uploads.through_s

    def advance(self, until_s: float) -> None:
        """Advance the time, sending bits and completing uploads."""
        while self._now_s < until_s:
            self._now_s = self._step(self._uploads, self._now_s, until_s)

    def sent_s(self, clients: IntArray) -> FloatArray:
        """Return for how many seconds each of these clients has been sending so far, shape (len(clients),)."""
        return self._uploads.sent_s[membership(clients, self._uploads.client)[1]]

    def _step(self, uploads: _Uploads, now_s: float, until_s: float) -> float:
        """Send until the set of senders changes, or until `until_s` if that is earlier; return that time."""
        ready = uploads.ready_s <= now_s
        senders = np.flatnonzero(ready & np.isinf(uploads.through_s))
        if self._in_turn and len(senders):
            senders = senders[[np.argmin(uploads.ready_s[senders])]]
        else:
            until_s = min(until_s, float(uploads.ready_s[~ready].min(initial=np.inf)))
        return self._send(uploads, senders, now_s, until_s) if len(senders) else until_s

    def _send(self, uploads: _Uploads, senders: IntArray, now_s: float, until_s: float) -> float:
        """Send block by block until the first upload completes, or until `until_s` if that is earlier; return when."""
        client, left_bits, begin_s = uploads.client[senders], uploads.left_bits[senders], now_s
        block = int(block_at(np.array([now_s]), self._coherence_s)[0])
        last = block + MAX_IDLE_BLOCKS
        while True:
            rate_bps = self._rates(client, block, len(senders))
            end_s = min(until_s, (block + 1) * self._coherence_s)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                through_s = now_s + np.where(left_bits > 0, left_bits / rate_bps, 0.0)
            first_s = float(through_s.min())
            if first_s <= end_s or end_s == until_s:
                break
            before_bits, left_bits = left_bits, np.maximum(left_bits - rate_bps * (end_s - now_s), 0.0)
            now_s, block = end_s, block + 1
            if until_s < np.inf and np.any(left_bits < before_bits):
                last = block + MAX_IDLE_BLOCKS
            if block == last:  # a rate of 0 would loop forever
                uploads.left_bits[senders] = left_bits
                uploads.sent_s[senders] += until_s - begin_s
                return until_s
        end_s = min(end_s, first_s)
        done = through_s <= end_s
        with np.errstate(invalid="ignore"):  # an infinite rate for 0 s, or a rate of 0 forever
            left_bits = np.maximum(left_bits - rate_bps * (end_s - now_s), 0.0)
        uploads.left_bits[senders] = np.where(done, 0.0, left_bits)
        uploads.sent_s[senders] += end_s - begin_s
        uploads.through_s[senders[done]] = end_s
        return end_s
