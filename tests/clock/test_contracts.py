"""Checks of plans and merges: every error names the round, the strategy's class and the field."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet
from helpers.scripted import Scripted, ids
from lesson import FedAvg, InputError, RoundLoop, Simulation
from lesson.clock.worlds import NominalWorld
from lesson.strategies.base import AllOf, AnyOf, Arrivals, Deadline, GroupMemory, Merge, RoundPlan, ServerView, Updates

ONE = np.ones(1)
PLAN = RoundPlan(ids(0), Deadline(9.0))


def grouped(names: Any, weights: Any, resets: Any = ()) -> Merge:
    return Merge(ids(0), ONE, groups=GroupMemory(names, weights, resets))


def calibrated(of: Any = "updates", **fields: Any) -> Merge:
    return Merge(ids(0), ONE, of=of, groups=GroupMemory(["a"], {}, **fields))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "open_round must return a RoundPlan, got None"),
        (RoundPlan("ab", Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers, got 'ab'"),
        (RoundPlan([True, False], Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers"),
        (RoundPlan([0.0], Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers, got [0.0]"),
        (RoundPlan(np.array(0), Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers"),
        (RoundPlan([[0], [0, 1]], Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers"),
        (RoundPlan({0}, Deadline(9.0)), "RoundPlan.starts must be an array or a list of whole numbers, got {0}"),
        (RoundPlan([2], Deadline(9.0)), "RoundPlan.starts must be ids of clients, from 0 to 1, got 2"),
        (RoundPlan([-1], Deadline(9.0)), "RoundPlan.starts must be ids of clients, from 0 to 1, got -1"),
        (RoundPlan([0, 0], Deadline(9.0)), "RoundPlan.starts must not repeat a client, got client 0 2 times"),
        (replace(PLAN, closes=9.0), "RoundPlan.closes must be one of Deadline, Arrivals, AllOf, AnyOf, got 9.0"),
        (
            replace(PLAN, closes=Deadline(0.0)),
            "by_s of RoundPlan.closes must be later than 0 s, when the round opens, got 0; times count from the start",
        ),
        (replace(PLAN, starts=ids(), closes=Deadline(-1.0)), "by_s of RoundPlan.closes must be later than 0 s"),
        (replace(PLAN, closes=Deadline(np.nan)), "by_s of RoundPlan.closes must be a number, got nan"),
        (replace(PLAN, closes=Arrivals(1.5)), "count of RoundPlan.closes must be a whole number, got 1.5"),
        (replace(PLAN, closes=AllOf("x")), "AllOf.clients must be an array or a list of whole numbers, got 'x'"),
        (replace(PLAN, closes=AllOf([5])), "AllOf.clients must be ids of clients, from 0 to 1, got 5"),
        (replace(PLAN, closes=AnyOf([[0], 1])), "AnyOf.groups[1] must be an array or a list of whole numbers, got 1"),
        (replace(PLAN, closes=AnyOf(5)), "AnyOf.groups must be a list of arrays of client ids, got 5"),
        (replace(PLAN, closes=AnyOf(None)), "AnyOf.groups must be a list of arrays of client ids, got None"),
        (replace(PLAN, closes=AnyOf(np.array(5))), "AnyOf.groups must be a list of arrays of client ids, got array(5)"),
        (replace(PLAN, closes=AnyOf(iter([[0]]))), "AnyOf.groups must be a list of arrays of client ids, got <list_it"),
        (replace(PLAN, closes=AnyOf([[0], [-1]])), "AnyOf.groups[1] must be ids of clients, from 0 to 1, got -1"),
        (replace(PLAN, lr_scale=-1.0), "RoundPlan.lr_scale must be finite and >= 0, got -1.0"),
        (replace(PLAN, lr_scale=np.nan), "RoundPlan.lr_scale must be finite and >= 0, got nan"),
        (replace(PLAN, lr_scale=[np.inf]), "RoundPlan.lr_scale must be finite and >= 0, got [inf]"),
        (replace(PLAN, lr_scale=[1.0, 2.0]), "RoundPlan.lr_scale must be one number, or one per start (1), got 2"),
        (replace(PLAN, local_steps=[0]), "RoundPlan.local_steps must be one number >= 1 per start (1), got [0]"),
        (replace(PLAN, batches=[0]), "RoundPlan.batches must be numbers >= 1, one or one per start, got [0]"),
        (replace(PLAN, batches=[1.5]), "RoundPlan.batches must be an array or a list of whole numbers, got [1.5]"),
        (
            replace(PLAN, local_steps=[2], batches=[2]),
            "RoundPlan.batches must be 1 for clients that take more than one local step",
        ),
        (replace(PLAN, lr_scale=1j), "RoundPlan.lr_scale must be an array or a list of numbers, got 1j"),
        (replace(PLAN, tiers=[1, 2]), "RoundPlan.tiers must have one entry per start (1), got 2"),
        (replace(PLAN, note=5), "RoundPlan.note must be text, got 5"),
        (replace(PLAN, lr_scale="1"), "RoundPlan.lr_scale must be an array or a list of numbers, got '1'"),
        (replace(PLAN, local_steps=[1.5]), "RoundPlan.local_steps must be an array or a list of whole numbers"),
        (replace(PLAN, drops=None), "RoundPlan.drops must be an array or a list of whole numbers, got None"),
        (replace(PLAN, drops=[7]), "RoundPlan.drops must be ids of clients, from 0 to 1, got 7"),
        (replace(PLAN, drops=[0]), "RoundPlan.drops must be clients that are training, got client 0"),
        (replace(PLAN, uploads=ONE), "RoundPlan.uploads must be 'parallel' or 'in-turn', got array([1.])"),
        (replace(PLAN, uploads=ids(1, 2)), "RoundPlan.uploads must be 'parallel' or 'in-turn', got array([1, 2])"),
        (replace(PLAN, uploads="turns"), "RoundPlan.uploads must be 'parallel' or 'in-turn', got 'turns'"),
    ],
)
def test_an_invalid_plan_is_an_error_that_names_round_class_and_field(plan: Any, message: str) -> None:
    class Mine(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            return plan

    with pytest.raises(ValueError, match=r"^round 1: Mine: ") as caught:
        Simulation(Mine(Deadline(9.0)), make_fleet([1.0, 2.0])).step()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ((ids(0), ONE), "merge must return a Merge, got (array([0]), array([1.]))"),
        (Merge(ids(7), ONE), "Merge.updates must be distinct ids of updates at the server"),
        (Merge(ids(0, 0), np.full(2, 0.5)), "Merge.updates must be distinct ids of updates at the server"),
        (Merge(ids(0), ONE, drops=ids(0)), "Merge.drops must be distinct ids of updates at the server that are not in"),
        (Merge(ids(0), np.ones(2)), "Merge.weights must have one entry per update (1), got 2"),
        (Merge(ids(0), np.array([np.nan])), "Merge.weights must be finite and >= 0, got [nan]"),
        (Merge(ids(0, 1), np.ones(2)), "Merge.weights must sum to at most 1 for models, got 2"),
        (grouped([], {}), "GroupMemory.names must have one entry per update (1), got 0"),
        (Merge(ids(0), ONE, of=ids()), "Merge.of must be 'models' or 'updates', got array([], dtype=int64)"),
        (Merge(ids(0), ONE, of="model"), "Merge.of must be 'models' or 'updates', got 'model'"),
        (Merge(0, ONE), "Merge.updates must be an array or a list of whole numbers, got 0"),
        (Merge(ids(0), 1.0), "Merge.weights must be an array or a list of numbers, got 1.0"),
        (Merge(ids(0), ["1"]), "Merge.weights must be an array or a list of numbers, got ['1']"),
        (Merge(ids(0), ONE, drops=[0.5]), "Merge.drops must be an array or a list of whole numbers, got [0.5]"),
        (Merge(ids(0), ONE, groups={"a": 1.0}), "Merge.groups must be GroupMemory(…) or None, got {'a': 1.0}"),
        (grouped(5, {}), "GroupMemory.names must be a list of group names, got 5"),
        (grouped("a", {}), "GroupMemory.names must be a list of group names, got 'a'"),
        (grouped([["a"]], {}), "GroupMemory.names must be a list of group names, got [['a']]"),
        (grouped(ids(0), {}), "GroupMemory.names must be a list of group names, got array([0])"),
        (grouped(["a"], [1, 2]), "GroupMemory.weights must map group names to numbers, got [1, 2]"),
        (grouped(["a"], {"0": "x"}), "GroupMemory.weights must map group names to numbers, got {'0': 'x'}"),
        (grouped(["a"], {0: 1.0}), "GroupMemory.weights must map group names to numbers, got {0: 1.0}"),
        (grouped(["a"], {}, "a"), "GroupMemory.resets must be a list of group names, got 'a'"),
        (grouped(["a"], {}, None), "GroupMemory.resets must be a list of group names, got None"),
        (Merge(ids(0), ONE, step_scale="1"), "Merge.step_scale must be a number, got '1'"),
        (Merge(ids(0), ONE, step_scale=np.inf), "Merge.step_scale must be finite and >= 0, got inf"),
        (Merge(ids(0), ONE, step_scale=-1), "Merge.step_scale must be finite and >= 0, got -1"),
        (calibrated(previous=["a"]), "GroupMemory.previous must map group names to numbers, got ['a']"),
        (calibrated(previous={"a": np.nan}), "GroupMemory.previous must be finite, got [nan]"),
        (calibrated(previous_total=None), "GroupMemory.previous_total must be a number, got None"),
        (calibrated(previous_total=np.inf), "GroupMemory.previous_total must be finite, got inf"),
        (
            calibrated("models", previous={"a": -1.0}),
            "GroupMemory.previous must not be set for a merge of models; use of='updates'",
        ),
        (
            calibrated("models", previous_total=0.5),
            "GroupMemory.previous_total must not be set for a merge of models; use of='updates'",
        ),
    ],
)
def test_an_invalid_merge_is_an_error_that_names_round_class_and_field(merge: Any, message: str) -> None:
    class Mine(Scripted):
        pass

    with pytest.raises(ValueError, match=r"^round 1: Mine: ") as caught:
        Simulation(Mine(Deadline(9.0), lambda _: merge), make_fleet([1.0, 2.0])).step()
    assert message in str(caught.value)


def test_groups_may_have_names_and_weights_from_numpy() -> None:
    groups = GroupMemory(np.array(["a", "b"]), {"a": np.float32(0.5), "b": 0}, np.array(["c"]))  # type: ignore[arg-type]
    strategy = Scripted(Deadline(9.0), lambda arrived: Merge(arrived.id, np.full(2, 0.5), groups=groups))
    record = Simulation(strategy, make_fleet([1.0, 2.0])).step()
    assert record is not None
    assert record.merged.tolist() == [0, 1]


def test_drops_are_keyword_arguments() -> None:
    with pytest.raises(TypeError, match="positional"):
        Merge(ids(0), ONE, ids(1))  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        RoundPlan(ids(0), Deadline(1.0), ids(1))  # type: ignore[misc]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda some: np.array(some, dtype=np.int32)])
@pytest.mark.parametrize("closes", [AllOf, lambda clients: AnyOf([clients])])
def test_plans_and_merges_may_hold_lists(kind: Any, closes: Any) -> None:
    plan = RoundPlan(
        kind([0, 1]), closes(kind([0, 1])), lr_scale=kind([1, 2]), local_steps=kind([2, 1]), drops=kind([])
    )

    def merge(arrived: Updates) -> Merge:
        return Merge(kind(arrived.id[:1].tolist()), kind([1]), drops=kind(arrived.id[1:].tolist()))

    record = Simulation(Scripted(Deadline(0), merge, plan), make_fleet([2.0, 3.0])).step()
    assert record is not None
    assert (record.end_s, record.started.tolist(), record.merged.tolist()) == (3.0, [0, 1], [0])
    ranges = RoundPlan(range(2), AllOf(range(1)))  # type: ignore[arg-type]
    record = Simulation(Scripted(Deadline(0), plan=ranges), make_fleet([2.0, 3.0])).step()
    assert record is not None
    assert (record.end_s, record.started.tolist(), record.merged.tolist()) == (2.0, [0, 1], [0])


@pytest.mark.parametrize(
    ("latencies", "state"),
    [([1.0, np.inf], "is not connected"), ([1.0, 20.0], "is training")],
    ids=["disconnected", "busy"],
)
def test_only_idle_clients_may_start(latencies: list[float], state: str) -> None:
    class Mine(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            return RoundPlan(np.flatnonzero(view.idle) if view.round == 1 else ids(1), Deadline(9.0 * view.round))

    simulation = Simulation(Mine(Deadline(9.0)), make_fleet(latencies))
    simulation.step()
    message = f"^round 2: Mine: RoundPlan.starts must be idle clients, got client 1, which {state}$"
    with pytest.raises(ValueError, match=message):
        simulation.step()


def test_an_invalid_plan_changes_nothing() -> None:
    class Mine(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            if view.round == 1:
                return RoundPlan(ids(0, 1), Deadline(9.0))
            return RoundPlan(ids(0), Deadline(18.0), drops=ids(1), lr_scale=-1.0)

    simulation = Simulation(Mine(Deadline(9.0)), make_fleet([1.0, 20.0]))
    simulation.step()
    with pytest.raises(ValueError, match="lr_scale"):
        simulation.step()
    assert simulation.ledger.idle.tolist() == [True, False]
    assert simulation.ledger.busy.tolist() == [False, True]


def test_a_dropped_client_may_start_again_in_the_same_plan() -> None:
    class Mine(Scripted):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            return RoundPlan(ids(0), Deadline(9.0 * view.round), drops=ids(0) if view.round == 2 else ids())

    simulation = Simulation(Mine(Deadline(9.0)), make_fleet([20.0]))
    records = [simulation.step() for _ in range(2)]
    assert [record.started.tolist() for record in records if record is not None] == [[0], [0]]


class Remembering(Scripted):
    """Counts its rounds, and saves and restores what the test says."""

    def __init__(self, saves: Any, restores: bool = True) -> None:
        super().__init__(AllOf(ids(0, 1)))
        self.saves, self.restores, self.count = saves, restores, 0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.count += 1
        return RoundPlan(np.flatnonzero(view.idle), self.closes)

    def state(self) -> Any:
        return self.saves(self.count)

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"] if self.restores else 0


@pytest.mark.parametrize(
    ("saves", "message"),
    [
        (
            lambda count: {"count": np.arange(count)},
            "state must return values that JSON can store: .*ndarray.*; use tolist",
        ),
        (lambda _: None, "state must return a dict, got None"),
    ],
)
def test_a_state_that_cannot_be_saved_is_an_error(saves: Any, message: str) -> None:
    simulation = Simulation(Remembering(saves), make_fleet([1.0, 2.0]))
    simulation.step()
    with pytest.raises(InputError, match=rf"^Remembering\.{message}"):
        simulation.state()


def test_a_strategy_that_does_not_restore_its_state_is_an_error() -> None:
    simulations = [
        Simulation(Remembering(lambda count: {"count": count}, restores), make_fleet([1.0, 2.0]))
        for restores in (True, True, False)
    ]
    simulations[0].step()
    simulations[1].restore(*simulations[0].state())
    assert simulations[1].strategy.count == 1  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"^Remembering\.restore must restore everything that state returned$"):
        simulations[2].restore(*simulations[0].state())


@pytest.mark.parametrize(
    ("method", "returned", "message"),
    [
        ("open", -1.0, "open must return a time not before now (0 s), got -1.0"),
        ("open", np.nan, "open must return a time not before now (0 s), got nan"),
        ("wait", (-1.0, ""), "wait must return a time not before now (0 s), got -1.0"),
        (
            "start",
            np.array([5.0]),
            "start must return one arrival time per update, not before now (0 s), got array([5.])",
        ),
        ("start", np.array([5.0, np.nan]), "start must return one arrival time per update, not before now (0 s)"),
        ("start", np.array([5.0, -1.0]), "start must return one arrival time per update, not before now (0 s)"),
    ],
)
def test_times_that_a_world_returns_are_checked(method: str, returned: Any, message: str) -> None:
    class Mine(NominalWorld):
        pass

    setattr(Mine, method, lambda *_: returned)
    with pytest.raises(ValueError, match=r"^round \d: Mine\.") as caught:
        RoundLoop(FedAvg(), Mine(make_fleet([1.0, 2.0]))).step()
    assert message in str(caught.value)


def test_a_run_that_has_ended_cannot_be_continued() -> None:
    simulation = Simulation(FedAvg(), make_fleet([10.0, 20.0]))
    assert [simulation.step(30.0) is None for _ in range(3)] == [False, True, True]
    assert (simulation.stop_reason, simulation.step(1000.0)) == ("time limit reached", None)


def test_a_simulation_checks_its_arguments() -> None:
    with pytest.raises(InputError, match="strategy must be a strategy such as FedAvg"):
        Simulation(FedAvg, make_fleet([1.0]))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="fleet must be a Fleet, got 50"):
        Simulation(FedAvg(), 50)  # type: ignore[arg-type]
