"""Each contract test of strategies catches a strategy that no other one catches."""

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from helpers.fleets import make_fleet
from lesson import FedAvg, InputError
from lesson.strategies import FedBuff
from lesson.strategies.base import Arrivals, Merge, RoundPlan, ServerView, Updates
from lesson.testing import check_strategy, strategies


class ListOfNeeds(FedAvg):
    needs: ClassVar[Any] = ["client_accuracy"]


class UnknownNeed(FedAvg):
    needs: ClassVar[Any] = frozenset({"weather"})


class DropsEverything(FedAvg):
    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return Merge([], [], drops=arrived.id)  # type: ignore[arg-type]


class LeavesSomeWaiting(FedAvg):
    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return super().merge(view, arrived[arrived.client % 4 != 3])


class ReliesOnSignals(FedAvg):
    needs: ClassVar[frozenset[str]] = frozenset({"client_accuracy"})

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return replace(super().open_round(view, rng), note=str(view.signals["client_accuracy"][0]))


class WeighsBySamples(FedAvg):
    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return Merge(arrived.id, view.client_weight[arrived.client] / 1e6, of="updates")


class DrawsByItself(FedAvg):
    """Saves its seed, so that a resumed run draws the same."""

    def __init__(self) -> None:
        self.seed = int(np.random.default_rng().integers(2**40))

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        return replace(super().open_round(view, rng), lr_scale=np.random.default_rng([self.seed, view.round]).random())

    def state(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def restore(self, state: dict[str, Any]) -> None:
        self.seed = state["seed"]


class Counting(FedAvg):
    """Counts its rounds."""

    count = 0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.count += 1
        return replace(super().open_round(view, rng), lr_scale=1 / self.count)

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class SharesItsHistory(FedAvg):
    """A list that all copies share, and that it writes to and never reads."""

    def __init__(self) -> None:
        self.history: list[int] = []

    def __deepcopy__(self, memo: Any) -> "SharesItsHistory":
        return copy.copy(self)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.history.append(view.round)
        return super().open_round(view, rng)


class SharesItsCount(Counting):
    def __deepcopy__(self, memo: Any) -> "SharesItsCount":
        return self


class KeepsAnArray(FedAvg):
    """Restores the array from the first view after a resume."""

    kept: np.ndarray | None = None

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.kept = view.num_samples if self.kept is None else self.kept
        plan = super().open_round(view, rng)
        return replace(plan, lr_scale=np.abs(self.kept[plan.starts]) / 1000)


class ForgetsItsCount(Counting):
    def state(self) -> dict[str, Any]:
        return {"count": 0}


class SavesAnArray(Counting):
    def state(self) -> dict[str, Any]:
        return {"count": np.int64(self.count)}


BROKEN: list[tuple[Callable[[Any], None], type[Any], str]] = [
    (strategies.check_needs, ListOfNeeds, "needs must be a frozenset of signals among client_accuracy, confirmation, "),
    (strategies.check_needs, UnknownNeed, "update_deviation, update_loss, got frozenset({'weather'})"),
    (strategies.check_progress, DropsEverything, "one client, nominal: nothing is aggregated in 40 rounds, and no"),
    (strategies.check_waiting, LeavesSomeWaiting, "4 equal clients, nominal: round 31: update 3 has waited at the"),
    (strategies.check_without_signals, ReliesOnSignals, "one client, nominal: round 1: KeyError: 'client_accuracy'"),
    (strategies.check_weights, WeighsBySamples, "one client, nominal: round 1: Merge.weights must not depend on the"),
    (strategies.check_reuse, SharesItsHistory, "a run must not change the object it is given"),
    (strategies.check_repeats, DrawsByItself, "one client, nominal: round 1: plan.lr_scale was 0."),
    (strategies.check_views, KeepsAnArray, "round 2: plan.lr_scale was [0.1], then [0.007]; arrays of a view must"),
    (strategies.check_resume, ForgetsItsCount, "round 2: plan.lr_scale was 0.5, then 1.0; a resumed run must have"),
    (
        strategies.check_resume,
        SavesAnArray,
        "round 2: InputError: SavesAnArray.state must return values that JSON can store: Object",
    ),
]


@pytest.mark.parametrize(("check", "kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_check_catches_what_no_other_one_does(
    check: Any, kind: type[Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError) as caught:
        check_strategy(kind)
    assert str(caught.value).startswith(f"{kind.__name__}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    others = [other for other in strategies.STRATEGY_CHECKS if other is not check]
    monkeypatch.setattr(strategies, "STRATEGY_CHECKS", others)
    check_strategy(kind, rounds=10)


def test_there_is_a_broken_strategy_for_every_check() -> None:
    """`check_runs` has its own, below: no other check runs if it does not hold."""
    assert {check for check, *_ in BROKEN} | {strategies.check_runs} == set(strategies.STRATEGY_CHECKS)


def changing(change: Callable[[ServerView, RoundPlan], RoundPlan]) -> type[Any]:
    class Mine(FedAvg):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            return change(view, super().open_round(view, rng))

    return Mine


def has_excluded(view: ServerView) -> bool:
    return len(view.idle) == 24 and not view.connected[::5].any() and bool(view.connected[1:5].all())


def is_incomplete(view: ServerView) -> bool:
    return view.num_connected < np.count_nonzero(np.isfinite(view.latency_s))


def varies(view: ServerView) -> bool:
    return not np.allclose(view.latency_s, view.first_latency_s)


@pytest.mark.parametrize(
    ("case", "happens"),
    [
        ("4 equal clients, nominal", lambda view: len(view.idle) == 4),
        ("6 unequal clients, nominal", lambda view: np.isinf(view.latency_s).any()),
        ("24 drawn clients, varying times", varies),
        ("24 drawn clients, joining and leaving clients", is_incomplete),
        ("24 drawn clients, disconnecting clients", lambda view: is_incomplete(view) and not varies(view)),
        ("24 drawn clients, rejected updates", has_excluded),
    ],
)
def test_a_strategy_runs_in_every_case(case: str, happens: Callable[[ServerView], bool]) -> None:
    """A strategy that starts all clients once something happens is caught in the case in which it happens first."""

    def change(view: ServerView, plan: RoundPlan) -> RoundPlan:
        return replace(plan, starts=[*range(len(view.idle)), 0]) if happens(view) else plan

    with pytest.raises(AssertionError, match=rf"^Mine: {case}: round \d+: RoundPlan.starts must not repeat a client"):
        check_strategy(changing(change))


def test_clients_that_are_not_idle_must_not_start() -> None:
    mine = changing(lambda view, plan: replace(plan, starts=np.arange(len(view.idle))))
    message = (
        "^Mine: 6 unequal clients, nominal: round 1: RoundPlan.starts must be idle clients, got client 3, which is"
    )
    with pytest.raises(AssertionError, match=message):
        check_strategy(mine)


def test_more_clients_may_be_busy_than_were_started() -> None:
    """A client rejoins before the server notices that its update is lost, after another one has started instead."""

    class Refilling(FedBuff):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            missing = min(20 - view.num_busy, view.num_connected - view.num_busy)
            return RoundPlan(rng.choice(np.flatnonzero(view.idle), missing, replace=False), Arrivals(1))

    message = r"^Refilling: 24 drawn clients, disconnecting clients: round \d+: ValueError: negative dimensions"
    with pytest.raises(AssertionError, match=message):
        check_strategy(Refilling)


def test_shared_state_of_a_strategy_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"lr_scale was .*; a run must not change the object it is given"):
        check_strategy(SharesItsCount)


def test_a_strategy_that_rejects_every_fleet_fails() -> None:
    def decline(view: ServerView, plan: RoundPlan) -> RoundPlan:
        raise InputError("too few clients")

    with pytest.raises(AssertionError, match=r"^Mine: must accept at least one fleet; .* InputError: too few clients$"):
        check_strategy(changing(decline))


def test_fleets_and_rounds_can_be_chosen() -> None:
    fleets = {"my lab": make_fleet([5.0, 9.0, 9.0, 9.0])}
    with pytest.raises(AssertionError, match=r"^LeavesSomeWaiting: my lab, nominal: round 10: update 3 has waited"):
        check_strategy(LeavesSomeWaiting, rounds=12, fleets=fleets)


def test_it_needs_neither_pytest_nor_torch() -> None:
    code = "import sys, lesson.testing; print([name for name in ('pytest', 'torch') if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"
