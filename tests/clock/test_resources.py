"""What allocated bands, powers and CPU frequencies change on the clock, by hand: times, energies, estimates, limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, make_radio_fleet, resume, steps
from helpers.scripted import Scripted, ids
from helpers.strategies import follow
from lesson import (
    Allocation,
    AllOf,
    Arrivals,
    FedAvg,
    Fleet,
    InputError,
    Lesson,
    RoundPlan,
    RunStoppedError,
    ServerView,
    Settings,
    draw_fleet,
    make_loop,
    simulate,
)
from lesson.core.arrays import IntArray

HALF = Allocation([1.0, 2.0], power_w=[2 / 3, 2.0], cpu_hz=[1e9, 2e9])
VARYING: list[dict[str, Any]] = [{}, {"slowdown": 1e-12}]


@pytest.fixture
def two() -> Fleet:
    """At their usual 2 W, client 0 sends log2(1 + 3) = 2 bits per second on 1 Hz, and client 1 log2(1 + 14) bits."""
    return make_radio_fleet([3, 14, 1], [2, 4, 1])


@pytest.mark.parametrize("settings", VARYING)
def test_times_and_energies_by_hand(two: Fleet, settings: dict[str, Any]) -> None:
    """At a third of its power, client 0 sends log2(1 + 1) = 1 bit per second: 6 bits take 6 s and 6·2/3 = 4 J. At half
    its CPU frequency, it computes for 4 s, with a quarter of its 1 J. On 2 Hz, client 1 sends 2·log2(1 + 14/2) = 6 bits
    in 1 s, for 2 J. The estimates for the usual resources do not change."""
    plans = RoundPlan(ids(0, 1), AllOf(ids(0, 1)), allocation=HALF), RoundPlan(ids(0, 1), AllOf(ids(0, 1)))
    loop = make_loop(Scripted(*plans), two, settings=Settings(**settings))
    first, second = steps(loop, 2)
    assert first.merged.tolist() == [1, 0]
    assert first.merged_arrived_s == pytest.approx([4 + 1, 4 + 6])
    assert first.merged_expected_s == pytest.approx([4 + 1, 4 + 6])
    assert (first.compute_j, first.transmit_j) == pytest.approx((1 / 4 + 1, 4 + 2))
    assert second.merged_arrived_s - second.start_s == pytest.approx([2 + 3, 4 + 6 / np.log2(15)])
    assert (second.compute_j, second.transmit_j) == pytest.approx((1 + 1, 6 + 2 * 6 / np.log2(15)))
    assert loop.fleet.upload_s == pytest.approx(two.upload_s)
    assert loop.fleet.compute_s == pytest.approx([2, 4, 1])


@pytest.mark.parametrize("settings", VARYING)
def test_dropped_update_has_used_energy_at_its_powers(two: Fleet, settings: dict[str, Any]) -> None:
    """At 5 s, client 0 has computed for 4 s and sent for 1 of 6 s: a quarter of 1 J, and a sixth of 4 J. Its band is
    free again: it may start with all 3 Hz, but for the 2 Hz of client 1 if that were still training."""
    wide = Allocation([3.0])
    plans = RoundPlan(ids(0, 1), AllOf(ids(1)), allocation=HALF), RoundPlan(ids(0), AllOf(ids(0)), drops=ids(0))
    first, second = simulate(
        Scripted(plans[0], replace(plans[1], allocation=wide)), two, rounds=2, settings=Settings(**settings)
    )
    assert first.end_s == pytest.approx(5.0)
    upload_s = 6 / (3 * np.log2(1 + 3 / 3))
    assert second.end_s == pytest.approx(5.0 + 2 + upload_s)
    assert (second.compute_j, second.transmit_j) == pytest.approx((1 / 4 + 1, 4 / 6 + 2 * upload_s))


@pytest.mark.parametrize("settings", [{"fading": "rician", "rician_k_db": 300.0}, {"speed_mps": [1e-9, 1e-9]}])
def test_changing_channels_follow_the_allocation(settings: dict[str, Any]) -> None:
    """With hardly any fading or movement, times and energies are those of a channel that does not change."""
    usual = Settings(num_clients=4, noise_dbm=-94.0)
    fleet, clients = draw_fleet(usual), np.arange(4)
    given = Allocation(30e3 * np.array([0.5, 1.0, 2.0, 0.4]), 0.1 * np.array([1.0, 0.5, 0.1, 0.9]))
    plan = RoundPlan(clients, AllOf(clients), allocation=given)
    calm, changing = (
        make_loop(Scripted(plan), fleet, settings=usual.with_changes(**changes)) for changes in ({}, settings)
    )
    for here, there in zip(steps(calm, 2), steps(changing, 2), strict=True):
        assert there.merged_arrived_s == pytest.approx(here.merged_arrived_s, rel=1e-6)
        assert (there.compute_j, there.transmit_j) == pytest.approx((here.compute_j, here.transmit_j), rel=1e-6)
    assert changing.fleet.upload_s == pytest.approx(fleet.upload_s, rel=1e-6)


def test_all_clients_finish_together() -> None:
    """With equal-finish, a round of FedAvg ends when all updates arrive, and earlier than with bands of their own."""
    settings = Settings(num_clients=10, noise_dbm=-90.0)
    fleet = draw_fleet(settings)
    own, split, optimal = (
        next(simulate(FedAvg(), fleet, rounds=1, settings=settings.with_changes(allocation=name)))
        for name in ("", "equal", "equal-finish")
    )
    assert split.merged_arrived_s == pytest.approx(own.merged_arrived_s)
    assert optimal.merged_arrived_s == pytest.approx(np.full(10, optimal.end_s))
    assert optimal.end_s < own.end_s


CALLS: list[tuple[list[int], float, float]] = []


def favor_first(fleet: Fleet, clients: IntArray, free_hz: float, deadline_s: float) -> Allocation:
    """Give each client 1 Hz, and the first one the rest."""
    CALLS.append((clients.tolist(), free_hz, deadline_s))
    return Allocation(np.append(free_hz - len(clients) + 1, np.ones(len(clients) - 1)))


def test_custom_function_gets_the_free_band_and_the_deadline(two: Fleet) -> None:
    """Of 3 Hz, client 1 gets 2 and finishes at 4 + 6/6 s; 2 has 1 Hz until 7 s. Client 0 gets the 2 Hz from 5 s on."""
    CALLS.clear()
    plans = RoundPlan(ids(1, 2), Arrivals(1)), RoundPlan(ids(0), AllOf(ids(0), by_s=50.0))
    settings = Settings(allocation=f"{__name__}:favor_first")
    first, second = simulate(Scripted(*plans), two, rounds=2, settings=settings)
    assert [([1, 2], 3.0, np.inf), ([0], 2.0, 45.0)] == CALLS
    assert first.end_s == pytest.approx(5.0)
    assert second.end_s == pytest.approx(5 + 2 + 6 / (2 * np.log2(1 + 3 / 2)))


def failing(fleet: Fleet, clients: IntArray, free_hz: float, deadline_s: float) -> Allocation:
    raise RuntimeError("no plan")


def test_error_of_a_custom_function_names_it(two: Fleet) -> None:
    loop = make_loop(FedAvg(), two, settings=Settings(allocation=f"{__name__}:failing"))
    with pytest.raises(InputError, match=r"round 1: allocation .*:failing failed: RuntimeError: no plan"):
        loop.step()


def test_band_of_clients_that_are_training_is_not_free(two: Fleet) -> None:
    """Client 1 is still training when client 0 starts."""
    first, second = RoundPlan(ids(1), Arrivals(1, 1.0)), RoundPlan(ids(0), Arrivals(1, 9.0))

    def second_round(first_hz: float, second_hz: float | None) -> None:
        given = None if second_hz is None else Allocation([second_hz])
        plans = replace(first, allocation=Allocation([first_hz])), replace(second, allocation=given)
        list(simulate(Scripted(*plans), two, rounds=2))

    second_round(2.0, 1.0)
    second_round(2.0, None)
    with pytest.raises(InputError, match=r"^round 2: Scripted: RoundPlan.allocation: bandwidth_hz must be > 0"):
        second_round(2.0, 1.5)
    with pytest.raises(InputError, match=r"^round 2: usual resources: bandwidth_hz must .* at most 0.5, got 1 for cl"):
        second_round(2.5, None)
    with pytest.raises(RunStoppedError, match="no band is free for client 0: clients that are still training hold all"):
        list(simulate(Scripted(first, second), two, rounds=2, settings=Settings(allocation="equal")))


def test_strategy_can_allocate_parts_of_the_usual_resources(two: Fleet) -> None:
    """All band and a third of the power for client 0: 3·log2(1 + 3/3/3) bits per second."""

    class Thrifty(FedAvg):
        def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
            usual = view.usual_resources
            assert usual is not None
            given = Allocation(np.array([usual.bandwidth_hz.sum()]), usual.power_w[:1] / 3)
            return RoundPlan(ids(0), AllOf(ids(0)), allocation=given)

    record = next(simulate(Thrifty(), two, rounds=1))
    assert record.end_s == pytest.approx(2 + 6 / (3 * np.log2(4 / 3)))


def test_where_nothing_can_be_allocated(two: Fleet) -> None:
    measured, plan = make_fleet([1.0, 2.0]), RoundPlan(ids(0, 1), AllOf(ids(0, 1)), allocation=HALF)
    with pytest.raises(InputError, match="allocation needs drawn clients with positions"):
        make_loop(FedAvg(), measured, settings=Settings(allocation="equal"))
    in_turn = replace(plan, uploads="in-turn")
    for fleet, wrong in (measured, plan), (two, in_turn):
        with pytest.raises(ValueError, match=r"RoundPlan.allocation must be None for clients with measured times"):
            list(simulate(Scripted(wrong), fleet, rounds=1))
    loop = make_loop(Scripted(replace(in_turn, allocation=None)), two, settings=Settings(allocation="equal"))
    with pytest.raises(InputError, match="allocation cannot be combined with a strategy whose clients upload in turn"):
        loop.step()
    loop = make_loop(Scripted(plan), two, settings=Settings(spectrum="equal"))
    with pytest.raises(InputError, match=r"RoundPlan.allocation cannot be combined with \[radio\] spectrum"):
        loop.step()


@pytest.mark.parametrize("settings", [{}, {"fading": "rayleigh"}])
def test_resumed_run_continues_with_the_same_resources(settings: dict[str, Any]) -> None:
    chosen = Settings(num_clients=6, allocation="equal-finish", noise_dbm=-94.0, **settings)
    fleet = draw_fleet(chosen)
    once, again = (make_loop(Lesson(15.0), fleet, settings=chosen) for _ in range(2))
    steps(once, 4)
    resume(once, again)
    assert [fields(record) for record in steps(once, 6)] == [fields(record) for record in steps(again, 6)]


def test_uploads_of_other_sizes_on_other_bands() -> None:
    """80 of 320 bits, the usual size, take 80/6 s at 6 bits per second; 320 bits take four times as long."""
    fleet = replace(make_radio_fleet([14], [4]), model_bits=320.0, level=8.0, level_bits={32.0: 320.0, 8.0: 80.0})
    fleet = replace(fleet, upload_s=80 / np.log2([15.0]), latency_s=4 + 80 / np.log2([15.0]))
    wide = Allocation([1.0], power_w=[1.0])
    plans = [RoundPlan(ids(0), AllOf(ids(0)), allocation=wide, compression=level) for level in (None, 32.0)]
    for settings in VARYING:
        run = follow(Scripted(*plans), fleet, 2, settings=Settings(**settings))
        usual_s, whole_s = np.diff([0.0, *(record.end_s for record in run.records)])
        assert (usual_s, whole_s) == pytest.approx((4 + 80 / 3, 4 + 320 / 3))
        assert run.simulation.fleet.upload_s == pytest.approx(fleet.upload_s)
