"""What a strategy may return: every error names the round, the class and the field."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fleets import make_fleet
from helpers.scripted import Scripted, ids
from lesson import InputError, make_loop, simulate
from lesson.core.arrays import membership
from lesson.core.state import state_of
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Deadline, Every, GroupMemory, Merge, RoundPlan, Updates

ONE = np.ones(1)
PLAN = RoundPlan(ids(0), Deadline(9.0))


class Mine(Scripted):
    """A custom strategy."""


def grouped(names: Any, weights: Any, of: Any = "updates", **fields: Any) -> Merge:
    return Merge(ids(0), ONE, of=of, groups=GroupMemory(names, weights, **fields))


PLANS: dict[str, list[Any]] = {
    "open_round": [None],
    "RoundPlan.starts": [
        replace(PLAN, starts=starts)
        for starts in ("ab", [True, False], [0.0], np.array(0), [[0], [0, 1]], [2], [-1], [0, 0])
    ],
    "RoundPlan.closes": [replace(PLAN, closes=9.0)],
    "by_s of RoundPlan.closes": [
        *(replace(PLAN, closes=Deadline(by_s)) for by_s in (0.0, np.nan, "x")),
        RoundPlan(ids(), Deadline(-1.0)),
    ],
    "count of RoundPlan.closes": [replace(PLAN, closes=Arrivals(1.5))],  # type: ignore[arg-type]
    "interval_s of RoundPlan.closes": [replace(PLAN, closes=Every(interval)) for interval in (0.0, np.nan, "x")],  # type: ignore[arg-type]
    "Every.unless_done": [replace(PLAN, closes=Every(9.0, clients)) for clients in ("x", [5])],  # type: ignore[arg-type]
    "AllOf.clients": [replace(PLAN, closes=AllOf(clients)) for clients in ("x", [5])],
    "AnyOf.groups": [replace(PLAN, closes=AnyOf(groups)) for groups in ([[0], 1], [[0], [-1]])],
    "RoundPlan.lr_scale": [replace(PLAN, lr_scale=scale) for scale in (-1.0, np.nan, [np.inf], [1.0, 2.0], 1j, "1")],
    "RoundPlan.local_steps": [replace(PLAN, local_steps=steps) for steps in ([0], [1.5], 1.5, [1, 1])],
    "RoundPlan.samples": [
        *(replace(PLAN, samples=samples) for samples in ([0], [1.5], 1.5, [1, 1])),
        replace(PLAN, local_steps=[2], samples=[2]),
    ],
    "RoundPlan.tiers": [replace(PLAN, tiers=[1, 2])],
    "RoundPlan.drops": [replace(PLAN, drops=drops) for drops in (None, [7], [0])],
    "RoundPlan.compression": [replace(PLAN, compression=level) for level in (4.0, -1.0, np.nan, [8.0, 8.0], "8")],
    "RoundPlan.uploads": [replace(PLAN, uploads="turns")],
}
MERGES: dict[str, list[Any]] = {
    "merge": [(ids(0), ONE)],
    "Merge.updates": [Merge(updates, np.full(2, 0.5)) for updates in (ids(0, 7), ids(0, 0), 0)],
    "Merge.drops": [Merge(ids(0), ONE, drops=drops) for drops in (ids(0), [0.5])],
    "Merge.weights": [
        *(Merge(ids(0), weights) for weights in (np.ones(2), np.array([np.nan]), -ONE, 1.0, ["1"])),
        Merge(ids(0, 1), np.ones(2)),
        Merge(ids(0, 1), np.ones(2), of="updates", groups=GroupMemory(["a", "a"], {})),
    ],
    "Merge.of": [Merge(ids(0), ONE, of="model")],
    "Merge.step_limit": [Merge(ids(0), ONE, step_limit=limit) for limit in ("1", np.nan, -1)],
    "Merge.step_scale": [Merge(ids(0), ONE, step_scale=scale) for scale in ("1", np.inf, -1)],
    "Merge.groups": [Merge(ids(0), ONE, groups={"a": 1.0})],
    "GroupMemory.names": [grouped([], {})],
    "GroupMemory.weights": [
        *(grouped(["a"], weights) for weights in ({"0": "x"}, {"a": -1.0})),
        grouped(["a"], {"a": 1.0, "b": 1.0}, of="models"),
    ],
    "GroupMemory.previous": [
        grouped(["a"], {}, previous={"a": np.nan}),
        grouped(["a"], {}, "models", previous={"a": -1.0}),
        grouped(["a"], {}, "models", previous_total=0.5),
    ],
    "GroupMemory.previous_total": [grouped(["a"], {}, previous_total=total) for total in (None, np.inf, -np.inf)],
}


@pytest.mark.parametrize(
    ("field", "strategy"),
    [(field, Mine(plan)) for field, plans in PLANS.items() for plan in plans]
    + [
        (field, Mine(Deadline(9.0), merge=lambda _, one=merge: one)) for field, some in MERGES.items() for merge in some
    ],
)
def test_errors_name_the_field(field: str, strategy: Mine) -> None:
    with pytest.raises(ValueError, match=rf"^round 1: Mine: {field}"):
        make_loop(strategy, make_fleet([1.0, 2.0])).step()


@pytest.mark.parametrize("plan", [replace(PLAN, lr_scale=np.float32(0)), RoundPlan(ids(), Deadline(0.0))])
def test_extreme_values_are_valid(plan: RoundPlan) -> None:
    def merge(arrived: Updates) -> Merge:
        names = np.array(["a"] * len(arrived))
        groups = GroupMemory(names, {"a": np.float32(1.0), "b": 0}, np.array(["c"]))
        return Merge(arrived.id, np.ones(len(arrived)), step_scale=0, groups=groups)

    record = next(simulate(Scripted(plan, merge=merge), make_fleet([1.0, 2.0]), rounds=1))
    assert record.merged.tolist() == plan.starts.tolist()


@pytest.mark.parametrize("kind", [list, tuple, lambda some: np.array(some, dtype=np.int32)])
@pytest.mark.parametrize("closes", [AllOf, lambda clients: AnyOf([clients])])
def test_plans_and_merges_may_contain_sequences(kind: Any, closes: Any) -> None:
    parts = {"lr_scale": kind([1, 2]), "local_steps": kind([2, 1]), "drops": kind([])}
    plan = RoundPlan(kind([0, 1]), closes(kind([0, 1])), **parts)

    def merge(arrived: Updates) -> Merge:
        return Merge(kind(arrived.id[:1].tolist()), kind([1]), drops=kind(arrived.id[1:].tolist()))

    record = next(simulate(Scripted(plan, merge=merge), make_fleet([2.0, 3.0]), rounds=1))
    assert (record.end_s, record.started.tolist(), record.merged.tolist()) == (3.0, [0, 1], [0])


@pytest.mark.parametrize("number", [int, np.int64, np.float32])
@pytest.mark.parametrize("closes", [Deadline, Every, lambda by_s: AllOf(ids(0), by_s)])
def test_times_of_a_strategy_become_floats(number: Any, closes: Any) -> None:
    loop = make_loop(Scripted(RoundPlan(ids(0), closes(number(1)))), make_fleet([2.0]))
    record = loop.step()
    assert record is not None
    assert (type(record.end_s), record.end_s) == (float, 1.0)


def test_records_do_not_change_with_the_arrays_of_the_strategy() -> None:
    starts, tiers = ids(0, 1), ids(1, 2)
    loop = make_loop(Scripted(RoundPlan(starts, Deadline(9.0), tiers=tiers)), make_fleet([2.0, 3.0]))
    loop.strategy = Scripted(RoundPlan(starts, Deadline(9.0), tiers=tiers))  # the loop's own copy has other arrays
    record = loop.step()
    starts[:], tiers[:] = 0, 0
    assert record is not None
    assert (record.started.tolist(), record.tiers.tolist()) == ([0, 1], [1, 2])


def test_one_entry_may_stand_for_all_starts() -> None:
    plan = RoundPlan(ids(0, 1), Deadline(9.0), lr_scale=2, local_steps=[3], tiers=(1,))
    loop = make_loop(Scripted(plan), make_fleet([2.0, 3.0]))
    record = loop.step()
    assert record is not None
    assert record.tiers.tolist() == [1, 1]


@pytest.mark.parametrize(("latency_s", "state"), [(np.inf, "not connected"), (20.0, "training")])
def test_only_idle_clients_may_start(latency_s: float, state: str) -> None:
    loop = make_loop(Mine(Deadline(9.0), RoundPlan(ids(1), Deadline(18.0))), make_fleet([1.0, latency_s]))
    loop.step()
    with pytest.raises(ValueError, match=rf"^round 2: Mine: RoundPlan.starts .* client 1, which is {state}"):
        loop.step()


def test_dropped_client_may_start_again_in_the_same_plan() -> None:
    plans = Deadline(9.0), RoundPlan(ids(0), Deadline(18.0), drops=ids(0))
    assert [record.started.tolist() for record in simulate(Scripted(*plans), make_fleet([20.0]), rounds=2)] == [[0]] * 2


def test_invalid_plan_changes_nothing() -> None:
    plans = Deadline(9.0), RoundPlan(ids(0), Deadline(18.0), drops=ids(1), lr_scale=-1.0)
    loop = make_loop(Scripted(*plans), make_fleet([1.0, 20.0]))
    loop.step()
    before = state_of(loop.ledger)[0]
    with pytest.raises(ValueError, match="lr_scale"):
        loop.step()
    assert (state_of(loop.ledger)[0], loop.ledger.busy.tolist()) == (before, [False, True])


def test_strategy_that_cannot_be_copied_is_an_error() -> None:
    strategy = Mine(Deadline(9.0))
    strategy.lock = threading.Lock()
    with pytest.raises(InputError, match="Mine cannot be copied"):
        make_loop(strategy, make_fleet([1.0]))


@given(
    st.lists(st.integers(0, 40), unique=True),
    st.lists(st.integers(0, 40), unique=True),
    st.sampled_from([1, 1000]),
    st.sampled_from([0, 600]),
)
def test_membership_of_many_or_sparse_ids(ids: list[int], wanted: list[int], apart: int, more: int) -> None:
    ids += range(50, 50 + more)
    wanted += range(50 + more // 2, 60 + more)
    is_member, places = membership(apart * np.array(ids, dtype=np.int64), apart * np.array(wanted, dtype=np.int64))
    assert is_member.tolist() == [one in wanted for one in ids]
    assert [wanted[place] for place in places] == [one for one in ids if one in wanted]
