"""Checks of strategies' options and of the plans and merges they return, and helpers that several strategies share."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from lesson.core.arrays import NO_CLIENTS, IntArray
from lesson.core.errors import InputError
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, GroupMemory, Merge, RoundPlan, ServerView

_IDS, _NUMBERS = np.dtype(np.int64), np.dtype(np.float64)
_CLOSINGS, _REAL = frozenset(get_args(Closing)), (float, int, np.floating, np.integer)


def check_number(name: str, value: object, most: float = sys.float_info.max, or_zero: bool = False) -> None:
    """Raise unless an option is a number > 0, or >= 0 with `or_zero`, and at most `most`.

    Infinity is allowed only if `most` is infinite.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and value <= most
    if not number or not (value > 0 or (or_zero and value == 0)):  # type: ignore[operator]
        limit = f" and <= {most:g}" if most < sys.float_info.max else ""
        finite = "finite " if most == sys.float_info.max else ""
        raise InputError(f"{name} must be a {finite}number {'>=' if or_zero else '>'} 0{limit}, got {value!r}")


def check_count(name: str, value: object) -> None:
    """Raise unless an option is a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}")


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


def checked_plan(plan: RoundPlan, who: object, round: int) -> RoundPlan:
    """Return the plan from `open_round` with its sequences converted to arrays; raise if it is not a valid plan.

    `who` is the strategy; it and `round` appear in the error message.
    """
    if not isinstance(plan, RoundPlan):
        raise _wrong(who, round, "open_round", f"must return a RoundPlan, got {plan!r:.80}")
    fixed: dict[str, Any] = {}
    _fix(fixed, "starts", plan.starts, _IDS, who, round, "RoundPlan")
    if plan.drops is not NO_CLIENTS:
        _fix(fixed, "drops", plan.drops, _IDS, who, round, "RoundPlan")
    for name, value in (("local_steps", plan.local_steps), ("batches", plan.batches), ("tiers", plan.tiers)):
        if value is not None:
            _fix(fixed, name, value, _IDS, who, round, "RoundPlan")
    if type(plan.lr_scale) is not float:
        if isinstance(plan.lr_scale, _REAL):
            fixed["lr_scale"] = float(plan.lr_scale)
        else:
            _fix(fixed, "lr_scale", plan.lr_scale, _NUMBERS, who, round, "RoundPlan")
    if not isinstance(plan.uploads, str) or plan.uploads not in ("parallel", "in-turn"):
        raise _wrong(who, round, "RoundPlan.uploads", f"must be 'parallel' or 'in-turn', got {plan.uploads!r:.80}")
    if not isinstance(plan.note, str):
        raise _wrong(who, round, "RoundPlan.note", f"must be text, got {plan.note!r:.80}")
    closes = _checked_closing(plan.closes, who, round)
    if closes is not plan.closes:
        fixed["closes"] = closes
    return replace(plan, **fixed) if fixed else plan


def _checked_closing(closes: Closing, who: object, round: int) -> Closing:
    if type(closes) not in _CLOSINGS:
        allowed = ", ".join(kind.__name__ for kind in get_args(Closing))
        raise _wrong(who, round, "RoundPlan.closes", f"must be one of {allowed}, got {closes!r:.80}")
    if not isinstance(closes.by_s, _REAL) or closes.by_s != closes.by_s:
        raise _wrong(who, round, "by_s of RoundPlan.closes", f"must be a number, got {closes.by_s!r:.80}")
    if isinstance(closes, Arrivals) and not isinstance(closes.count, (int, np.integer)):
        raise _wrong(who, round, "count of RoundPlan.closes", f"must be a whole number, got {closes.count!r:.80}")
    fixed: dict[str, Any] = {}
    if isinstance(closes, AllOf):
        _fix(fixed, "clients", closes.clients, _IDS, who, round, "AllOf")
    elif isinstance(closes, AnyOf):
        if not _is_sequence(closes.groups):  # an iterator would be exhausted by this check
            why = f"must be a list of arrays of client ids, got {closes.groups!r:.80}"
            raise _wrong(who, round, "AnyOf.groups", why)
        groups: dict[str, Any] = {}
        for place, group in enumerate(closes.groups):
            _fix(groups, f"groups[{place}]", group, _IDS, who, round, "AnyOf")
        if groups:
            fixed["groups"] = [groups.get(f"groups[{place}]", group) for place, group in enumerate(closes.groups)]
    return replace(closes, **fixed) if fixed else closes


def checked_merge(merge: Merge, who: object, round: int) -> Merge:
    """Return the result of `merge` with its sequences converted to arrays; raise if it is not a valid merge."""
    if not isinstance(merge, Merge):
        raise _wrong(who, round, "merge", f"must return a Merge, got {merge!r:.80}")
    fixed: dict[str, Any] = {}
    _fix(fixed, "updates", merge.updates, _IDS, who, round, "Merge")
    _fix(fixed, "weights", merge.weights, _NUMBERS, who, round, "Merge")
    if merge.drops is not NO_CLIENTS:
        _fix(fixed, "drops", merge.drops, _IDS, who, round, "Merge")
    if not isinstance(merge.of, str) or merge.of not in ("models", "updates"):
        raise _wrong(who, round, "Merge.of", f"must be 'models' or 'updates', got {merge.of!r:.80}")
    if merge.groups is not None and not isinstance(merge.groups, GroupMemory):
        raise _wrong(who, round, "Merge.groups", f"must be GroupMemory(…) or None, got {merge.groups!r:.80}")
    if merge.groups is not None:
        _check_groups(merge.groups, who, round)
    return replace(merge, **fixed) if fixed else merge


def _check_groups(groups: GroupMemory, who: object, round: int) -> None:
    for name, value in (("names", groups.names), ("resets", groups.resets)):
        if not _is_sequence(value) or not all(isinstance(group, str) for group in value):
            raise _wrong(who, round, f"GroupMemory.{name}", f"must be a list of group names, got {value!r:.80}")
    weights = groups.weights
    if not isinstance(weights, Mapping) or not all(
        isinstance(group, str) and isinstance(weight, _REAL) for group, weight in weights.items()
    ):
        raise _wrong(who, round, "GroupMemory.weights", f"must map group names to numbers, got {weights!r:.80}")


def _is_sequence(value: object) -> bool:
    """Return whether a value is a sequence or an array, but not text."""
    return value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sequence) and type(value) is not str


def _fix(
    fixed: dict[str, Any], name: str, value: Any, dtype: np.dtype[Any], who: object, round: int, kind: str
) -> None:
    """Store a value as an array in `fixed`, unless it is already one of this type; raise if it cannot be converted."""
    if type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1:
        return
    array = _array(value, dtype)
    if array is None:
        what = "whole numbers" if dtype is _IDS else "numbers"
        raise _wrong(who, round, f"{kind}.{name}", f"must be an array or a list of {what}, got {value!r:.80}")
    fixed[name] = array


def _array(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Convert a sequence to a one-dimensional array; return None if it does not hold numbers of this type."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    if array.ndim != 1:
        return None
    if not len(array):
        return NO_CLIENTS.astype(dtype)
    return array.astype(dtype) if array.dtype.kind in ("iu" if dtype is _IDS else "iuf") else None


def _wrong(who: object, round: int, what: str, why: str) -> ValueError:
    return ValueError(f"round {round}: {type(who).__name__}: {what} {' '.join(why.split())}")
