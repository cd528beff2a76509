"""What strategies ask of their settings and of the fleet, each with an error of one line."""

import sys

import numpy as np

from lesson.arrays import IntArray
from lesson.errors import InputError
from lesson.strategies.base import ServerView


def check_number(name: str, value: object, most: float = sys.float_info.max, or_zero: bool = False) -> None:
    """Refuse a setting that is not a finite number > 0 and at most so much; infinity is allowed as `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value <= most
    if not number or not (value > 0 or (or_zero and value == 0)):  # type: ignore[operator]
        limit = f" and <= {most:g}" if most < sys.float_info.max else ""
        finite = "finite " if most == sys.float_info.max else ""
        raise InputError(f"{name} must be a {finite}number {'>=' if or_zero else '>'} 0{limit}, got {value!r}")


def check_count(name: str, value: object) -> None:
    """Refuse a setting that does not count something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse a setting that is neither true nor false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}")


def check_connected(view: ServerView, **at_most: int | None) -> None:
    """Refuse, when the first round opens, a fleet that nobody can reach or that is smaller than these settings say.

    A setting that is None has a default, which adapts to the fleet.
    """
    if view.round > 1:
        return
    if not (reachable := int(np.count_nonzero(np.isfinite(view.latency_s)))):
        raise InputError(f"no client can be reached: all {len(view.latency_s)} latencies are infinite")
    for name, value in at_most.items():
        if value is not None and value > reachable:
            raise InputError(
                f"[strategy] {name} must be <= {reachable}, the number of clients that can be reached, got {value}"
            )


def count_of(setting: int | None, default: int, view: ServerView) -> int:
    """The number that a setting gives; for None the default, or the number of reachable clients where that is less."""
    if setting is not None:
        return setting
    return max(1, min(default, int(np.count_nonzero(np.isfinite(view.latency_s)))))


def cut_tiers(view: ServerView, num_tiers: int) -> list[IntArray]:
    """All clients whose latency is known, cut by it into tiers whose numbers differ by at most one, fastest first."""
    known = np.count_nonzero(np.isfinite(view.first_latency_s))
    by_latency = np.argsort(view.first_latency_s, kind="stable")[:known]
    return [np.sort(members) for members in np.array_split(by_latency, num_tiers)]


def draw_share(clients: IntArray, fraction: float, rng: np.random.Generator) -> IntArray:
    """So large a part of these clients, at least one, drawn uniformly and sorted; nothing is drawn for all of them."""
    return draw_some(clients, share_of(len(clients), fraction), rng)


def draw_some(clients: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """So many of these clients, drawn uniformly and sorted; nothing is drawn where there are no more."""
    return clients if count >= len(clients) else np.sort(rng.choice(clients, count, replace=False))


def share_of(number: int, fraction: float) -> int:
    """A fraction of a number of clients, in whole clients: max(1, round(fraction·n))."""
    return max(1, round(fraction * number))
