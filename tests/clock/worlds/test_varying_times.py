"""Local training that takes longer or shorter than estimated, by a trace or a slowdown; estimates are corrected."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from lesson import FedAvg, FedCS, Fleet, InputError, Lesson, Settings, Simulation, draw_fleet, simulate
from lesson.clock.estimates import LatencyEstimator
from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds.actual_times import ActualTimes
from lesson.core.random import exponentials, key, normals
from lesson.fleet.csv_files import read_fleet
from lesson.radio import transfer
from lesson.strategies import fleet_for, make_strategy
from lesson.strategies.semisync_steps import SemiSyncSteps
from lesson.strategies.tifl import TiFL

# Client 0 is estimated at 4 + 4 s and takes 9 + 4; 1 takes 2.5 + 2.5 as estimated; 2 takes 3 + 3, not 7.5 + 7.5.
LATE = "client,round,compute_s,upload_s 0,1,9,4 1,1,2.5,2.5 2,1,3,3"


def run(strategy: Any, fleet: Fleet, rounds: int, **settings: Any) -> tuple[RoundLoop, list[RoundRecord]]:
    simulation = Simulation(strategy, fleet, settings=Settings(**settings))
    records = [simulation.step() for _ in range(rounds)]
    assert None not in records
    return simulation, records  # type: ignore[return-value]


def test_a_late_update_is_merged_when_it_comes_and_an_early_one_when_it_is_due(tmp_path: Path) -> None:
    """Rounds of 10 s. Client 0 is due at 10 s and comes at 13 s: merged at 20 s, with 2, which came at 6 s and was due
    at 20 s, and 1 from 10 s on. At 20 s all start: 0 with 13 s is now of tier 2, 2 with 6 s of tier 1. 0 comes at 33 s
    and is due at 40 s, as expected."""
    trace = traced(tmp_path / "work.csv", LATE)
    simulation, records = run(Lesson(10.0), make_fleet([8.0, 5.0, 15.0]), 4, trace=trace)
    assert [record.end_s for record in records] == [10.0, 20.0, 30.0, 40.0]
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [1], [0, 1, 2], [1, 2]]
    assert [record.merged.tolist() for record in records] == [[1], [2, 0, 1], [1, 2], [0, 1, 2]]
    assert [record.staleness.tolist() for record in records] == [[0], [1, 1, 0], [0, 0], [1, 0, 0]]
    assert [record.merged_expected_s.tolist() for record in records] == [[5], [15, 8, 5], [5, 6], [13, 5, 6]]
    assert [record.merged_arrived_s.tolist() for record in records] == [[5], [6, 13, 15], [25, 26], [33, 35, 36]]
    assert [record.uploads for record in records] == [2, 2, 2, 3]
    assert [record.misses for record in records] == [0, 1, 0, 0]
    assert [record.retiered for record in records] == [0, 0, 2, 0]
    assert [record.lost for record in records] == [0, 0, 0, 0]
    assert simulation.fleet.latency_s.tolist() == [13.0, 5.0, 6.0]
    # Round 2: client 0 computes 9 s at 1 J / 4 s and sends 4 s at 10 J / 4 s; client 1 spends its 2 and 20 J.
    assert (records[1].compute_j, records[1].transmit_j) == (9 / 4 + 2, 10.0 + 20.0)


def test_a_late_update_is_dropped_if_late_is_drop(tmp_path: Path) -> None:
    """As above, but what came at 13 s is dropped at 20 s; its client starts again in tier 2 all the same."""
    trace = traced(tmp_path / "work.csv", LATE)
    simulation, records = run(Lesson(10.0, late="drop"), make_fleet([8.0, 5.0, 15.0]), 4, trace=trace)
    assert [record.merged.tolist() for record in records] == [[1], [2, 1], [1, 2], [0, 1, 2]]
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [1], [0, 1, 2], [1, 2]]
    assert [record.misses for record in records] == [0, 1, 0, 0]
    assert [record.retiered for record in records] == [0, 0, 2, 0]
    assert simulation.fleet.latency_s.tolist() == [13.0, 5.0, 6.0]


def test_a_client_gets_the_step_size_of_its_new_tier(tmp_path: Path) -> None:
    lesson, scales = Lesson(10.0), []
    merge = lesson.merge
    lesson.merge = lambda view, arrived: scales.append(arrived.lr_scale.tolist()) or merge(view, arrived)  # type: ignore[method-assign,func-returns-value]
    run(lesson, make_fleet([8.0, 5.0, 15.0]), 4, trace=traced(tmp_path / "work.csv", LATE))
    assert scales == [[1, 2], [2, 1, 1], [1, 1], [2, 1, 1]]


def test_a_round_of_tier_1_does_not_wait_for_late_updates(tmp_path: Path) -> None:
    """Estimates are 5, 6 and 8 s, so round 1 would close at the last arrival; client 0 takes 13 s: it closes at 10 s.
    In round 3, 0 is of tier 2. In round 4 it is at work, so the round lasts until 40 s."""
    trace = traced(tmp_path / "work.csv", LATE)
    _, records = run(Lesson(10.0), make_fleet([8.0, 5.0, 6.0]), 4, trace=trace)
    assert [record.end_s for record in records] == [10.0, 20.0, 30.0, 40.0]
    assert [record.merged.tolist() for record in records] == [[1, 2], [0, 1, 2], [1, 2], [0, 1, 2]]


def test_a_traces_first_work_is_the_first_estimate(tmp_path: Path) -> None:
    """The first estimate is row 1 of each drawn client; its power is the drawn one, so energy follows the time."""
    text = "client,round,compute_s,upload_s 0,1,4,4 0,2,9,4 1,1,2,1"
    settings = Settings(num_clients=2, trace=traced(tmp_path / "work.csv", text))
    fleet, drawn = draw_fleet(settings), draw_fleet(Settings(num_clients=2))
    assert fleet.latency_s.tolist() == [8.0, 3.0]
    records = list(simulate(FedAvg(), fleet, rounds=2, settings=settings))
    assert [record.end_s for record in records] == [8.0, 21.0]
    watts = drawn.compute_j / drawn.compute_s
    assert records[1].compute_j == pytest.approx(9 * watts[0] + 2 * watts[1])
    assert records[1].transmit_j == pytest.approx(0.1 * (4 + 1))


def test_steps_count_in_computing_alone_and_are_not_taken_for_slowness(tmp_path: Path) -> None:
    """2 + 2 and 6 + 6 s are estimated: in 2·6 s client 0 makes six steps, 1 two. Really 3 + 1 s: 6·3 + 1 = 19 s, and
    the new estimate is 3 s per step. Then 4 and 2 steps fit: 4·3 + 1 and 2·6 + 6 s."""
    text = "client,round,compute_s,upload_s 0,1,3,1 1,1,6,6"
    trace = traced(tmp_path / "work.csv", text)
    simulation, records = run(SemiSyncSteps(period_factor=2.0), make_fleet([4.0, 12.0]), 2, trace=trace)
    assert [record.merged_arrived_s.tolist() for record in records] == [[18.0, 19.0], [19.0 + 13.0, 19.0 + 18.0]]
    assert simulation.fleet.compute_s.tolist() == [3.0, 6.0]
    assert simulation.fleet.upload_s.tolist() == [1.0, 6.0]
    assert records[0].merged_expected_s.tolist() == [18.0, 14.0]


def test_a_promoted_client_is_as_fast_as_it_is_taken_to_be(tmp_path: Path) -> None:
    """15 s are taken as 10 s: all of its trace is by two thirds shorter, so that tier 1 stays as it is."""
    text = "client,round,compute_s,upload_s 0,1,9,6 0,2,6,6 1,1,20,10"
    trace = traced(tmp_path / "work.csv", text)
    settings = Settings(num_clients=2, deadline_s=10.0, ensure_first_tier=True, trace=trace)
    fleet = fleet_for("fedcs", draw_fleet(settings), settings.strategy.deadline_s)
    records = list(simulate(FedCS(10.0), fleet, rounds=3, settings=settings))
    assert [record.merged.tolist() for record in records] == [[0], [0], [0]]
    assert np.concatenate([record.merged_arrived_s for record in records]) == pytest.approx([10, 18, 30])


@pytest.mark.parametrize("slowdown", [0.5, 3.0])
def test_a_slowdown_is_drawn_for_every_piece_of_work(slowdown: float) -> None:
    """compute_s·(1 + slowdown·E); the client's n-th work has its n-th draw, and energy is power times time."""
    fleet, rounds = make_fleet([8.0, 5.0, 15.0]), 3
    _, records = run(FedAvg(), fleet, rounds, slowdown=slowdown)
    clients, start_s = np.arange(3), 0.0
    for index, record in enumerate(records):
        factor = 1 + slowdown * exponentials(key(0, "slowdown"), clients, np.full(3, index))
        took_s = factor * fleet.compute_s + fleet.upload_s
        order = np.argsort(took_s)
        assert record.merged.tolist() == order.tolist()
        assert record.merged_arrived_s == pytest.approx(start_s + took_s[order])
        assert record.compute_j == pytest.approx((factor * fleet.compute_j).sum())
        assert record.transmit_j == pytest.approx(10 + 20 + 30)
        start_s = record.end_s
    assert (run(FedAvg(), fleet, 3, slowdown=slowdown)[1][2].end_s, records[0].end_s > 15.0) == (start_s, True)


def test_another_seed_is_another_slowdown() -> None:
    settings, fleet = Settings(slowdown=1.0), make_fleet([8.0, 5.0])
    ends_s = [next(simulate(FedAvg(), fleet, rounds=1, seed=seed, settings=settings)).end_s for seed in (0, 0, 1)]
    assert ends_s[0] == ends_s[1] != ends_s[2]


# Client 0 takes 5, once 13, then 5 s; 1 always 6 s.
ONCE = "client,round,compute_s,upload_s 0,1,2.5,2.5 0,2,9,4 0,3,2.5,2.5 1,1,3,3"


def test_refreshed_estimates_let_a_slow_client_start_again(tmp_path: Path) -> None:
    """FedCS, 10 s. 0 starts at 10 s, comes at 23 s, too late, and is now estimated at 13 s. At 40 s, the first round
    after 35 s, the server asks: 5 s for the third work. At 70 s it asks again, which changes nothing."""
    trace = traced(tmp_path / "work.csv", ONCE)
    _, records = run(FedCS(10.0), make_fleet([5.0, 6.0]), 8, trace=trace, refresh_estimates_every_s=35.0)
    starts = [record.started.tolist() for record in records]
    assert starts == [[0, 1], [0, 1], [1], [1], [0, 1], [0, 1], [0, 1], [1]]
    assert [record.merged.tolist() for record in records[:5]] == [[0, 1], [1], [1], [1], [0, 1]]
    assert [record.misses for record in records] == [0, 0, 1, 0, 0, 0, 0, 1]


def test_without_refreshed_estimates_a_slow_client_never_starts_again(tmp_path: Path) -> None:
    trace = traced(tmp_path / "work.csv", ONCE)
    simulation, records = run(FedCS(10.0), make_fleet([5.0, 6.0]), 30, trace=trace)
    assert [record.started.tolist() for record in records[2:]] == [[1]] * 28
    assert simulation.fleet.latency_s.tolist() == [13.0, 6.0]


def test_refreshing_of_estimates_survives_a_restart(tmp_path: Path) -> None:
    """At the end of round 4, at 40 s, the question of that time has not been asked yet."""
    changes = {"trace": traced(tmp_path / "work.csv", ONCE), "refresh_estimates_every_s": 35.0}
    simulation, _ = run(FedCS(10.0), make_fleet([5.0, 6.0]), 4, **changes)
    restored = Simulation(FedCS(10.0), make_fleet([5.0, 6.0]), settings=Settings(**changes))
    restored.restore(*simulation.state())
    assert simulation.step().started.tolist() == restored.step().started.tolist() == [0, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("estimate", "estimates_s"),
    [
        ({"estimate": "last"}, [4.0, 10.0, 6.0, 12.0]),
        ({"estimate": "mean", "estimate_window": 3}, [4.0, 7.0, 20 / 3, 28 / 3]),
        ({"estimate": "quantile", "estimate_window": 3, "estimate_quantile": 0.5}, [4.0, 4.0, 6.0, 10.0]),
        ({"estimate": "quantile", "estimate_quantile": 1.0}, [4.0, 10.0, 10.0, 12.0]),
    ],
)
def test_the_estimate_after_each_local_training(
    tmp_path: Path, estimate: dict[str, Any], estimates_s: list[float]
) -> None:
    """4, 10, 6 and 12 s, half of each for computing. What the fleet said, 8 s, is not among what was seen."""
    text = "client,round,compute_s,upload_s 0,1,2,2 0,2,5,5 0,3,3,3 0,4,6,6"
    fleet = make_fleet([8.0])
    settings = Settings(trace=traced(tmp_path / "work.csv", text), **estimate)
    simulation, seen_s = Simulation(FedAvg(), fleet, settings=settings), []
    for _ in range(4):
        simulation.step()
        seen_s.append(simulation.fleet.latency_s[0])
    assert seen_s == pytest.approx(estimates_s)
    assert simulation.fleet.compute_s[0] == pytest.approx(estimates_s[-1] / 2)
    assert fleet.latency_s.tolist() == [8.0], "the fleet that was given is left as it is"


def test_every_estimate_has_its_own_error_factor(tmp_path: Path) -> None:
    """exp(σ·N), the n-th normal number for the estimate after n local trainings; actual times do not change."""
    fleet, who = make_fleet([8.0, 5.0, np.inf]), np.arange(2)
    for seed in (0, 4):
        simulation = Simulation(FedAvg(), fleet, seed=seed, settings=Settings(estimate_error=0.3))
        for index in range(3):
            off = np.exp(0.3 * normals(key(seed, "estimate error"), who, np.full(2, index)))
            for name in ("latency_s", "compute_s", "upload_s", "shared_upload_s"):
                assert getattr(simulation.fleet, name)[:2] == pytest.approx(off * getattr(fleet, name)[:2])
            record = simulation.step()
            assert record is not None
            assert record.merged_arrived_s.tolist() == [8.0 * index + 5.0, 8.0 * index + 8.0]
            assert sorted(record.merged_expected_s) == pytest.approx(sorted(off * [8.0, 5.0]))


def test_no_error_is_exact() -> None:
    """With nothing but presence of everybody, at round times, all is as without: also the estimates."""
    fleet = make_fleet([8.0, 5.0])
    simulation = Simulation(FedAvg(), fleet, settings=Settings(slowdown=1e-300, estimate_error=0.0))
    assert simulation.step().end_s == 8.0  # type: ignore[union-attr]
    assert simulation.fleet.latency_s.tolist() == [8.0, 5.0]


@pytest.mark.parametrize("deadline_s", [0.3, 1.0, 20.0])
def test_a_latency_of_one_deadline_stays_in_tier_1_for_ever(tmp_path: Path, deadline_s: float) -> None:
    """However late it is measured: the measured time equals the estimate bit for bit."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 1,0,inf")
    fleet = make_fleet([deadline_s, 3 * deadline_s], compute_share=1 / 3)
    simulation = Simulation(Lesson(deadline_s), fleet, settings=Settings(presence=presence))
    simulation.now_s = 123_456.7
    records = [simulation.step() for _ in range(50)]
    assert sum(record.retiered for record in records) == 0  # type: ignore[union-attr,misc]
    assert sum(len(record.merged) for record in records) == 50 + 16  # type: ignore[union-attr]


def test_measured_latencies_need_no_compute_and_upload_times(tmp_path: Path) -> None:
    """Only a slowdown asks for the one it slows down; a trace tells both itself."""
    fleets = traced(tmp_path / "fleet.csv", "client,latency_s a,8 b,inf c,5")
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s a,0,inf")
    for changes in ({"presence": presence}, {"estimate_error": 0.1}):
        settings = Settings(**changes)
        (record,) = simulate(FedAvg(), read_fleet(tmp_path / "fleet.csv", settings), rounds=1, settings=settings)
        assert (record.end_s, record.merged.tolist(), record.compute_j) == (8.0, [2, 0], None)
    settings = Settings(slowdown=1.0)
    with pytest.raises(InputError, match="slowdown needs compute_s of every client"):
        Simulation(FedAvg(), read_fleet(tmp_path / "fleet.csv", settings), settings=settings)
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s a,1,4,4 b,1,1,1 c,1,2,3")
    settings = Settings(trace=work)
    fleet = read_fleet(Path(fleets), settings)
    record = next(simulate(FedAvg(), fleet, rounds=1, settings=settings))
    assert (record.merged.tolist(), record.end_s, record.compute_j) == ([1, 2, 0], 8.0, None)


@pytest.mark.parametrize(
    "changes",
    [{"fading": "rayleigh"}, {"speed_mps": (1.0, 2.0)}, {"spectrum": "equal"}, {"positions": "places.csv"}],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_need_positions_are_rejected_for_measured_latencies(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    traced(tmp_path / "fleet.csv", "client,latency_s,compute_s,upload_s a,8,4,4")
    settings = Settings(**changes)
    name = next(iter(changes))
    with pytest.raises(InputError, match=rf"^\[\w+\] {name} cannot be combined with measured latencies"):
        Simulation(FedAvg(), read_fleet(tmp_path / "fleet.csv", settings), settings=settings)


def test_work_that_never_ends_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 walks out of the reach of the base station before it has computed."""
    places = "client,time_s,x_km,y_km 0,0,0.1,0 1,0,0.1,0 1,0.5,1,1"
    positions = traced(tmp_path / "places.csv", places)
    settings = Settings(num_clients=2, positions=positions, coherence_s=0.01, path_loss_slope_db=3000.0)
    monkeypatch.setattr(transfer, "MAX_BLOCKS", 10_000)
    fleet = draw_fleet(settings)
    assert np.all(fleet.latency_s < 100)
    for until_s, why in ((np.inf, "the round cannot close: its updates never arrive"), (1000.0, "time limit reached")):
        simulation = Simulation(FedAvg(), fleet, settings=settings)
        assert simulation.step(until_s) is None
        assert (simulation.stop_reason, simulation.now_s) == (why, 0.0)
    record = next(simulate(Lesson(100.0), fleet, rounds=1, settings=settings))
    assert (record.merged.tolist(), record.end_s) == ([0], 100.0)


def test_credits_that_are_used_up_do_not_lead_past_the_time_budget(tmp_path: Path) -> None:
    """All credits are gone at 8 + 5 s; somebody leaves at 1000 s."""
    presence = traced(tmp_path / "presence.csv", "client,from_s,to_s 0,0,1000")
    settings, fleet = Settings(presence=presence), make_fleet([8.0, 5.0])
    strategy = make_strategy("tifl", 10.0, {"num_tiers": 2, "credits": 1})
    records = list(simulate(strategy, fleet, until_s=100.0, settings=settings))
    assert [record.end_s for record in records][-2:] == [13.0, 13.0]
    assert "no client is training and none can start" in records[-1].note
    simulation = Simulation(TiFL(num_tiers=2, credits=1), replace(fleet), settings=settings)
    while not simulation.stop_reason:
        simulation.step()
    assert simulation.now_s == 1000.0


def test_refreshed_estimates_are_usual_times_not_the_next_ones(tmp_path: Path) -> None:
    """Client 0 takes 6, 30 and 6 s, 14 on average: estimated too slow for τ = 20 s after its second, asked at 60 s, and
    started at once."""
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,2,4 0,2,20,10 0,3,2,4 1,1,1,1")
    settings = Settings(num_clients=2, trace=work, refresh_estimates_every_s=20.0)
    simulation = Simulation(FedCS(20.0), draw_fleet(settings), settings=settings)
    for started in ([0, 1], [0, 1], [1], [0, 1]):  # its second piece of work lasts from 20 to 50 s
        record = simulation.step()
        assert record is not None
        assert record.started.tolist() == started
    assert record.merged_expected_s.tolist() == [2.0, pytest.approx(14.0)]


@pytest.mark.parametrize("every_s", [0.3, 0.7, 20.0])
def test_idle_clients_are_asked_once_in_every_round_as_long_as_the_interval(
    every_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ActualTimes, "asked_s", lambda _, clients, now_s: asked.append(round(now_s / every_s)))
    monkeypatch.setattr(LatencyEstimator, "see", lambda *_: None)
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,0.1,0.1")
    settings = Settings(num_clients=1, trace=work, refresh_estimates_every_s=every_s)
    list(simulate(FedCS(every_s), draw_fleet(settings), rounds=300, settings=settings))
    assert asked == list(range(1, 300)), "after every round"


def test_a_first_row_without_an_upload_does_not_hide_what_sending_costs(tmp_path: Path) -> None:
    work = traced(tmp_path / "work.csv", "client,round,compute_s,upload_s 0,1,5,0 0,2,0,3")
    settings = Settings(num_clients=1, trace=work)
    fleet = draw_fleet(settings)
    assert fleet.population is not None
    first, second = simulate(FedAvg(), fleet, rounds=2, settings=settings)
    watts = settings.fleet.energy_kappa * fleet.population.cpu_hz[0] ** 3
    assert (first.compute_j, first.transmit_j) == (pytest.approx(5 * watts), 0.0)
    assert (second.compute_j, second.transmit_j) == (0.0, pytest.approx(3 * 0.1))


def test_the_promoted_client_is_estimated_at_the_deadline(tmp_path: Path) -> None:
    """However wrong the server is about all others: tier 1 would be empty else."""
    for seed in range(20):
        settings = Settings(num_clients=5, deadline_s=5.0, ensure_first_tier=True, estimate_error=0.5)
        fleet = draw_fleet(settings, seed=seed).at_deadline(5.0)
        first = next(simulate(FedCS(5.0), fleet, rounds=1, seed=seed, settings=settings))
        assert fleet.promoted is None or fleet.promoted.client in first.started


def test_what_shadows_clients_is_the_fleets() -> None:
    """A run from another seed has other fading, not other shadows."""
    settings = Settings(num_clients=6, shadowing_db=8.0, fading="rician", rician_k_db=100.0)
    for seed in (0, 1):
        (record,) = simulate(FedAvg(), draw_fleet(settings), rounds=1, seed=seed, settings=settings)
        assert record.merged_arrived_s == pytest.approx(record.merged_expected_s, rel=1e-3)
