"""Checks of strategies' options, and helpers that several strategies share."""

import sys

import numpy as np

from lesson.core.arrays import IntArray
from lesson.core.errors import InputError
from lesson.strategies.base import ServerView

MAX_STEPS = 10_000_000
"""Largest number of local steps in an option, and of those that a strategy computes from a deadline."""
MAX_OVERCOMMITMENT = 100
"""Largest number of clients that start for each update that a round waits for."""


def check_number(name: str, value: object, most: float = sys.float_info.max, or_zero: bool = False) -> None:
    """Raise unless an option is a number > 0, or >= 0 with `or_zero`, and at most `most`.

    Infinity is allowed only if `most` is infinite.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and value <= most
    if not number or not (value > 0 or (or_zero and value == 0)):  # type: ignore[operator]
        limit = f" and <= {most:g}" if most < sys.float_info.max else ""
        finite = "finite " if most == sys.float_info.max else ""
        raise InputError(f"{name} must be a {finite}number {'>=' if or_zero else '>'} 0{limit}, got {value!r}")


def check_factor(name: str, value: object, most: float = sys.float_info.max) -> None:
    """Raise unless an option is a finite number >= 1 and at most `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 1 <= value <= most:  # type: ignore[operator]
        limits = f"number >= 1 and <= {most:g}" if most < sys.float_info.max else "finite number >= 1"
        raise InputError(f"{name} must be a {limits}, got {value!r}")


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise unless an option is a whole number >= `least` and at most `most`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        limit = "" if most is None else f" and <= {most}"
        raise InputError(f"{name} must be a whole number >= {least}{limit}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise unless an option is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false, got {value!r}")


def check_connected(view: ServerView, **at_most: int | None) -> None:
    """Raise in the first round if no client is reachable, or if an option exceeds the number of reachable clients.

    Options that are None are not checked: their defaults adapt to the fleet.
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


def check_compute_times(strategy: str, view: ServerView) -> None:
    """Raise if a reachable client, connected or not, has no compute time > 0."""
    unknown = np.flatnonzero(np.isfinite(view.latency_s) & ~(view.compute_s > 0))
    if len(unknown):
        raise InputError(
            f"{strategy} needs compute_s > 0 of every client, got {view.compute_s[unknown[0]]:g} for client "
            f"{unknown[0]}; add it to the file of latencies, or to the first row of a trace"
        )


def count_of(setting: int | None, default: int, view: ServerView) -> int:
    """Return the setting; if it is None, the default, or the number of reachable clients if less, but at least 1."""
    if setting is not None:
        return setting
    return max(1, min(default, int(np.count_nonzero(np.isfinite(view.latency_s)))))


def cut_tiers(view: ServerView, num_tiers: int) -> list[IntArray]:
    """Divide all reachable clients by latency into tiers whose sizes differ by at most one, fastest first."""
    known = np.count_nonzero(np.isfinite(view.first_latency_s))
    by_latency = np.argsort(view.first_latency_s, kind="stable")[:known]
    return [np.sort(members) for members in np.array_split(by_latency, num_tiers)]


def draw_share(clients: IntArray, fraction: float, rng: np.random.Generator) -> IntArray:
    """Draw a fraction of these clients uniformly, at least one, and return them sorted.

    If that is all of them, they are returned without using the generator.
    """
    return draw_some(clients, share_of(len(clients), fraction), rng)


def draw_some(clients: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` of these clients uniformly and return them sorted.

    If there are no more than `count`, they are returned without using the generator.
    """
    return clients if count >= len(clients) else np.sort(rng.choice(clients, count, replace=False))


def share_of(number: int, fraction: float) -> int:
    """Return a fraction of `number` clients as a whole number: max(1, round(fraction·n))."""
    return max(1, round(fraction * number))
