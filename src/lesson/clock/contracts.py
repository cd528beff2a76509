"""Checks of the plans and merges that strategies return. Errors name the round, the strategy's class and the field.

Lists, tuples and ranges are converted to arrays. Checks come before any change of state, so an error changes nothing.
"""

import copy
import math
import sys
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from lesson.clock.ledger import Ledger
from lesson.core.arrays import BoolArray, FloatArray, IntArray, all_distinct, membership
from lesson.core.errors import InputError
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Closing, GroupMemory, Merge, RoundPlan, Strategy

_IDS, _NUMBERS = np.dtype(np.int64), np.dtype(np.float64)
_CLOSINGS, _REAL = get_args(Closing), (float, int, np.floating, np.integer)
_PER_START = {"lr_scale": (_NUMBERS, 0, True), "batches": (_IDS, 1, True), "local_steps": (_IDS, 1, False)}
_PER_START |= {"tiers": (_IDS, 0, False)}
"""Type and least value of fields with one entry per start, and whether a single one stands for all."""
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
        self._require(isinstance(plan, RoundPlan), "open_round", "must return a RoundPlan", plan)
        plan = self._with_arrays(plan, starts=_IDS, drops=_IDS)
        self._check_clients("RoundPlan.drops", plan.drops)
        self._check_clients("RoundPlan.starts", plan.starts)
        self._check_states(plan)
        plan = self._checked_training(plan, usual_steps)
        uploads, note = plan.uploads, plan.note
        self._require(uploads in ("parallel", "in-turn"), "RoundPlan.uploads", "must be parallel or in-turn", uploads)
        self._require(isinstance(note, str), "RoundPlan.note", "must be text", note)
        closes = self._checked_closing(plan.closes, len(plan.starts), now_s)
        return plan if closes is plan.closes else replace(plan, closes=closes)

    def checked_merge(self, merge: Merge) -> tuple[Merge, Rows]:
        """Return the merge with arrays in place of sequences, and the rows of its updates at the server.

        Raises ValueError if the merge is not valid.
        """
        self._require(isinstance(merge, Merge), "merge", "must return a Merge", merge)
        merge = self._with_arrays(merge, updates=_IDS, drops=_IDS, weights=_NUMBERS)
        weights, scale, count = merge.weights, merge.step_scale, len(merge.updates)
        if len(weights) != count or not _all_between(weights, 0, _LARGEST):
            raise self._error("Merge.weights", f"must be finite and >= 0, one per update ({count}), got {weights}")
        self._require(merge.of in ("models", "updates"), "Merge.of", "must be models or updates", merge.of)
        self._require(_is_finite(scale) and scale >= 0, "Merge.step_scale", "must be a finite number >= 0", scale)
        merge = merge if type(scale) is float else replace(merge, step_scale=float(scale))
        if merge.groups is not None:
            self._check_groups(merge.groups, merge)
        elif merge.of == "models":
            total = weights.sum()
            self._require(total <= _MAX_SUM, "Merge.weights", "must sum to at most 1 for models", total)
        return merge, self._rows_at_server(merge)

    def _checked_closing(self, closes: Closing, num_starts: int, now_s: float) -> Closing:
        self._require(isinstance(closes, _CLOSINGS), "RoundPlan.closes", "must be a closing condition", closes)
        by_s = closes.by_s
        if not isinstance(by_s, _REAL) or not by_s >= now_s or (by_s == now_s and num_starts):
            remedy = "times count from the start of the run, as in Deadline(view.now_s + 20.0)"
            raise self._error("by_s of RoundPlan.closes", f"must be later than {now_s:g} s, got {by_s!r:.80}; {remedy}")
        if isinstance(closes, Arrivals):
            is_whole = isinstance(closes.count, int | np.integer)
            self._require(is_whole, "count of RoundPlan.closes", "must be a whole number", closes.count)
        elif isinstance(closes, AllOf):
            clients = self._array("AllOf.clients", closes.clients, _IDS)
            self._check_clients("AllOf.clients", clients, distinct=False)
            closes = closes if clients is closes.clients else AllOf(clients, by_s)
        elif isinstance(closes, AnyOf):
            is_list = isinstance(closes.groups, list | tuple)
            self._require(is_list, "AnyOf.groups", "must be a list of arrays", closes.groups)
            groups = [self._array("AnyOf.groups", group, _IDS) for group in closes.groups]
            for group in groups:
                self._check_clients("AnyOf.groups", group, distinct=False)
            closes = AnyOf(groups, by_s)
        return closes

    def _check_clients(self, field: str, clients: IntArray, distinct: bool = True) -> None:
        """Raise unless all ids are from 0 to num_clients − 1 and, with `distinct`, none is repeated."""
        if not len(clients):
            return
        last = len(self._ledger) - 1
        if not _all_between(clients, 0, last):
            wrong = clients[(clients < 0) | (clients > last)][0]
            raise self._error(field, f"must be ids of clients, from 0 to {last}, got {wrong}")
        if distinct and not all_distinct(clients):
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

    def _checked_training(self, plan: RoundPlan, usual_steps: IntArray) -> RoundPlan:
        """Raise unless `lr_scale`, `local_steps`, `batches` and `tiers` have valid values and one entry per start."""
        if isinstance(plan.lr_scale, _REAL):
            valid = math.isfinite(plan.lr_scale) and plan.lr_scale >= 0
            self._require(valid, "RoundPlan.lr_scale", "must be finite and >= 0", plan.lr_scale)
            plan = plan if type(plan.lr_scale) is float else replace(plan, lr_scale=float(plan.lr_scale))
        for name, (dtype, least, may_be_one) in _PER_START.items():
            if (values := getattr(plan, name)) is None or type(values) is float:
                continue
            array, count = self._array(f"RoundPlan.{name}", values, dtype), len(plan.starts)
            valid = (len(array) == count or (may_be_one and len(array) == 1)) and _all_between(array, least, _LARGEST)
            self._require(valid, f"RoundPlan.{name}", f"must be >= {least}, one per start ({count})", values)
            plan = plan if array is values else replace(plan, **{name: array})
        if plan.batches is not None:
            steps = usual_steps[plan.starts] if plan.local_steps is None else plan.local_steps
            valid = bool(np.all((plan.batches == 1) | (steps == 1)))
            self._require(valid, "RoundPlan.batches", "must be 1 for clients with several local steps", plan.batches)
        return plan

    def _check_groups(self, groups: GroupMemory, merge: Merge) -> None:
        self._require(isinstance(groups, GroupMemory), "Merge.groups", "must be GroupMemory(…) or None", groups)
        names, count, sums = groups.names, len(merge.weights), Counter[str]()
        self._require(len(names) == count, "GroupMemory.names", f"must be one name per update ({count})", names)
        for name, weight in zip(names, merge.weights.tolist(), strict=True):
            sums[name] += weight
        largest = max(sums.values(), default=0.0)
        self._require(largest <= _MAX_SUM, "Merge.weights", "must sum to at most 1 in each group", largest)
        total = {"": groups.previous_total}
        for field, weights in (("weights", groups.weights), ("previous", groups.previous), ("previous_total", total)):
            may_be_negative = field != "weights"
            valid = all(_is_finite(one) and (one >= 0 or may_be_negative) for one in weights.values())
            self._require(valid, f"GroupMemory.{field}", "must be finite, and >= 0 for weights", weights)
        if merge.of == "models":
            valid = sum(groups.weights.values()) <= _MAX_SUM
            self._require(valid, "GroupMemory.weights", "must sum to at most 1 for models", groups.weights)
            is_unset = not groups.previous and not groups.previous_total
            self._require(is_unset, "GroupMemory.previous", "must not be set for models", groups)

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

    def _with_arrays(self, decision: Any, **dtypes: np.dtype[Any]) -> Any:
        """Return a decision with arrays in place of sequences."""
        fixed: dict[str, Any] = {}
        for name, dtype in dtypes.items():
            value = getattr(decision, name)
            if not (type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1):
                fixed[name] = self._array(f"{type(decision).__name__}.{name}", value, dtype)
        return replace(decision, **fixed) if fixed else decision

    def _array(self, field: str, value: Any, dtype: np.dtype[Any]) -> Any:
        """Return a sequence of numbers as an array; an array of this type unchanged."""
        if type(value) is np.ndarray and value.dtype is dtype and value.ndim == 1:
            return value
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            array = np.empty((0, 0))
        kinds = "iu" if dtype is _IDS else "iuf"
        valid = array.ndim == 1 and (array.dtype.kind in kinds or not len(array))
        self._require(valid, field, f"must be an array or a list of {'whole ' * (dtype is _IDS)}numbers", value)
        return array.astype(dtype)

    def _require(self, valid: bool, field: str, what: str, got: object) -> None:
        if not valid:
            raise self._error(field, f"{what}, got {got!r:.80}")

    def _error(self, field: str, why: str) -> ValueError:
        return ValueError(f"round {self._round}: {type(self._strategy).__name__}: {field} {' '.join(why.split())}")


def _all_between(values: npt.NDArray[Any], low: float, high: float) -> bool:
    """Return whether all values are between `low` and `high`, inclusive; False if any is NaN."""
    return not len(values) or bool(values.min() >= low and values.max() <= high)


def _is_finite(value: object) -> bool:
    return isinstance(value, _REAL) and math.isfinite(value)


def copied(strategy: Strategy) -> Strategy:
    """Return a copy of a strategy that shares no state with it."""
    try:
        return copy.deepcopy(strategy)
    except Exception as error:  # a custom strategy may raise anything
        raise InputError(
            f"strategy {type(strategy).__name__} cannot be copied: {error}; give it a __deepcopy__ method, or do "
            "not keep open files or locks in its attributes"
        ) from error
