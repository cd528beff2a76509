"""Built-in worlds keep the contract; `test_varying.py` has those in which channels and times change."""

from pathlib import Path

import pytest

from helpers.fleets import make_fleet, traced
from helpers.wall import FakeClients, FakeClock
from lesson import Fleet, Settings
from lesson.clock.worlds import NominalWorld, RemoteWorld, WallWorld, World, make_world
from lesson.settings.faults import FaultSettings
from lesson.testing import check_world

FAULTS = FaultSettings(disconnect_before=0.1, disconnect_during=0.2, offline_s=60.0, detection_delay_s=10.0)
VARYING = {
    "slowdown": Settings(slowdown=0.5, faults=FAULTS),
    "departures": Settings(offline_forever=0.5, disconnect_during=0.1),
}


def test_the_nominal_world_keeps_the_contract() -> None:
    check_world(NominalWorld)


@pytest.mark.parametrize("settings", VARYING.values(), ids=VARYING.keys())
def test_worlds_whose_clients_disconnect_keep_the_contract(settings: Settings) -> None:
    check_world(lambda fleet: make_world(fleet, settings, seed=3))


def test_a_world_whose_clients_join_and_leave_keeps_the_contract(tmp_path: Path) -> None:
    """At first and from 200 to 300 s, nobody is there."""
    rows = [f"{client},{5 * client + 1},{200 - 3 * client} {client},{300 + client},inf" for client in range(6)]
    presence = traced(tmp_path / "presence.csv", " ".join(["client,from_s,to_s", *rows]))
    fleet = make_fleet([3.0, 7.0, 7.0, 15.0, 25.0, 31.0])
    check_world(lambda: make_world(fleet, Settings(presence=presence, faults=FAULTS), seed=3))


@pytest.mark.parametrize("settings", [Settings(), Settings(slowdown=0.5, faults=FAULTS)], ids=["nominal", "varying"])
def test_real_clients_on_simulated_time_keep_the_contract(settings: Settings) -> None:
    """Client 1 sends something unreadable every other time, and client 2 has no reply at first."""

    def remote(fleet: Fleet) -> World:
        takes = [[0.0], ["unreadable", 0.0] * 20, ["node lost", 0.0], *[[0.0]] * (len(fleet) - 3)]
        return RemoteWorld(make_world(fleet, settings, seed=3), FakeClients(FakeClock(), takes))

    check_world(remote)


def test_real_time_keeps_the_contract() -> None:
    def wall(fleet: Fleet) -> World:
        clients = FakeClients(FakeClock(), [["unreadable"], *([float(took_s)] for took_s in fleet.latency_s[1:])])
        return WallWorld(fleet, clients, clock=clients.clock, sleep=clients.clock.sleep)

    check_world(wall, simulated=False)
