"""Parsing of replies from untrusted clients: a malformed reply is rejected and affects no other client."""

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from lesson.clock.rejections import NO_WEIGHT, WRONG_METRICS
from lesson.core.errors import MAX_SHOWN
from lesson.core.validation import MAX_SAMPLES
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import assign_tiers
from lesson.learn.guards import InvalidUpdateError

logger = logging.getLogger("flwr")
tell, warn = logger.info, logger.warning


def tell_clients(fleet: Fleet, deadline_s: float, rejected_by: Mapping[str, int]) -> None:
    """Log the current latency estimate and tier of each client, and how many updates were rejected and why."""
    tiers = assign_tiers(fleet.latency_s, deadline_s).tolist()
    for name, latency_s, tier in zip(fleet.names, fleet.latency_s.tolist(), tiers, strict=True):
        if tier:  # tier 0: the client never connected
            tell(f"client {name}: {latency_s:.1f} s, tier {tier}")
    tell(f"rejected: {', '.join(f'{count} × {reason}' for reason, count in rejected_by.items()) or 'nothing'}")


NO_HEARTBEAT_S = 86400.0
"""A node that announces itself less often than this sends no heartbeats: it is simulated. Flower gives simulated nodes
an interval of 10³⁰⁰ s, and its SuperLink accepts at most 1800 s from others."""
MAX_METRICS = 100
"""Largest number of metrics in a reply; a reply with more is rejected."""
Metric = int | float | list[int] | list[float]


def pull_replies(
    grid: Grid, ids: Collection[str], *, at_once: bool = False
) -> Iterator[tuple[str, Message | Exception]]:
    """Yield the replies to these messages that have arrived, each with the id of its message, as they are pulled.

    A reply that Flower cannot decode is yielded as the exception it raised. `at_once` pulls all replies in one call,
    for simulations.
    """
    # Flower decodes either all replies of a call or none, and delivers each only once: an undecodable reply would lose
    # all others of the same call, however few they are. So each reply is pulled by itself, which costs one request per
    # awaited reply. The grid of a simulation does not decode replies, and one call pulls them all.
    groups = ([list(ids)] if ids else []) if at_once else [[number] for number in ids]
    for group in groups:
        try:
            replies = _by_id(list(grid.pull_messages(group)), group)
        except (httpx.HTTPError, OSError):  # the connection to the SuperLink, not a reply
            raise
        except Exception as error:
            replies = [(number, error) for number in group]
        yield from replies


def in_simulation(grid: Grid) -> bool:
    """Return whether the nodes of a grid are simulated by Flower, which the nodes of a wrapped grid show as well.

    False if no node is connected.
    """
    intervals_s = [node.heartbeat_interval for node in grid.get_nodes()]
    return bool(intervals_s) and min(intervals_s) > NO_HEARTBEAT_S


def read_metrics(content: RecordDict) -> dict[str, Metric]:
    """Return the metrics of a reply by name; raise InvalidUpdateError if there are too many or a name is invalid."""
    records = content.metric_records.values()
    if (count := sum(len(record) for record in records)) > MAX_METRICS:
        raise InvalidUpdateError(WRONG_METRICS, f"a reply may have at most {MAX_METRICS} metrics, got {count}")
    metrics = {name: value for record in records for name, value in record.items()}
    for name in metrics:
        if len(name) > MAX_SHOWN or not name.isprintable():
            raise InvalidUpdateError(WRONG_METRICS, f"invalid metric name '{name}'")
    return metrics


def scalars(metrics: dict[str, Metric]) -> dict[str, float]:
    """Return the metrics that are single numbers; raise InvalidUpdateError if one is not finite."""
    found = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    for name, value in found.items():
        if not abs(value) <= sys.float_info.max:
            raise InvalidUpdateError(WRONG_METRICS, f"'{name}' must be finite, got {_shown(value)}")
    return {name: float(value) for name, value in found.items()}


def check_weight(name: str, value: Metric | None) -> float:
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


def _by_id(messages: Sequence[Message], ids: Collection[str]) -> list[tuple[str, Message | Exception]]:
    """Return replies with the ids they reply to; ignore second replies and replies to other messages."""
    wanted, replies = set(ids), list[tuple[str, Message | Exception]]()
    for message in messages:
        if (number := message.metadata.reply_to_message_id) in wanted:
            wanted.remove(number)
            replies.append((number, message))
    return replies
