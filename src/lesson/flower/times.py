"""Lets clients report when, and for how long, they worked on a message, for latency estimates and recordings.

This module is imported by every process that Flower starts for a message to a client, so it imports nothing heavy.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, RecordDict

TIMES = "lesson.times"
"""Name of the record in a reply. Flower's strategies require the same metrics from all clients, but ignore records of
this type. Clients may therefore report times even if others do not, or if nobody reads them."""
BEGAN, ENDED, COMPUTE_S = "began", "ended", "compute-s"


@dataclass(frozen=True)
class Times:
    """Times that a client reports with a reply."""

    began: float
    """Beginning of the work, in seconds since 1970 by the client's clock."""
    ended: float
    """End of the work, by the same clock."""
    compute_s: float
    """Duration of the work in seconds, on a monotonic clock."""


def report_times(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Add the times at which the work on a message began and ended to its reply: `ClientApp(mods=[report_times, …])`.

    If it is the first mod, the times include the work of the others.
    """
    began, begin_s = time.time(), time.perf_counter()
    reply = call_next(message, context)
    if reply.has_content():
        compute_s = time.perf_counter() - begin_s
        reply.content[TIMES] = ConfigRecord({BEGAN: began, ENDED: time.time(), COMPUTE_S: compute_s})
    return reply


def read_times(content: RecordDict) -> Times | None:
    """Return the times reported in a reply; None if there are none, or if they are invalid."""
    record = content.config_records.get(TIMES)
    values = [record.get(name) for name in (BEGAN, ENDED, COMPUTE_S)] if record is not None else []
    numbers = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    return Times(*numbers) if len(numbers) == 3 else None
