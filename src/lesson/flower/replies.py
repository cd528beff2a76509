"""Parsing of replies from untrusted clients: a malformed reply is rejected and affects no other client."""

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import numpy as np
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from lesson.clock.rejections import NO_WEIGHT, UNREADABLE, WRONG_ARRAYS, WRONG_METRICS
from lesson.clock.worlds.clients import LOST, NO_REPLY
from lesson.core.arrays import BoolArray
from lesson.core.errors import MAX_SHOWN, printable
from lesson.core.validation import MAX_SAMPLES
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import assign_tiers
from lesson.flower.arrays import num_bytes
from lesson.learn.guards import InvalidUpdateError
from lesson.strategies.base import shares

logger = logging.getLogger("flwr")
tell, warn = logger.info, logger.warning


def tell_clients(fleet: Fleet, deadline_s: float, rejected_by: Mapping[str, int], measured: BoolArray | None) -> None:
    """Log the latency and tier of each client, as far as it is measured, and how many updates were rejected and why."""
    tiers = assign_tiers(fleet.latency_s, deadline_s).tolist()
    for client, (name, latency_s, tier) in enumerate(zip(fleet.names, fleet.latency_s.tolist(), tiers, strict=True)):
        is_known = measured is None or measured[client]
        tell(f"client {name}: {f'{latency_s:.1f} s, tier {tier}' if is_known else 'no latency measured'}")
    tell(f"rejected: {', '.join(f'{count} × {reason}' for reason, count in rejected_by.items()) or 'nothing'}")


UNREACHABLE = (httpx.HTTPError, OSError)
"""Errors of the connection to the SuperLink, or of the SuperLink itself, rather than of a reply."""
CLIENT_ERROR = "client error"
FAULTS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: CLIENT_ERROR,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: CLIENT_ERROR,
    ErrorCode.MESSAGE_UNAVAILABLE: NO_REPLY,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: NO_REPLY,
    ErrorCode.NODE_UNAVAILABLE: LOST,
    ErrorCode.CLIENT_APP_CRASHED: "client crashed",
}
"""Transport faults by the code of an error reply."""
MAX_METRICS = 100
"""Largest number of metrics in a reply; a reply with more is rejected."""
Metric = int | float | list[int] | list[float]
Reported = tuple[float, Mapping[str, float]]
"""Weight of a client, and the metrics it reports."""


@dataclass(frozen=True)
class FieldNames:
    """Names of the records and fields in messages; the defaults are those of Flower's own strategies."""

    arrays: str = "arrays"
    config: str = "config"
    weight: str = "num-examples"
    lr: str = "lr"


def read_report(message: Message | Exception, fields: FieldNames) -> Reported:
    """Return the weight and the metrics in a reply; raise InvalidUpdateError if it cannot be used."""
    if isinstance(message, Exception):
        raise fault_of(message)
    if message.has_error():
        raise InvalidUpdateError(FAULTS.get(message.error.code, "error reply"), error_text(message.error))
    metrics = _read_metrics(message.content)
    weight = _check_weight(fields.weight, metrics.pop(fields.weight, None))
    return weight, _scalars(metrics)


def fault_of(error: Exception) -> InvalidUpdateError:
    """Return an error with the fault of a reply; any other error means that the reply cannot be decoded."""
    return (
        error
        if isinstance(error, InvalidUpdateError)
        else InvalidUpdateError(UNREADABLE, f"{type(error).__name__}: {error}")
    )


def read_arrays(content: RecordDict) -> ArrayRecord:
    """Return the only record of arrays in a reply; raise InvalidUpdateError if there is not exactly one."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise InvalidUpdateError(WRONG_ARRAYS, f"a reply must have one record of arrays, got {len(records)}")
    return records[0]


def error_text(error: Error) -> str:
    """Return the code of an error and the last line of its text: in a traceback, that line says why."""
    lines = (error.reason or "").strip().splitlines() or ["no reason given"]
    return printable(f"code {error.code}: {lines[-1]}")


def content_bytes(content: RecordDict) -> int:
    """Return the size of all arrays in a message."""
    return sum(num_bytes(record) for record in content.array_records.values())


def weighted_means(reports: Sequence[Reported]) -> MetricRecord | None:
    """Return the weighted means of the metrics that all clients report; None without any, or if all weights are 0."""
    names = set.intersection(*(set(metrics) for _, metrics in reports)) if reports else set()
    weights = np.array([weight for weight, _ in reports])
    if not names or not weights.any():
        return None
    weighted = list(zip(shares(weights).tolist(), reports, strict=True))
    return MetricRecord(
        {name: math.fsum(share * metrics[name] for share, (_, metrics) in weighted) for name in sorted(names)}
    )


def _read_metrics(content: RecordDict) -> dict[str, Metric]:
    """Return the metrics of a reply by name; raise InvalidUpdateError if there are too many or a name is invalid."""
    records = content.metric_records.values()
    if (count := sum(len(record) for record in records)) > MAX_METRICS:
        raise InvalidUpdateError(WRONG_METRICS, f"a reply may have at most {MAX_METRICS} metrics, got {count}")
    metrics = {name: value for record in records for name, value in record.items()}
    for name in metrics:
        if len(name) > MAX_SHOWN or not name.isprintable():
            raise InvalidUpdateError(WRONG_METRICS, f"invalid metric name '{name}'")
    return metrics


def _scalars(metrics: dict[str, Metric]) -> dict[str, float]:
    """Return the metrics that are single numbers; raise InvalidUpdateError if one is not finite."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    for name, value in numbers.items():
        if not abs(value) <= sys.float_info.max:
            raise InvalidUpdateError(WRONG_METRICS, f"'{name}' must be finite, got {_shown(value)}")
    return {name: float(value) for name, value in numbers.items()}


def _check_weight(name: str, value: Metric | None) -> float:
    """Return the number of examples that a client reports; raise InvalidUpdateError if it is not a valid weight."""
    if not isinstance(value, int | float) or not 0 < value <= MAX_SAMPLES:
        raise InvalidUpdateError(NO_WEIGHT, f"'{name}' must be > 0 and at most {MAX_SAMPLES:g}, got {_shown(value)}")
    return float(value)


def _shown(value: Metric | None) -> str:
    """Format a value for a log line, with bounded length."""
    if isinstance(value, list):
        return f"{len(value)} values"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return "none" if value is None else f"{value:g}"
