"""Checks of the plans and merges that strategies return. Errors name the round, the strategy's class and the field.

Lists, tuples and ranges are converted to arrays. Checks come before any change of state, so an error changes nothing.
"""

import copy
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from lesson.clock.ledger import Ledger
from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray, all_distinct, membership
from lesson.core.errors import InputError
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, GroupMemory, Merge, RoundPlan, Strategy

_IDS, _NUMBERS = np.dtype(np.int64), np.dtype(np.float64)
_CLOSINGS, _REAL = frozenset(get_args(Closing)), (float, int, np.floating, np.integer)
_LARGEST, _MAX_SUM = sys.float_info.max, 1 + 1e-9


class Rows(NamedTuple):
    """Updates at the server that a merge aggregates or drops, as masks over the rows of `Ledger.at_server`."""

    merged: BoolArray
    leaving: BoolArray
    """Updates that are aggregated or dropped."""
    weights: FloatArray
    """Weights of the aggregated updates, in the order of the rows."""


class Contract:
    """Checks the plan and the merge that a strategy returns in one round."""

    def __init__(self, strategy: Strategy, round: int, ledger: Ledger) -> None:
        self._strategy, self._round, self._ledger = strategy, round, ledger

    def checked_plan(self, plan: RoundPlan, usual_steps: IntArray, now_s: float) -> RoundPlan:
        """Return the plan from `open_round` with arrays in place of sequences; raise ValueError if it is not valid.

        `usual_steps` is the number of local steps that each client takes unless the plan sets another. `now_s` is the
        time at which the round opens.
        """
        if not isinstance(plan, RoundPlan):
            raise self._error("open_round", f"must return a RoundPlan, got {plan!r:.80}")
        plan = self._with_arrays(plan)
        if plan.closes.by_s < now_s or (plan.closes.by_s == now_s and len(plan.starts)):
            remedy = "times count from the start of the run, as in Deadline(view.now_s + 20.0)"
            opens = f"must be later than {now_s:g} s, when the round opens"
            raise self._error("by_s of RoundPlan.closes", f"{opens}, got {plan.closes.by_s:g}; {remedy}")
        self._check_clients("RoundPlan.drops", plan.drops)
        self._check_clients("RoundPlan.starts", plan.starts)
        match plan.closes:
            case AllOf(clients=clients):
                self._check_ids("AllOf.clients", clients)
            case AnyOf(groups=groups):
                for place, group in enumerate(groups):
                    self._check_ids(f"AnyOf.groups[{place}]", group)
        self._check_states(plan)
        self._check_local_training(plan, usual_steps)
        return plan

    def checked_merge(self, merge: Merge) -> tuple[Merge, Rows]:
        """Return the merge with arrays in place of sequences, and the rows of its updates at the server.

        Raises ValueError if the merge is not valid.
        """
        if not isinstance(merge, Merge):
            raise self._error("merge", f"must return a Merge, got {merge!r:.80}")
        fixed: dict[str, Any] = {}
        self._fix(fixed, "Merge", "updates", merge.updates, _IDS)
        self._fix(fixed, "Merge", "weights", merge.weights, _NUMBERS)
        if merge.drops is not NO_CLIENTS:
            self._fix(fixed, "Merge", "drops", merge.drops, _IDS)
        if not isinstance(merge.of, str) or merge.of not in ("models", "updates"):
            raise self._error("Merge.of", f"must be 'models' or 'updates', got {merge.of!r:.80}")
        if merge.groups is not None and not isinstance(merge.groups, GroupMemory):
            raise self._error("Merge.groups", f"must be GroupMemory(…) or None, got {merge.groups!r:.80}")
        if type(merge.step_scale) is not float:
            if not isinstance(merge.step_scale, _REAL):
                raise self._error("Merge.step_scale", f"must be a number, got {merge.step_scale!r:.80}")
            fixed["step_scale"] = float(merge.step_scale)
        merge = replace(merge, **fixed) if fixed else merge
        self._check_weights(merge)
        return merge, self._rows_at_server(merge)

    def _with_arrays(self, plan: RoundPlan) -> RoundPlan:
        fixed: dict[str, Any] = {}
        self._fix(fixed, "RoundPlan", "starts", plan.starts, _IDS)
        if plan.drops is not NO_CLIENTS:
            self._fix(fixed, "RoundPlan", "drops", plan.drops, _IDS)
        for name in ("local_steps", "batches", "tiers"):
            if (value := getattr(plan, name)) is not None:
                self._fix(fixed, "RoundPlan", name, value, _IDS)
        if type(plan.lr_scale) is not float:
            if isinstance(plan.lr_scale, _REAL):
                fixed["lr_scale"] = float(plan.lr_scale)
            else:
                self._fix(fixed, "RoundPlan", "lr_scale", plan.lr_scale, _NUMBERS)
        if not isinstance(plan.uploads, str) or plan.uploads not in ("parallel", "in-turn"):
            raise self._error("RoundPlan.uploads", f"must be 'parallel' or 'in-turn', got {plan.uploads!r:.80}")
        if not isinstance(plan.note, str):
            raise self._error("RoundPlan.note", f"must be text, got {plan.note!r:.80}")
        closes = self._closing_with_arrays(plan.closes)
        if closes is not plan.closes:
            fixed["closes"] = closes
        return replace(plan, **fixed) if fixed else plan

    def _closing_with_arrays(self, closes: Closing) -> Closing:
        if type(closes) not in _CLOSINGS:
            allowed = ", ".join(kind.__name__ for kind in get_args(Closing))
            raise self._error("RoundPlan.closes", f"must be one of {allowed}, got {closes!r:.80}")
        if not isinstance(closes.by_s, _REAL) or closes.by_s != closes.by_s:
            raise self._error("by_s of RoundPlan.closes", f"must be a number, got {closes.by_s!r:.80}")
        if isinstance(closes, Arrivals) and not isinstance(closes.count, (int, np.integer)):
            raise self._error("count of RoundPlan.closes", f"must be a whole number, got {closes.count!r:.80}")
        fixed: dict[str, Any] = {}
        if isinstance(closes, AllOf):
            self._fix(fixed, "AllOf", "clients", closes.clients, _IDS)
        elif isinstance(closes, AnyOf):
            if not _is_sequence(closes.groups):  # an iterator would be exhausted by this check
                raise self._error("AnyOf.groups", f"must be a list of arrays of client ids, got {closes.groups!r:.80}")
            groups: dict[str, Any] = {}
            for place, group in enumerate(closes.groups):
                self._fix(groups, "AnyOf", f"groups[{place}]", group, _IDS)
            if groups:
                fixed["groups"] = [groups.get(f"groups[{place}]", group) for place, group in enumerate(closes.groups)]
        return replace(closes, **fixed) if fixed else closes

    def _check_ids(self, field: str, clients: IntArray) -> None:
        """Raise unless all ids are from 0 to num_clients − 1."""
        last = len(self._ledger) - 1
        if not _all_between(clients, 0, last):
            wrong = clients[(clients < 0) | (clients > last)][0]
            raise self._error(field, f"must be ids of clients, from 0 to {last}, got {wrong}")

    def _check_clients(self, field: str, clients: IntArray) -> None:
        """Raise unless all ids are valid and distinct."""
        if not len(clients):
            return
        self._check_ids(field, clients)
        if not all_distinct(clients):
            client, count = Counter(clients.tolist()).most_common(1)[0]
            raise self._error(field, f"must not repeat a client, got client {client} {count} times")

    def _check_states(self, plan: RoundPlan) -> None:
        """Raise unless clients to drop are training, and those to start are idle or dropped by the same plan."""
        ledger = self._ledger
        if len(plan.drops) and not (training := ledger.in_flight(plan.drops)).all():
            wrong = plan.drops[~training][0]
            raise self._error("RoundPlan.drops", f"must be clients that are training, got client {wrong}")
        startable = ledger.idle[plan.starts]
        if len(plan.drops):
            startable |= np.isin(plan.starts, plan.drops) & ledger.connected[plan.starts]
        if np.count_nonzero(startable) < len(startable):
            wrong = plan.starts[~startable][0]
            state = "is training" if ledger.busy[wrong] else "is not connected"
            raise self._error("RoundPlan.starts", f"must be idle clients, got client {wrong}, which {state}")

    def _check_local_training(self, plan: RoundPlan, usual_steps: IntArray) -> None:
        """Raise unless `lr_scale`, `local_steps`, `batches` and `tiers` have valid values and one entry per start."""
        count, lr_scale = len(plan.starts), plan.lr_scale
        if isinstance(lr_scale, float):
            got, valid = 1, 0 <= lr_scale <= _LARGEST
        else:
            got, valid = len(lr_scale), _all_between(lr_scale, 0, _LARGEST)
        if got not in (1, count):
            raise self._error("RoundPlan.lr_scale", f"must be one number, or one per start ({count}), got {got}")
        if not valid:
            raise self._error("RoundPlan.lr_scale", f"must be finite and >= 0, got {plan.lr_scale}")
        if plan.tiers is not None and len(plan.tiers) != count:
            raise self._error("RoundPlan.tiers", f"must have one entry per start ({count}), got {len(plan.tiers)}")
        steps = plan.local_steps
        if steps is not None and (len(steps) != count or not (steps >= 1).all()):
            raise self._error("RoundPlan.local_steps", f"must be one number >= 1 per start ({count}), got {steps}")
        if plan.batches is None:
            return
        if len(plan.batches) not in (1, count) or not (plan.batches >= 1).all():
            raise self._error("RoundPlan.batches", f"must be numbers >= 1, one or one per start, got {plan.batches}")
        if not np.all((plan.batches == 1) | ((usual_steps[plan.starts] if steps is None else steps) == 1)):
            raise self._error("RoundPlan.batches", "must be 1 for clients that take more than one local step")

    def _rows_at_server(self, merge: Merge) -> Rows:
        """Return the rows of a merge's updates and drops; raise unless all are distinct updates at the server."""
        here = self._ledger.at_server.id
        merged, places = membership(here, merge.updates)
        leaving = merged | membership(here, merge.drops)[0] if len(merge.drops) else merged
        if np.count_nonzero(leaving) != len(merge.updates) + len(merge.drops):
            field = "Merge.updates" if np.count_nonzero(merged) != len(merge.updates) else "Merge.drops"
            other = "" if field == "Merge.updates" else " that are not in Merge.updates"
            raise self._error(field, f"must be distinct ids of updates at the server{other}")
        return Rows(merged, leaving, merge.weights[places])

    def _check_weights(self, merge: Merge) -> None:
        weights, groups = merge.weights, merge.groups
        if len(weights) != len(merge.updates):
            raise self._error(
                "Merge.weights", f"must have one entry per update ({len(merge.updates)}), got {len(weights)}"
            )
        if not _all_between(weights, 0, _LARGEST):
            raise self._error("Merge.weights", f"must be finite and >= 0, got {weights}")
        if not 0 <= merge.step_scale <= _LARGEST:
            raise self._error("Merge.step_scale", f"must be finite and >= 0, got {merge.step_scale:g}")
        if groups is not None:
            self._check_groups(groups, weights)
            self._check_previous(groups, merge.of)
        if merge.of == "models":
            total = weights.sum() if groups is None else sum(groups.weights.values())
            if total > _MAX_SUM:
                field = "Merge.weights" if groups is None else "GroupMemory.weights"
                raise self._error(field, f"must sum to at most 1 for models, got {total:g}")

    def _check_groups(self, groups: GroupMemory, weights: FloatArray) -> None:
        for name, value in (("names", groups.names), ("resets", groups.resets)):
            if not _is_sequence(value) or not all(isinstance(group, str) for group in value):
                raise self._error(f"GroupMemory.{name}", f"must be a list of group names, got {value!r:.80}")
        shares = self._weights_by_group("weights", groups.weights)
        if not _all_between(shares, 0, _LARGEST):
            raise self._error("GroupMemory.weights", f"must be finite and >= 0, got {shares}")
        if len(groups.names) != len(weights):
            raise self._error(
                "GroupMemory.names", f"must have one entry per update ({len(weights)}), got {len(groups.names)}"
            )
        sums = Counter[str]()
        for name, weight in zip(groups.names, weights.tolist(), strict=True):
            sums[name] += weight
        for name, total in sums.items():
            if total > _MAX_SUM:
                raise self._error("Merge.weights", f"must sum to at most 1 in a group, got {total:g} in {name!r}")

    def _check_previous(self, groups: GroupMemory, of: str) -> None:
        shares, total = self._weights_by_group("previous", groups.previous), groups.previous_total
        if not _all_between(shares, -_LARGEST, _LARGEST):
            raise self._error("GroupMemory.previous", f"must be finite, got {shares}")
        if not isinstance(total, _REAL):
            raise self._error("GroupMemory.previous_total", f"must be a number, got {total!r:.80}")
        if not -_LARGEST <= total <= _LARGEST:
            raise self._error("GroupMemory.previous_total", f"must be finite, got {total:g}")
        if of == "models" and (groups.previous or total):
            field = "previous" if groups.previous else "previous_total"
            raise self._error(f"GroupMemory.{field}", "must not be set for a merge of models; use of='updates'")

    def _weights_by_group(self, name: str, given: Any) -> FloatArray:
        """Return the weights of a field of GroupMemory; raise unless it maps group names to numbers."""
        if not isinstance(given, Mapping) or not all(
            isinstance(group, str) and isinstance(weight, _REAL) for group, weight in given.items()
        ):
            raise self._error(f"GroupMemory.{name}", f"must map group names to numbers, got {given!r:.80}")
        return np.array([*given.values()], dtype=np.float64)

    def _fix(self, fixed: dict[str, Any], kind: str, name: str, value: Any, dtype: np.dtype[Any]) -> None:
        """Store a value as an array in `fixed`, unless it already is one of this type; raise if it cannot be one."""
        if type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1:
            return
        array = _array(value, dtype)
        if array is None:
            what = "whole numbers" if dtype is _IDS else "numbers"
            raise self._error(f"{kind}.{name}", f"must be an array or a list of {what}, got {value!r:.80}")
        fixed[name] = array

    def _error(self, what: str, why: str) -> ValueError:
        who = type(self._strategy).__name__
        return ValueError(f"round {self._round}: {who}: {what} {' '.join(why.split())}")


def _all_between(values: npt.NDArray[Any], low: float, high: float) -> bool:
    """Return whether all values are between `low` and `high`, inclusive; False if any is NaN."""
    return not len(values) or bool(values.min() >= low and values.max() <= high)


def _is_sequence(value: object) -> bool:
    """Return whether a value is a sequence or an array, but not text."""
    return value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sequence) and type(value) is not str


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


def copied(strategy: Strategy) -> Strategy:
    """Return a copy of a strategy that shares no state with it."""
    try:
        return copy.deepcopy(strategy)
    except Exception as error:  # a custom strategy may raise anything
        raise InputError(
            f"strategy {type(strategy).__name__} cannot be copied: {error}; give it a __deepcopy__ method, or do "
            "not keep open files or locks in its attributes"
        ) from None
