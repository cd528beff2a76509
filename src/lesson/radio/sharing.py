"""One band that many clients share: split equally among those who upload, or used by one after the other.

Between two events (somebody is ready, a block of time ends, somebody is through) all rates stay the same, so time goes
from event to event and nothing is approximated.
"""

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import NO_CLIENTS, FloatArray, IntArray, membership
from lesson.radio.transfer import block_at

MAX_IDLE_BLOCKS = 1_000_000
"""Blocks in a row in which nobody gets through; a rate of 0 is not followed for ever."""

SharedRates = Callable[[IntArray, int, int], FloatArray]
"""Bits per second of clients (n,) in a time block, when so many share the band: (n,)."""


class _Uploads(NamedTuple):
    """The clients there are, in the order they were added in; arrays are (n,)."""

    client: IntArray
    ready_s: FloatArray
    left_bits: FloatArray
    sent_s: FloatArray
    through_s: FloatArray
    """Infinite as long as a client is not through."""


class SharedBand:
    """Uploads through one band; rows are clients that were added and not removed, at most one per client."""

    def __init__(self, discipline: Literal["equal", "in-turn"], rates: SharedRates, coherence_s: float) -> None:
        self._in_turn = discipline == "in-turn"
        self._rates, self._coherence_s = rates, coherence_s
        self._uploads = _Uploads(NO_CLIENTS, *np.empty((4, 0)))
        self._now_s = 0.0

    def add(self, clients: IntArray, ready_s: FloatArray, bits: FloatArray) -> None:
        """Let clients that are not there begin to upload, or to wait for their turn, at a time; never, if infinite."""
        # A time that rounding put into the past must not overtake those who are sending.
        ready_s = np.maximum(ready_s, self._now_s)
        new = _Uploads(clients, ready_s, bits, np.zeros(len(clients)), np.full(len(clients), np.inf))
        self._uploads = _Uploads._make(map(np.concatenate, zip(self._uploads, new, strict=True)))

    def remove(self, clients: IntArray) -> None:
        """Forget clients, through or not."""
        keep = ~membership(self._uploads.client, clients)[0]
        self._uploads = _Uploads._make(column[keep] for column in self._uploads)

    def forecast(self) -> tuple[IntArray, FloatArray]:
        """Everybody who is there, in the order of adding, and when each is through if nobody else comes."""
        uploads, now_s = copy.deepcopy(self._uploads), self._now_s
        while now_s < np.inf:
            now_s = self._step(uploads, now_s, np.inf)
        return uploads.client, uploads.through_s

    def advance(self, until_s: float) -> None:
        """Let time pass: bits are sent and clients get through."""
        while self._now_s < until_s:
            self._now_s = self._step(self._uploads, self._now_s, until_s)

    def sent_s(self, clients: IntArray) -> FloatArray:
        """Seconds for which each of these clients, all of them there, has been sending so far, (len(clients),)."""
        return self._uploads.sent_s[membership(clients, self._uploads.client)[1]]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as arrays, for `restore`."""
        return copy.deepcopy(self._uploads)._asdict() | {"now_s": np.array([self._now_s])}

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self._uploads = _Uploads._make(state[name].copy() for name in _Uploads._fields)
        self._now_s = float(state["now_s"][0])

    def _step(self, uploads: _Uploads, now_s: float, until_s: float) -> float:
        """The next time at which others send than before, or `until_s` if that is earlier; they send until then."""
        ready = uploads.ready_s <= now_s
        senders = np.flatnonzero(ready & np.isinf(uploads.through_s))
        if self._in_turn and len(senders):
            senders = senders[[np.argmin(uploads.ready_s[senders])]]
        else:
            until_s = min(until_s, float(uploads.ready_s[~ready].min(initial=np.inf)))
        return self._send(uploads, senders, now_s, until_s) if len(senders) else until_s

    def _send(self, uploads: _Uploads, senders: IntArray, now_s: float, until_s: float) -> float:
        """When the first of the senders is through, or `until_s` if that is earlier; block by block until then."""
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
            left_bits = np.maximum(left_bits - rate_bps * (end_s - now_s), 0.0)
            now_s, block = end_s, block + 1
            if block == last:  # a rate of 0 is not followed for ever
                uploads.left_bits[senders] = left_bits
                uploads.sent_s[senders] += until_s - begin_s
                return until_s
        end_s = min(end_s, first_s)
        done = through_s <= end_s
        with np.errstate(invalid="ignore"):  # an infinite rate in no time, or a rate of 0 for ever
            left_bits = np.maximum(left_bits - rate_bps * (end_s - now_s), 0.0)
        uploads.left_bits[senders] = np.where(done, 0.0, left_bits)
        uploads.sent_s[senders] += end_s - begin_s
        uploads.through_s[senders[done]] = end_s
        return end_s
