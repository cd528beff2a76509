"""Each contract test of worlds catches a world that no other one catches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lesson import Fleet
from lesson.clock.ledger import Ledger
from lesson.clock.worlds import Collected, NominalWorld
from lesson.strategies.base import NO_UPDATES, Closing, Deadline, Updates
from lesson.testing import check_world, worlds


class ArrivesBeforeTheStart(NominalWorld):
    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        clients = ledger.clients_in_flight()
        if now_s > 50:
            ledger.reschedule(clients, ledger.updates_of(clients).started_s - 1)
        return super().wait(closes, ledger, now_s, until_s)


class ClosesLate(NominalWorld):
    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        end_s, note = super().wait(closes, ledger, now_s, until_s)
        return end_s + 1, note


class ClosesAtOnce(NominalWorld):
    """Deadlines are kept."""

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        end_s, note = super().wait(closes, ledger, now_s, until_s)
        return (end_s if isinstance(closes, Deadline) else (now_s + end_s) / 2), note


class LosesSilently(NominalWorld):
    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        lost = due.client % 7 == 3
        return Collected(due[~lost])


class WritesIntoTheLedger(NominalWorld):
    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:
        ledger.connected[ledger.excluded] = True
        return super().open(ledger, round, now_s, until_s)


class ReplacesItsFleet(NominalWorld):
    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        self.fleet = replace(self.fleet)
        return super().collect(due, ledger, now_s)


class ConnectsUnreachableClients(NominalWorld):
    """Their estimates are infinite, and their updates arrive."""

    def __init__(self, fleet: Fleet) -> None:
        latencies = fleet.latency_s.copy()
        super().__init__(replace(fleet, latency_s=latencies))
        self.first_latency_s = fleet.latency_s
        latencies[-1] = np.inf

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> np.ndarray:
        return now_s + self.first_latency_s[updates.client]

    def energy_j(self, updates: Updates, elapsed_s: Any) -> np.ndarray:
        return np.zeros(2)


class GainsEnergy(NominalWorld):
    def energy_j(self, updates: Updates, elapsed_s: Any) -> np.ndarray:
        return -1 - super().energy_j(updates, elapsed_s)


class ChangesNow(NominalWorld):
    def next_change_s(self, now_s: float) -> float:
        return now_s


class WritesIntoTheFleet(NominalWorld):
    """Weights do not matter for times, so the rounds stay the same."""

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        self.fleet.client_weight[due.client] += 1
        return super().collect(due, ledger, now_s)


class Slowing(NominalWorld):
    """Updates take longer and longer."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.num_started, self.step_s = 0, 1.0

    def start(self, updates: Updates, ledger: Ledger, now_s: float) -> np.ndarray:
        self.num_started += len(updates)
        return super().start(updates, ledger, now_s) + self.step_s * self.num_started

    def state(self, ledger: Ledger) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"num_started": self.num_started, "step_s": self.step_s}, {}

    def restore(self, values: Mapping[str, Any], arrays: Any, ledger: Ledger, now_s: float) -> None:
        self.num_started, self.step_s = values["num_started"], values["step_s"]


class DrawsItsStep(Slowing):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.step_s = float(np.random.default_rng().random())


class ForgetsItsCount(Slowing):
    def state(self, ledger: Ledger) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"num_started": 0, "step_s": 1.0}, {}


class NeverArrives(NominalWorld):
    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        return Collected(NO_UPDATES, lost=due)


BROKEN: list[tuple[str, Any, str]] = [
    ("check_arrivals", ArrivesBeforeTheStart, "FedAvg: round "),
    ("check_closing", ClosesLate, "FedAvg: round 1: wait must return 48.6957 s, when AllOf closes the round, got "),
    ("check_closing", ClosesAtOnce, "FedAvg: round 1: wait must return 48.6957 s, when AllOf closes the round, got "),
    ("check_collected", LosesSilently, "FedAvg: round 1: collect must return update 0 of client 3 once, as arrived,"),
    ("check_ledger", WritesIntoTheLedger, "Lesson: round "),
    ("check_estimates", ReplacesItsFleet, "FedAvg: round 2: world.fleet must stay the same object: update its arrays"),
    (
        "check_estimates",
        ConnectsUnreachableClients,
        "round 1: client 23 is connected, but its latency is inf s",
    ),
    ("check_energy", GainsEnergy, "round 1: energy_j must return two finite numbers >= 0, or NaN, got [-"),
    ("check_next_change", ChangesNow, "FedAvg: round 1: next_change_s must return a time > now_s = "),
    ("check_runs", NeverArrives, "no update arrives in 40 rounds of any strategy"),
    (
        "check_fleet_is_unchanged",
        WritesIntoTheFleet,
        "a run must not change the fleet that the caller passes: client_w",
    ),
    ("check_repeats", DrawsItsStep, "a new world must give the same rounds: seed its random numbers"),
    ("check_resume", ForgetsItsCount, "a resumed run must have the same rounds: state() must return all that"),
]


@pytest.mark.parametrize(("check", "kind", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_each_check_catches_what_no_other_one_does(
    check: str, kind: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError) as caught:
        check_world(kind)
    assert str(caught.value).startswith(f"{kind.__name__}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    checks = [one for one in worlds.WORLD_CHECKS if one.__name__ != check]
    monkeypatch.setattr(worlds, "WORLD_CHECKS", checks)
    monkeypatch.setattr(worlds, check, lambda *_: None)
    check_world(kind)


def test_there_is_a_broken_world_for_every_check() -> None:
    checks = {name for name in vars(worlds) if name.startswith("check_") and name != "check_world"}
    assert {check for check, *_ in BROKEN} == checks


def test_errors_of_a_world_are_reported_in_one_line() -> None:
    class Mine(NominalWorld):
        def cancel(self, updates: Updates) -> None:
            raise RuntimeError("not yet")

    with pytest.raises(AssertionError, match=r"^Mine: Safa: round \d+: RuntimeError: not yet$"):
        check_world(Mine)
