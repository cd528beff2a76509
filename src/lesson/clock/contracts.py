"""Checks of the plans and merges that strategies return. Errors name the round, the strategy's class and the field.

Lists, tuples and ranges are converted to arrays. Checks come before any change of state, so an error changes nothing.
"""

import copy
import sys
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray, all_distinct, all_within, membership
from lesson.core.errors import InputError
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, Every, GroupMemory, Merge, RoundPlan, Strategy

_IDS, _NUMBERS, _REAL = np.dtype(np.int64), np.dtype(np.float64), (float, int, np.floating, np.integer)
_PER_START = {
    "lr_scale": (_NUMBERS, 0),
    "local_steps": (_IDS, 1),
    "samples": (_IDS, 1),
    "tiers": (_IDS, 0),
    "compression": (_NUMBERS, 0),
}
"""Type and least value of fields with one entry per start, or one for all."""
_CLOSINGS = (Every, *get_args(Closing))
_MAX, _MAX_SUM = sys.float_info.max, 1 + 1e-9
Decision = TypeVar("Decision", bound=RoundPlan | Merge | Closing | Every)


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

    def checked_plan(self, plan: RoundPlan, fleet: Fleet, now_s: float) -> RoundPlan:
        """Return the plan from `open_round` with arrays in place of sequences; raise ValueError if it is not valid.

        `now_s` is the time at which the round opens.
        """
        self._require(isinstance(plan, RoundPlan), "open_round", "must return a RoundPlan", plan)
        drops, starts = self._clients("RoundPlan.drops", plan.drops), self._clients("RoundPlan.starts", plan.starts)
        self._check_states(starts, drops)
        checked: dict[str, Any] = {"starts": starts, "drops": drops}
        for name, (dtype, least) in _PER_START.items():
            value = getattr(plan, name)
            if value is None or (type(value) is float and dtype is _NUMBERS and least <= value < np.inf):
                continue
            numbers = "numbers" if dtype is _NUMBERS else "whole numbers"
            what = f"must be finite {numbers} >= {least}, one per start ({len(starts)}) or one for all"
            values = [value] if isinstance(value, _REAL) else value
            array = self._array(f"RoundPlan.{name}", values, what, dtype, least)
            self._require(len(array) in (1, len(starts)), f"RoundPlan.{name}", what, value)
            checked[name] = array if len(array) == len(starts) else np.full(len(starts), array[0])
        if plan.samples is not None:
            steps = checked.get("local_steps", fleet.local_steps[starts])
            valid = bool(np.all((steps == 1) & (fleet.batch_samples[starts] > 0)))
            what = "must be None unless clients take one local step on a known number of samples"
            self._require(valid, "RoundPlan.samples", what, plan.samples)
        if plan.compression is not None:
            what = f"must be one of the levels {', '.join(f'{level:g}' for level in fleet.level_bits)}"
            what = what if fleet.level_bits else "must be None, or [upload] compression must be set"
            for level in np.unique(checked.get("compression", plan.compression)).tolist():
                self._require(level in fleet.level_bits, "RoundPlan.compression", what, level)
        if plan.allocation is not None:
            valid = fleet.link is not None and plan.uploads == "parallel"
            what = "must be None for clients with measured times or channels, and for uploads in turn"
            self._require(valid, "RoundPlan.allocation", what, plan.allocation)
        known = plan.uploads in ("parallel", "in-turn")
        self._require(known, "RoundPlan.uploads", "must be parallel or in-turn", plan.uploads)
        checked["closes"] = self._checked_closing(plan.closes, len(starts), now_s)
        return _with(plan, checked)

    def checked_merge(self, merge: Merge) -> tuple[Merge, Rows]:
        """Return the merge with arrays in place of sequences, and the rows of its updates at the server.

        Raises ValueError if the merge is not valid.
        """
        self._require(isinstance(merge, Merge), "merge", "must return a Merge", merge)
        ids = "must be distinct ids of updates at the server, each aggregated or dropped"
        updates = self._array("Merge.updates", merge.updates, ids, low=None)
        drops = self._array("Merge.drops", merge.drops, ids, low=None)
        what, scale = f"must be finite numbers >= 0, one per update ({len(updates)})", merge.step_scale
        weights = self._array("Merge.weights", merge.weights, what, _NUMBERS)
        self._require(len(weights) == len(updates), "Merge.weights", what, weights)
        self._require(merge.of in ("models", "updates"), "Merge.of", "must be models or updates", merge.of)
        valid = isinstance(scale, _REAL) and 0 <= scale < np.inf
        self._require(valid, "Merge.step_scale", "must be a finite number >= 0", scale)
        limit = merge.step_limit
        valid = isinstance(limit, _REAL) and limit >= 0
        self._require(valid, "Merge.step_limit", "must be a number >= 0 or inf", limit)
        steps = {"step_scale": float(scale), "step_limit": float(limit)}
        merge = _with(merge, {"updates": updates, "drops": drops, "weights": weights, **steps})
        if merge.groups is not None:
            self._check_groups(merge.groups, merge)
        elif merge.of == "models":
            total = float(weights.sum())
            self._require(total <= _MAX_SUM, "Merge.weights", "must sum to at most 1 for models", total)
        if not len(updates) and not len(drops):  # without reading a column, see `Updates.join`
            nobody = np.zeros(len(self._ledger.at_server), dtype=np.bool_)
            return merge, Rows(nobody, nobody, weights)
        here = self._ledger.at_server.id
        merged, places = membership(here, updates)
        leaving = merged | membership(here, drops)[0] if len(drops) else merged
        if np.count_nonzero(leaving) != len(updates) + len(drops):
            field = "Merge.updates" if np.count_nonzero(merged) != len(updates) else "Merge.drops"
            raise self._error(field, ids)
        return merge, Rows(merged, leaving, weights[places])

    def _checked_closing(self, closes: Closing | Every, num_starts: int, now_s: float) -> Closing | Every:
        self._require(isinstance(closes, _CLOSINGS), "RoundPlan.closes", "must be a closing condition", closes)
        if isinstance(closes, Every):
            valid = isinstance(closes.interval_s, _REAL) and closes.interval_s > 0
            self._require(valid, "interval_s of RoundPlan.closes", "must be > 0", closes.interval_s)
            done = closes.unless_done
            clients = None if done is None else self._clients("Every.unless_done", done, distinct=False)
            return _with(closes, {"interval_s": float(closes.interval_s), "unless_done": clients})
        by_s = closes.by_s
        if not isinstance(by_s, _REAL) or not by_s >= now_s or (by_s == now_s and num_starts):
            remedy = "times count from the start of the run, as in Deadline(view.now_s + 20.0)"
            raise self._error("by_s of RoundPlan.closes", f"must be later than {now_s:g} s, got {by_s!r:.80}; {remedy}")
        checked: dict[str, Any] = {"by_s": float(by_s)}  # times with fewer digits would become the clock's
        match closes:
            case Arrivals(count=count):
                valid = isinstance(count, int | np.integer)
                self._require(valid, "count of RoundPlan.closes", "must be a whole number", count)
            case AllOf(clients=clients):
                checked["clients"] = self._clients("AllOf.clients", clients, distinct=False)
            case AnyOf(groups=groups):
                checked["groups"] = [self._clients("AnyOf.groups", group, distinct=False) for group in groups]
        return _with(closes, checked)

    def _check_states(self, starts: IntArray, drops: IntArray) -> None:
        """Raise unless clients to drop are training, and those to start are idle or dropped by the same plan."""
        ledger = self._ledger
        startable = ledger.idle[starts]
        if len(drops):
            if not (training := ledger.in_flight(drops)).all():
                wrong = drops[~training][0]
                raise self._error("RoundPlan.drops", f"must be clients that are training, got client {wrong}")
            startable |= np.isin(starts, drops) & ledger.connected[starts]
        if np.count_nonzero(startable) < len(startable):
            wrong = starts[~startable][0]
            state = "is training" if ledger.busy[wrong] else "is not connected"
            raise self._error("RoundPlan.starts", f"must be idle clients, got client {wrong}, which {state}")

    def _check_groups(self, groups: GroupMemory, merge: Merge) -> None:
        self._require(isinstance(groups, GroupMemory), "Merge.groups", "must be GroupMemory(…) or None", groups)
        names, count, sums = groups.names, len(merge.weights), Counter[str]()
        self._require(len(names) == count, "GroupMemory.names", f"must be one name per update ({count})", names)
        for name, weight in zip(names, merge.weights.tolist(), strict=True):
            sums[name] += weight
        largest = max(sums.values(), default=0.0)
        self._require(largest <= _MAX_SUM, "Merge.weights", "must sum to at most 1 in each group", largest)
        self._array("GroupMemory.previous", [*groups.previous.values()], "must be finite numbers", _NUMBERS, -_MAX)
        self._array("GroupMemory.previous_total", [groups.previous_total], "must be a finite number", _NUMBERS, -_MAX)
        weights = self._array(
            "GroupMemory.weights", [*groups.weights.values()], "must be finite numbers >= 0", _NUMBERS
        )
        if merge.of == "models":
            total = float(weights.sum())
            self._require(total <= _MAX_SUM, "GroupMemory.weights", "must sum to at most 1 for models", total)
            is_unset = not groups.previous and not groups.previous_total
            self._require(is_unset, "GroupMemory.previous", "must not be set for models", groups)

    def _clients(self, field: str, value: Any, distinct: bool = True) -> IntArray:
        """Return ids of clients as an array; raise unless all are valid and, with `distinct`, none is repeated."""
        last = len(self._ledger) - 1
        what = f"must be ids of clients, from 0 to {last}"
        clients: IntArray = value if value is NO_CLIENTS else self._array(field, value, what, high=last)
        if distinct and not all_distinct(clients):
            client, count = Counter(clients.tolist()).most_common(1)[0]
            raise self._error(field, f"must not repeat a client, got client {client} {count} times")
        return clients

    def _array(
        self, field: str, value: Any, what: str, dtype: Any = _IDS, low: float | None = 0, high: float = _MAX
    ) -> Any:
        """Return a list of numbers as an array, an array of this type unchanged; raise unless it is what it must be.

        Unless `low` is None, numbers must be between `low` and `high`, inclusive.
        """
        array = value
        if type(value) is not np.ndarray or value.dtype is not dtype or value.ndim != 1:
            try:
                array = np.asarray(value)
            except ValueError:  # rows of different lengths
                array = np.empty((0, 0))
            is_list = array.ndim == 1 and (array.dtype.kind in ("iu" if dtype is _IDS else "iuf") or not len(array))
            self._require(is_list, field, what, value)
            array = array.astype(dtype)
        if low is not None and not all_within(array, low, high):
            wrong = array[~((array >= low) & (array <= high))][0]
            raise self._error(field, f"{what}, got {wrong}")
        return array

    def _require(self, valid: bool, field: str, what: str, got: object) -> None:
        if not valid:
            raise self._error(field, f"{what}, got {got!r:.80}")

    def _error(self, field: str, why: str) -> ValueError:
        return ValueError(f"round {self._round}: {type(self._strategy).__name__}: {field} {' '.join(why.split())}")


def _with(decision: Decision, checked: dict[str, Any]) -> Decision:
    """Return a decision with the checked fields; the same object if none of them has changed."""
    for name, value in checked.items():
        if value is not getattr(decision, name):
            return replace(decision, **checked)
    return decision


def copied(strategy: Strategy) -> Strategy:
    """Return a copy of a strategy that shares no state with it."""
    try:
        return copy.deepcopy(strategy)
    except Exception as error:  # a custom strategy may raise anything
        raise InputError(
            f"strategy {type(strategy).__name__} cannot be copied: {error}; give it a __deepcopy__ method, or do "
            "not keep open files or locks in its attributes"
        ) from error
