"""Federation on the virtual clock."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lesson.clock.federation.base import Federation
from lesson.clock.federation.clients import Reply
from lesson.clock.rejections import ALREADY_SEEN, OF_CONTENT
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.strategies.base import Updates

POLL_S = 0.02
TELL_S = 30.0
"""Interval in real seconds at which the server logs the clients it is waiting for."""


class VirtualFederation(Federation):
    """Federation on the virtual clock.

    The fleet's latencies determine in which round an update arrives; the server then waits for it in real time.
    """

    timeout_s = 3600.0
    """Real seconds after which an update is given up."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._early: dict[tuple[int, int], Reply] = {}
        """Replies to updates that have not arrived on the virtual clock yet."""

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what `state` returned; local trainings in flight are sent again."""
        super().restore(values, arrays)
        self._send(self._flight.everybody())

    def _patience_s(self, expected_s: FloatArray) -> FloatArray:
        return np.full_like(expected_s, self.timeout_s)

    def _accepted(self, landed: Updates) -> Updates:
        landed = super()._accepted(landed)
        self._wait_for(set(landed.keys))
        good: BoolArray = np.ones(len(landed), dtype=np.bool_)
        unfit: BoolArray = np.zeros(len(landed), dtype=np.bool_)
        for place, update in enumerate(landed.keys):
            reply = self._early.pop(update)
            good[place], unfit[place] = not reply.fault, reply.fault in OF_CONTENT
            (self._reject if reply.fault else self._take_in)(reply)
        if not good.all():
            self._let_go(landed[~good])
            self._rejected_on_arrival = landed[unfit]
        return landed[good]

    def _wait_for(self, landed: set[tuple[int, int]]) -> None:
        """Wait for the replies to all these updates; keep replies to others in flight for later."""
        told_s = time.monotonic()
        while missing := landed - self._early.keys():
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                names = ", ".join(str(self.fleet.names[client]) for client, _ in sorted(missing)[:5])
                self._tell(f"round {self.round}: still waiting for {len(missing)} clients: {names}")
            replies = [event for event in self._clients.poll() if isinstance(event, Reply)]
            for reply in replies:
                # Any other reply belongs to a local training that the strategy dropped: it is ignored, not rejected.
                if (reply.client, reply.index) in self._early or (
                    not reply.fault and self.rejection_ledger.already_seen(reply.client, reply.index)
                ):
                    self._reject(replace(reply, fault=ALREADY_SEEN))
                elif (reply.client, reply.index) in landed or self._is_at(reply):
                    self._early[reply.client, reply.index] = reply
            if not replies:
                time.sleep(POLL_S)

    def _lose(self, lost: Updates) -> None:
        for update in lost.keys:
            self._early.pop(update, None)
        super()._lose(lost)

    def _drop(self, clients: IntArray) -> FloatArray:
        for update in self._flight.work_of(clients).keys:
            self._early.pop(update, None)
        return super()._drop(clients)
