"""Each contract test of strategies catches a strategy that no other one catches."""

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


class UnknownNeed(FedAvg):
    needs: ClassVar[Any] = frozenset({"weather"})


class DropsEverything(FedAvg):
    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        return Merge([], [], drops=arrived.id)


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


class Counting(FedAvg):
    """Counts its rounds."""

    count = 0

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.count += 1
        return replace(super().open_round(view, rng), lr_scale=1 / self.count)


class DrawsByItself(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.count = int(np.random.default_rng().integers(2**40))


class ForgetsItsCount(Counting):
    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = 0


class SharesItsHistory(FedAvg):
    """A list that all copies share."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []

    def __deepcopy__(self, memo: Any) -> "SharesItsHistory":
        made = SharesItsHistory()
        made.history = self.history
        return made

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.history.append(view.round)
        return replace(super().open_round(view, rng), lr_scale=1 / len(self.history))


class KeepsAnArray(FedAvg):
    """Restores the array from the first view after a resume."""

    kept: np.ndarray | None = None

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        self.kept = view.num_samples if self.kept is None else self.kept
        plan = super().open_round(view, rng)
        return replace(plan, lr_scale=np.abs(self.kept[plan.starts]) / 1000)


BROKEN: list[tuple[Callable[[Any], None], type[Any], str]] = [
    (strategies.check_needs, UnknownNeed, "needs"),
    (strategies.check_progress, DropsEverything, "nothing is aggregated"),
    (strategies.check_waiting, LeavesSomeWaiting, "update 3 has waited"),
    (strategies.check_without_signals, ReliesOnSignals, "client_accuracy"),
    (strategies.check_weights, WeighsBySamples, "Merge.weights"),
    (strategies.check_repeats, DrawsByItself, "plan.lr_scale"),
    (strategies.check_views, KeepsAnArray, "plan.lr_scale"),
    (strategies.check_resume, ForgetsItsCount, "plan.lr_scale"),
]


@pytest.mark.parametrize(("check", "kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_each_check_is_needed(check: Any, kind: type[Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=rf"^{kind.__name__}: .*{message}"):
        check_strategy(kind)
    others = [other for other in strategies.STRATEGY_CHECKS if other is not check]
    monkeypatch.setattr(strategies, "STRATEGY_CHECKS", others)
    check_strategy(kind, rounds=10)


def test_copies_share_no_state() -> None:
    with pytest.raises(AssertionError, match=r"^SharesItsHistory: .* copy.deepcopy"):
        check_strategy(SharesItsHistory)


def changing(change: Callable[[ServerView, RoundPlan], RoundPlan]) -> type[Any]:
    class Mine(FedAvg):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            return change(view, super().open_round(view, rng))

    return Mine


def is_incomplete(view: ServerView) -> bool:
    return view.num_connected < np.count_nonzero(np.isfinite(view.latency_s))


def varies(view: ServerView) -> bool:
    return not np.allclose(view.latency_s, view.first_latency_s)


def every_fifth_is_excluded(view: ServerView) -> bool:
    return len(view.idle) == 24 and not view.connected[::5].any() and bool(view.connected[1:5].all())


@pytest.mark.parametrize(
    ("case", "happens"),
    [
        ("6 unequal clients, nominal", lambda view: np.isinf(view.latency_s).any()),
        ("24 drawn clients, varying times", varies),
        ("24 drawn clients, joining and leaving clients", is_incomplete),
        ("24 drawn clients, disconnecting clients", lambda view: is_incomplete(view) and not varies(view)),
        ("24 drawn clients, rejected updates", every_fifth_is_excluded),
    ],
)
def test_check_runs_every_case(case: str, happens: Callable[[ServerView], bool]) -> None:
    """A strategy that starts a client twice once something happens is caught in the case in which it happens first."""

    def change(view: ServerView, plan: RoundPlan) -> RoundPlan:
        return replace(plan, starts=[*range(len(view.idle)), 0]) if happens(view) else plan

    with pytest.raises(AssertionError, match=rf"^Mine: {case}: round \d+: RoundPlan.starts"):
        check_strategy(changing(change))


def test_more_clients_may_be_busy_than_were_started() -> None:
    """A client rejoins before the server notices that its update is lost, after another one has started instead."""

    class Refilling(FedBuff):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            missing = min(20 - view.num_busy, view.num_connected - view.num_busy)
            return RoundPlan(rng.choice(np.flatnonzero(view.idle), missing, replace=False), Arrivals(1))

    with pytest.raises(AssertionError, match=r"^Refilling: 24 drawn clients, disconnecting clients: .*negative"):
        check_strategy(Refilling)


def test_strategy_that_rejects_every_fleet_fails() -> None:
    def decline(view: ServerView, plan: RoundPlan) -> RoundPlan:
        raise InputError("too few clients")

    with pytest.raises(AssertionError, match=r"^Mine: must accept at least one fleet"):
        check_strategy(changing(decline))


def test_fleets_and_rounds_can_be_chosen() -> None:
    fleets = {"my lab": make_fleet([5.0, 9.0, 9.0, 9.0])}
    with pytest.raises(AssertionError, match=r"^LeavesSomeWaiting: my lab, nominal: round 10: "):
        check_strategy(LeavesSomeWaiting, rounds=12, fleets=fleets)


def test_checks_need_neither_pytest_nor_torch() -> None:
    code = "import sys, lesson.testing; print([name for name in ('pytest', 'torch') if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"
