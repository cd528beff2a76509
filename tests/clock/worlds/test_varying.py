"""Local trainings that take longer or shorter than estimated, overhead between rounds, and resuming in every world."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import fields, make_fleet, resume, steps, traced
from helpers.scripted import Scripted, ids
from lesson import FedAvg, FedCS, Fleet, InputError, Lesson, RoundLoop, Settings, draw_fleet, make_loop, simulate
from lesson.clock.records import RoundRecord
from lesson.core.random import exponentials, key, normals
from lesson.fleet.csv_files import read_fleet
from lesson.radio import transfer
from lesson.strategies import FedBuff, FedCSGreedy, LessonFitted, Refl, Safa
from lesson.strategies.base import AllOf, RoundPlan, ServerView

WORK = "client,round,compute_s,upload_s "


def run(strategy: Any, fleet: Fleet, rounds: int, **settings: Any) -> tuple[RoundLoop, list[RoundRecord]]:
    loop = make_loop(strategy, fleet, settings=Settings(**settings))
    return loop, steps(loop, rounds)


@pytest.fixture
def late(tmp_path: Path) -> str:
    """Client 0 is estimated at 4 + 4 s and takes 9 + 4; 1 takes 2.5 + 2.5, as estimated; 2 takes 3 + 3, not 15 s."""
    return traced(tmp_path / "work.csv", WORK + "0,1,9,4 1,1,2.5,2.5 2,1,3,3")


def test_late_and_early_updates(late: str) -> None:
    """Rounds of 10 s. Client 0 is due at 10 s and arrives at 13 s: merged at 20 s, with 2, which arrived at 6 s and was
    due at 20 s. At 20 s all start: 0 with 13 s is now in tier 2, 2 with 6 s in tier 1. 0 arrives at 33 s and is due at
    40 s, as expected."""
    loop, records = run(Lesson(10.0), make_fleet([8.0, 5.0, 15.0]), 4, trace=late)
    assert [record.end_s for record in records] == [10.0, 20.0, 30.0, 40.0]
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [1], [0, 1, 2], [1, 2]]
    assert [record.merged.tolist() for record in records] == [[1], [2, 0, 1], [1, 2], [0, 1, 2]]
    assert [record.staleness.tolist() for record in records] == [[0], [1, 1, 0], [0, 0], [1, 0, 0]]
    assert [record.merged_expected_s.tolist() for record in records] == [[5], [15, 8, 5], [5, 6], [13, 5, 6]]
    assert [record.merged_arrived_s.tolist() for record in records] == [[5], [6, 13, 15], [25, 26], [33, 35, 36]]
    assert [(one.uploads, one.misses, one.retiered) for one in records] == [(2, 0, 0), (2, 1, 0), (2, 0, 2), (3, 0, 0)]
    assert loop.fleet.latency_s.tolist() == [13.0, 5.0, 6.0]
    # Round 2: client 0 computes 9 s at 1 J / 4 s and uploads 4 s at 10 J / 4 s; client 1 uses its 2 and 20 J.
    assert (records[1].compute_j, records[1].transmit_j) == (9 / 4 + 2, 10.0 + 20.0)


def test_late_updates_are_dropped(late: str) -> None:
    """The client still starts again in tier 2."""
    loop, records = run(Lesson(10.0, late="drop"), make_fleet([8.0, 5.0, 15.0]), 4, trace=late)
    assert [record.merged.tolist() for record in records] == [[1], [2, 1], [1, 2], [0, 1, 2]]
    assert [record.started.tolist() for record in records] == [[0, 1, 2], [1], [0, 1, 2], [1, 2]]
    assert loop.fleet.latency_s.tolist() == [13.0, 5.0, 6.0]


def test_round_of_tier_1_does_not_wait_for_late_updates(late: str) -> None:
    """By estimates of 5, 6 and 8 s, round 1 would close at the last arrival; client 0 takes 13 s: it closes at 10 s."""
    _, records = run(Lesson(10.0), make_fleet([8.0, 5.0, 6.0]), 4, trace=late)
    assert [record.end_s for record in records] == [10.0, 20.0, 30.0, 40.0]
    assert [record.merged.tolist() for record in records] == [[1, 2], [0, 1, 2], [1, 2], [0, 1, 2]]


def test_trace_sets_times_estimates_and_energy(tmp_path: Path) -> None:
    """The first estimate is the first row; energy is power times time, even if that row has no upload."""
    settings = Settings(num_clients=2, trace=traced(tmp_path / "work.csv", WORK + "0,1,4,0 0,2,9,4 1,1,2,1"))
    fleet, drawn = draw_fleet(settings), draw_fleet(Settings(num_clients=2))
    assert fleet.latency_s.tolist() == [4.0, 3.0]
    records = list(simulate(FedAvg(), fleet, rounds=2, settings=settings))
    assert [record.end_s for record in records] == [4.0, 17.0]
    watts = drawn.compute_j / drawn.compute_s
    assert [record.compute_j for record in records] == pytest.approx([np.dot([4, 2], watts), np.dot([9, 2], watts)])
    assert [record.transmit_j for record in records] == pytest.approx([0.1 * 1, 0.1 * (4 + 1)])


def test_extra_local_steps_do_not_raise_the_estimate(tmp_path: Path) -> None:
    """Estimated at 2 + 2 s, client 0 takes 3 s a step and 1 s for the upload: 6·3 + 1 s, and 4·3 + 1 s next time."""
    trace = traced(tmp_path / "work.csv", WORK + "0,1,3,1")
    plans = [RoundPlan(ids(0), AllOf(ids(0)), local_steps=ids(steps)) for steps in (6, 4)]
    loop, records = run(Scripted(*plans), make_fleet([4.0]), 2, trace=trace)
    assert [record.merged_arrived_s.tolist() for record in records] == [[19.0], [19.0 + 13.0]]
    assert [record.merged_expected_s.tolist() for record in records] == [[6 * 2 + 2.0], [4 * 3 + 1.0]]
    assert (loop.fleet.compute_s.tolist(), loop.fleet.upload_s.tolist()) == ([3.0], [1.0])


def test_promoted_client_is_as_fast_as_assumed(tmp_path: Path) -> None:
    """15 s are taken as 10 s, so all times of its trace are shortened by a third."""
    trace = traced(tmp_path / "work.csv", WORK + "0,1,9,6 0,2,6,6 1,1,20,10")
    settings = Settings(num_clients=2, trace=trace, ensure_first_tier=True)
    records = list(simulate(FedCS(10.0), draw_fleet(settings).at_deadline(10.0), rounds=3, settings=settings))
    assert np.concatenate([record.merged_arrived_s for record in records]) == pytest.approx([10, 18, 30])


def test_slowdown_is_drawn_for_every_local_training() -> None:
    """compute_s·(1 + slowdown·E); the client's n-th training has its n-th draw, and energy is power times time."""
    fleet, clients, start_s = make_fleet([8.0, 5.0, 15.0]), np.arange(3), 0.0
    settings = Settings(slowdown=0.5)
    for index, record in enumerate(simulate(FedAvg(), fleet, rounds=3, settings=settings, seed=4)):
        factor = 1 + 0.5 * exponentials(key(4, "slowdown"), clients, np.full(3, index))
        took_s = factor * fleet.compute_s + fleet.upload_s
        assert record.merged.tolist() == np.argsort(took_s).tolist()
        assert record.merged_arrived_s == pytest.approx(start_s + np.sort(took_s))
        assert (record.compute_j, record.transmit_j) == pytest.approx(((factor * fleet.compute_j).sum(), 60))
        start_s = record.end_s


@pytest.mark.parametrize(
    ("refresh", "starts"),
    [
        # At 40 s, the first round after 35 s, the server asks: 23 / 3 s on average. At 70 s, it asks again.
        ({"refresh_estimates_every_s": 35.0}, [[0, 1], [0, 1], [1], [1], [0, 1], [0, 1], [0, 1], [1]]),
        ({}, [[0, 1], [0, 1], *[[1]] * 6]),
    ],
    ids=["refreshed", "not refreshed"],
)
def test_refreshed_estimates_let_a_slow_client_start_again(
    tmp_path: Path, refresh: dict[str, float], starts: list[list[int]]
) -> None:
    """FedCS, 10 s. Client 0 takes 5, once 13, then 5 s, and so on: at 23 s, it is too late and estimated at 13 s. The
    run is resumed at 40 s, before the server asks."""
    trace = traced(tmp_path / "work.csv", WORK + "0,1,2.5,2.5 0,2,9,4 0,3,2.5,2.5 1,1,3,3")
    changes, fleet = {"trace": trace, **refresh}, make_fleet([5.0, 6.0])
    before, records = run(FedCS(10.0), fleet, 4, **changes)
    records += steps(resume(before, make_loop(FedCS(10.0), fleet, settings=Settings(**changes))), 4)
    assert [record.started.tolist() for record in records] == starts
    assert [record.misses for record in records][:5] == [0, 0, 1, 0, 0]
    if refresh:
        assert records[4].merged_expected_s.tolist() == [pytest.approx(23 / 3), 6.0]


def test_rounding_skips_no_refresh(tmp_path: Path) -> None:
    """Rounds of 0.3 s; client 0 takes 0.03 and 0.09 s in turn. It is estimated at 0.06 s after every round."""
    trace = traced(tmp_path / "work.csv", WORK + "0,1,0.03,0 0,2,0.09,0")
    settings = Settings(num_clients=1, trace=trace, refresh_estimates_every_s=0.3)
    records = list(simulate(FedCS(0.3), draw_fleet(settings), rounds=200, settings=settings))
    expected_s = np.concatenate([record.merged_expected_s for record in records])
    assert expected_s[1:] == pytest.approx(np.full(199, 0.06))


@pytest.mark.parametrize(
    ("estimate", "estimates_s"),
    [
        ({"estimate": "last"}, [4.0, 10.0, 6.0, 12.0]),
        ({"estimate": "mean", "estimate_window": 3}, [4.0, 7.0, 20 / 3, 28 / 3]),
        ({"estimate": "quantile", "estimate_window": 3, "estimate_quantile": 0.5}, [4.0, 4.0, 6.0, 10.0]),
        ({"estimate": "quantile", "estimate_window": 5, "estimate_quantile": 0.5}, [4.0, 4.0, 6.0, 6.0]),
        ({"estimate": "quantile", "estimate_window": 2, "estimate_quantile": 1.0}, [4.0, 10.0, 10.0, 12.0]),
    ],
)
def test_estimate_after_each_local_training(tmp_path: Path, estimate: dict[str, Any], estimates_s: list[float]) -> None:
    """4, 10, 6 and 12 s, half of each for computing. The first estimate, 8 s, is not one of the measured times.
    Client 1 always takes 20 s."""
    trace = traced(tmp_path / "work.csv", WORK + "0,1,2,2 0,2,5,5 0,3,3,3 0,4,6,6 1,1,15,5")
    loop, records = run(FedAvg(), make_fleet([8.0, 20.0]), 4, trace=trace, **estimate)
    expected_s = [record.merged_expected_s[0] for record in records]
    assert [*expected_s, loop.fleet.latency_s[0]] == pytest.approx([8.0, *estimates_s])
    assert loop.fleet.compute_s == pytest.approx([estimates_s[-1] / 2, 15.0])


def test_every_estimate_has_its_own_error_factor() -> None:
    """exp(σ·N), the n-th normal number for the estimate after n local trainings; actual times do not change."""
    fleet, who = make_fleet([8.0, 5.0, np.inf]), np.arange(2)
    loop = make_loop(FedAvg(), fleet, seed=4, settings=Settings(estimate_error=0.3))
    for index in range(3):
        off = np.exp(0.3 * normals(key(4, "estimate error"), who, np.full(2, index)))
        for name in ("latency_s", "compute_s", "upload_s", "shared_upload_s"):
            assert getattr(loop.fleet, name)[:2] == pytest.approx(off * getattr(fleet, name)[:2])
        (record,) = steps(loop, 1)
        assert record.merged_arrived_s.tolist() == [8.0 * index + 5.0, 8.0 * index + 8.0]


def test_first_estimate_of_the_promoted_client_has_no_error() -> None:
    """Otherwise, tier 1 might be empty."""
    for seed in range(10):
        settings = Settings(num_clients=5, estimate_error=0.5, ensure_first_tier=True)
        fleet = draw_fleet(settings, seed=seed).at_deadline(5.0)
        first = next(simulate(FedCS(5.0), fleet, rounds=1, seed=seed, settings=settings))
        assert fleet.promoted is None or fleet.promoted.client in first.started


def test_latency_of_one_deadline_stays_in_tier_1() -> None:
    """However late in the run it is measured, the measured time equals the estimate bit by bit."""
    fleet, settings = make_fleet([0.3, 0.9], compute_share=1 / 3), Settings(overhead_s=411.1, slowdown=1e-300)
    records = list(simulate(Lesson(0.3), fleet, rounds=300, settings=settings))
    assert records[-1].end_s > 100_000
    assert {record.retiered for record in records} == {0}
    assert sum(len(record.merged) for record in records) == 300 + 100


def test_measured_latencies_need_no_compute_and_upload_times(tmp_path: Path) -> None:
    """Unless computing is slowed down or the channel fades."""
    path, settings = tmp_path / "fleet.csv", Settings(estimate_error=0.1)
    traced(path, "client,latency_s a,8 b,inf c,5")
    (record,) = simulate(FedAvg(), read_fleet(path, settings), rounds=1, settings=settings)
    assert (record.end_s, record.merged.tolist(), record.compute_j) == (8.0, [2, 0], None)
    for name, value in (("slowdown", 1.0), ("fading", "rayleigh")):
        with pytest.raises(InputError, match=name):
            make_loop(FedAvg(), read_fleet(path, Settings()), settings=Settings(**{name: value}))


def test_local_training_that_never_ends_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 walks out of reach before it has computed."""
    positions = traced(tmp_path / "places.csv", "client,time_s,x_km,y_km 0,0,0.1,0 1,0,0.1,0 1,0.5,1,1")
    settings = Settings(num_clients=2, positions=positions, coherence_s=0.01, path_loss_slope_db=3000.0)
    monkeypatch.setattr(transfer, "MAX_BLOCKS", 10_000)
    fleet = draw_fleet(settings)
    for until_s, why in ((np.inf, "the round cannot close: its updates never arrive"), (1000.0, "time limit reached")):
        loop = make_loop(FedAvg(), fleet, settings=settings)
        assert loop.step(until_s) is None
        assert (loop.stop_reason, loop.now_s) == (why, 0.0)
    record = next(simulate(Lesson(100.0), fleet, rounds=1, settings=settings))
    assert (record.merged.tolist(), record.end_s) == ([0], 100.0)


@pytest.mark.parametrize("strategy", [FedAvg(), Lesson(10.0)], ids=["fedavg", "lesson"])
def test_failed_local_training_is_lost_and_its_client_starts_again(tmp_path: Path, strategy: Any) -> None:
    """In round 2, client 0 fails after 2 s. In round 3, the trace repeats."""
    trace = traced(tmp_path / "work.csv", WORK.strip() + ",lost 0,1,4,1,0 0,2,2,0,1 1,1,7,1,0")
    _, records = run(strategy, make_fleet([5.0, 8.0]), 3, trace=trace)
    assert [record.started.tolist() for record in records] == [[0, 1]] * 3
    assert [record.merged.tolist() for record in records] == [[0, 1], [1], [0, 1]]
    assert [(record.lost, record.end_s) for record in records] == [(0, 8.0), (1, 16.0), (0, 24.0)]


@pytest.mark.parametrize("varying", [{}, {"slowdown": 1e-300}], ids=["nominal", "varying"])
def test_rounds_open_after_the_overhead(varying: dict[str, float]) -> None:
    """LESSON's rounds last τ from the moment at which they open. Client 1 is in tier 2 for τ = 6 s: its first update
    arrives at 8 s, before round 2 opens at 9 s, and is due when that round closes."""
    settings, fleet = Settings(overhead_s=3.0, **varying), make_fleet([5.0, 8.0])
    rounds = [(one.start_s, one.end_s) for one in simulate(FedAvg(), fleet, rounds=3, settings=settings)]
    assert rounds == [(0.0, 8.0), (11.0, 19.0), (22.0, 30.0)]
    records = list(simulate(Lesson(6.0), fleet, rounds=3, settings=settings))
    assert [(one.start_s, one.end_s) for one in records] == [(0.0, 6.0), (9.0, 15.0), (18.0, 24.0)]
    assert [sorted(one.merged.tolist()) for one in records] == [[0], [0, 1], [0]]


def test_only_aggregations_have_overhead() -> None:
    """FedBuff aggregates every second arrival, at 10 s and 23 s; no time passes after the others."""
    _, records = run(FedBuff(2), make_fleet([5.0, 100.0]), 4, overhead_s=3.0)
    spans = [(record.start_s, record.end_s, record.version) for record in records]
    assert spans == [(0.0, 5.0, 0), (5.0, 10.0, 1), (13.0, 18.0, 1), (18.0, 23.0, 2)]


@pytest.mark.parametrize("strategy", [FedCS(20.0), Lesson(20.0, late="drop"), LessonFitted(20.0, late="drop"), Refl()])
def test_overhead_makes_no_update_late(strategy: Any) -> None:
    """All clients take exactly as long as expected, with and without 5 s between rounds."""
    fleet, merged = make_fleet([5.0, 12.0, 19.0, 22.0, 33.0, 41.0]), []
    for overhead_s in (0.0, 5.0):
        _, records = run(strategy, fleet, 100, overhead_s=overhead_s, slowdown=1e-300)
        assert sum(record.misses or 0 for record in records) == 0
        merged.append(Counter(client for record in records for client in record.merged.tolist()))
    assert merged[0] == merged[1]


def test_overhead_does_not_shift_slots() -> None:
    """One of the nine clients of tier 2 is drawn in every second round."""
    _, records = run(Lesson(10.0, participation=1), make_fleet([5.0] + [15.0] * 9), 8, overhead_s=3.0)
    assert [len(record.started) for record in records] == [2, 1] * 4


def test_round_that_closes_early_makes_no_update_late(tmp_path: Path) -> None:
    """Both clients seem to be in tier 1, so rounds close at the last arrival. Client 1 turns out to take 35 s, while
    rounds of client 0 alone last 5 s."""
    slow = " ".join(f"1,{update},17.5,17.5" for update in range(2, 40))
    trace = traced(tmp_path / "work.csv", f"{WORK} 0,1,2.5,2.5 1,1,7.5,7.5 {slow}")
    _, records = run(Lesson(20.0, late="drop", participation=1), make_fleet([5.0, 15.0]), 80, trace=trace)
    num_started, num_merged = sum(1 in one.started for one in records), sum(1 in one.merged for one in records)
    assert num_merged >= num_started - 2, "one is still training, and one took longer than expected"


@pytest.mark.parametrize("estimate", ["last", "mean"])
def test_latencies_are_drawn_from_a_distribution(estimate: str, tmp_path: Path) -> None:
    """Times of client a, and so its energies, are those of the file times 1 + z / 10. The server knows the mean, unless
    it estimates the mean from observations."""
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s,compute_s,upload_s,compute_j,transmit_j,sd_s\na,10,6,4,3,8,1\nb,20,15,5,1,2,\n")
    loop, records = run(FedAvg(), read_fleet(path), 3, estimate=estimate)
    draws = 1 + 0.1 * normals(key(0, "latency"), np.zeros(3, np.int64), np.arange(3))
    took_s = np.array([record.merged_arrived_s - record.merged_started_s for record in records])
    order = np.argsort([record.merged for record in records], axis=1)
    took_s = np.take_along_axis(took_s, order, axis=1)
    assert took_s[:, 0] == pytest.approx(10 * draws)
    assert took_s[:, 1] == pytest.approx(20.0)
    assert [record.compute_j for record in records] == pytest.approx((1 + 3 * draws).tolist())
    assert [record.transmit_j for record in records] == pytest.approx((2 + 8 * draws).tolist())
    expected_s = 10.0 if estimate == "last" else 10 * draws.mean()
    assert loop.fleet.latency_s.tolist() == pytest.approx([expected_s, 20.0])


def test_run_with_drawn_latencies_is_resumed_bit_identically(tmp_path: Path) -> None:
    path = tmp_path / "fleet.csv"
    path.write_text("client,latency_s,sd_s,distribution,count\na,10,4,gamma,3\nb,35,9,log-normal,2\n")
    fleet = read_fleet(path)
    whole, resumed = (make_loop(Lesson(20.0), fleet, seed=1) for _ in range(2))
    for _ in range(10):
        resumed = resume(resumed, make_loop(Lesson(20.0), fleet, seed=1))
        assert fields(resumed.step()) == fields(whole.step())


def test_distributions_cannot_be_combined_with_a_trace(tmp_path: Path) -> None:
    path, trace = tmp_path / "fleet.csv", traced(tmp_path / "work.csv", f"{WORK} a,1,2,3")
    path.write_text("client,latency_s,sd_s\na,10,1\n")
    settings = Settings(latencies=str(path), trace=trace)
    with pytest.raises(InputError, match=r"sd_s .* cannot be combined with .* trace"):
        make_loop(FedAvg(), draw_fleet(settings), settings=settings)


WAYS: dict[str, dict[str, Any]] = {
    "moving": {"fading": "rayleigh", "speed_mps": (5.0, 30.0), "slowdown": 0.5, "download": True},
    "refreshed": {"fading": "rayleigh", "estimate": "quantile", "refresh_estimates_every_s": 70.0},
    "equal": {"spectrum": "equal", "fading": "rician", "estimate": "mean", "disconnect_during": 0.2, "offline_s": 9.0},
    "in-turn": {"spectrum": "in-turn", "estimate_error": 0.3},
    "presence": {"presence": "presence.csv", "slowdown": 0.2, "disconnect_before": 0.1, "detection_delay_s": 10.0},
    "phones": {"throughput": "phones", "model_bits": 1e7, "download": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_run_resumed_after_every_round_is_bit_identical(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 1 to 3 join and leave in one of the worlds."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{client},{at},{at + 37.5 * client}" for client in (1, 2, 3) for at in (0, 130, 260, 600)]
    traced(Path("presence.csv"), "client,from_s,to_s " + " ".join(rows))
    settings = Settings(num_clients=8, area_km=1.2, cycles_per_sample=(0.5e8, 1.5e8), coherence_s=2.0, **WAYS[way])
    fleet = draw_fleet(settings, seed=1)
    strategy = FedCSGreedy(10.0) if way == "in-turn" else Safa(lag_tolerance=1, round_limit_s=10.0)
    whole, resumed = (make_loop(strategy, fleet, seed=1, settings=settings) for _ in range(2))
    for _ in range(30):
        resumed = resume(resumed, make_loop(strategy, fleet, seed=1, settings=settings))
        assert fields(resumed.step()) == fields(whole.step())


class StartsOnce(Scripted):
    """Starts all clients in round 1, and waits for them in rounds of 30 s."""

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        closes = AllOf(np.arange(3), by_s=np.inf if view.round > 2 else 30.0 * view.round)
        return RoundPlan(np.flatnonzero(view.idle) if view.round == 1 else ids(), closes)


def test_excluded_clients_share_of_the_band_is_free_after_a_resume() -> None:
    """A client is excluded at the end of round 2, and nobody starts in round 3: arrivals are computed again."""
    settings = Settings(num_clients=3, spectrum="equal", model_bits=2e6)
    fleet = draw_fleet(settings, seed=3)
    whole, resumed = (make_loop(StartsOnce(), fleet, settings=settings, seed=3) for _ in range(2))
    steps(whole, 2)
    (busy, *_) = np.flatnonzero(whole.ledger.busy)
    whole.world.cancel(whole.ledger.exclude(ids(busy))[0])
    assert fields(resume(whole, resumed).step()) == fields(whole.step())
