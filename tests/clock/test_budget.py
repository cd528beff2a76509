"""Energy budgets, by hand; an update of client i needs 1 + i joules for computing and 10·(1 + i) for uploading."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, make_radio_fleet, resume, steps, traced
from helpers.scripted import Scripted, ids
from lesson import (
    Allocation,
    AllOf,
    FedAvg,
    Fleet,
    InputError,
    Lesson,
    RoundPlan,
    Settings,
    draw_fleet,
    make_loop,
    simulate,
)
from lesson.fleet.csv_files import read_fleet


@pytest.fixture
def three() -> Fleet:
    """Their updates need 11, 22 and 33 J."""
    return make_fleet([4.0, 5.0, 6.0])


@pytest.mark.parametrize("settings", [{}, {"slowdown": 1e-12}])
def test_budget_by_hand(three: Fleet, settings: dict[str, Any]) -> None:
    """Of 35 J, client 0 can afford 3 updates, and clients 1 and 2 one each."""
    loop = make_loop(FedAvg(), three, settings=Settings(energy_budget_j=35.0, **settings))
    records = steps(loop, 3)
    assert [record.merged.tolist() for record in records] == [[0, 1, 2], [0], [0]]
    assert [record.exhausted for record in records] == [(1, 2), (), (0,)]
    assert records[0].note == "clients 1, 2 cannot afford another update with their energy budgets"
    assert records[2].note == "client 0 cannot afford another update with its energy budget"
    assert loop.step() is None
    assert loop.stop_reason == "no client is connected anymore; 3 of 3 clients have used up their energy budgets"


def test_client_that_cannot_afford_its_first_update(three: Fleet) -> None:
    """Client 2 never starts. The budget suffices for exactly one update of client 1."""
    first, second, *_ = simulate(FedAvg(), three, rounds=3, settings=Settings(energy_budget_j=22.0))
    assert (first.started.tolist(), first.exhausted) == ([0, 1], (2, 1))
    assert (second.started.tolist(), second.exhausted) == ([0], (0,))
    with pytest.raises(
        InputError, match="energy_budget_j must be at least 11, what the least costly update needs, got"
    ):
        make_loop(FedAvg(), three, settings=Settings(energy_budget_j=10.9))


def test_canceled_update_counts() -> None:
    """Both clients need 11 J. Client 0 is dropped after 3 of 4 s, for which it needs 1 + 10/2 J: with a budget of 17 J,
    it can afford another update."""
    fleet = replace(make_fleet([4.0, 5.0]), compute_j=np.ones(2), transmit_j=np.full(2, 10.0))
    plans = RoundPlan(ids(0), AllOf(ids(0), by_s=3.0)), RoundPlan(ids(1), AllOf(ids(1)), drops=ids(0))
    for budget_j, exhausted in (16.9, (0, 1)), (17.0, (1,)):
        loop = make_loop(Scripted(*plans), fleet, settings=Settings(energy_budget_j=budget_j))
        assert [record.exhausted for record in steps(loop, 2)] == [(), exhausted]


def test_next_update_is_expected_to_need_what_the_latest_resources_need() -> None:
    """Client 0 needs 1 + 6 J, but 1/4 + 4 J at half its CPU frequency and a third of its power, with which 6 bits take
    6 s instead of 3: 9 J suffice for two of these updates, but not for a third."""
    given = Allocation(power_w=[2 / 3], cpu_hz=[1e9])
    plan = RoundPlan(ids(0), AllOf(ids(0)), allocation=given)
    loop = make_loop(Scripted(plan), make_radio_fleet([3], [2]), settings=Settings(energy_budget_j=9.0))
    assert [record.exhausted for record in steps(loop, 2)] == [(), (0,)]


def test_exhausted_client_does_not_rejoin(three: Fleet, tmp_path: Path) -> None:
    """Client 0 is away from 5 to 20 s."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,5 0,20,99")
    settings = Settings(energy_budget_j=35.0, presence=presence)
    loop = make_loop(FedAvg(), three, settings=settings)
    while not loop.stop_reason:
        loop.step()
    assert loop.ledger.exhausted.all()
    assert loop.ledger.started_round.tolist()[1:] == [1, 1]


def test_budget_is_part_of_a_checkpoint() -> None:
    settings = Settings(num_clients=6, fading="rayleigh", energy_budget_j=20.0)
    once, again = (make_loop(Lesson(20.0), draw_fleet(settings), settings=settings) for _ in range(2))
    steps(once, 3)
    resume(once, again)
    ours, theirs = ([fields(loop.step()) for _ in range(6)] for loop in (once, again))
    assert ours == theirs


def test_energies_must_be_known(tmp_path: Path) -> None:
    path = traced(
        tmp_path / "fleet.csv", "client,latency_s,compute_s,upload_s,compute_j,transmit_j 0,3,1,2,1,4 b,4,2,2,,"
    )
    fleet = read_fleet(path)
    with pytest.raises(
        InputError, match=r"\[fleet\] energy_budget_j needs compute_j and transmit_j .* client 'b' has no"
    ):
        make_loop(FedAvg(), fleet, settings=Settings(energy_budget_j=35.0))
    with pytest.raises(InputError, match=r"\[fleet\] max_update_j needs compute_j and transmit_j of every client"):
        read_fleet(path, Settings(max_update_j=35.0))


def test_costly_clients_never_take_part(tmp_path: Path) -> None:
    path = traced(
        tmp_path / "a.csv", "client,latency_s,compute_s,upload_s,compute_j,transmit_j 0,3,1,2,1,4 1,4,2,2,2,4"
    )
    fleet = read_fleet(path, Settings(max_update_j=5.0))
    assert fleet.reachable.tolist() == [True, False]
    assert np.asarray(fleet.too_costly).tolist() == [False, True]
    assert [record.merged.tolist() for record in simulate(FedAvg(), fleet, rounds=2)] == [[0], [0]]
    with pytest.raises(InputError, match="max_update_j must be at least 5, what the least costly update needs"):
        read_fleet(path, Settings(max_update_j=4.9))
