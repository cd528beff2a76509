"""Uploads on channels that change, on a band that is shared, and after a download, each worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import exp1

from helpers.fleets import make_fleet, resume, steps, traced
from helpers.scripted import Scripted, ids
from lesson import FedAvg, Fleet, InputError, Lesson, Settings, draw_fleet, make_loop, simulate
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import airtime
from lesson.clock.worlds.airtime import Airtime
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key
from lesson.fleet.phones import PhoneRates
from lesson.radio.fading import fading_gain
from lesson.strategies import FedCSGreedy, LessonFitted
from lesson.strategies.base import AllOf, Arrivals, Deadline, RoundPlan


def made(settings: Settings) -> Fleet:
    """Three clients that compute 1, 1 and 3 s at 1 W, and upload 12 bits at 10, 20 and 30 W, alone in 2 s."""
    compute_s, upload_s = np.array([1.0, 1.0, 3.0]), np.full(3, 2.0)
    return replace(
        draw_fleet(settings, 3),
        compute_s=compute_s,
        upload_s=upload_s,
        latency_s=compute_s + upload_s,
        compute_j=compute_s.copy(),
        transmit_j=np.array([20.0, 40.0, 60.0]),
        model_bits=12.0,
    )


@pytest.fixture
def _six_bits_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The total rate of all uploads, whatever their clients."""

    def rate_bps(self: Airtime, clients: IntArray, block: int, num_sharing: int) -> FloatArray:
        return np.full(len(clients), 6.0 / num_sharing)

    monkeypatch.setattr(Airtime, "shared_rate_bps", rate_bps)


@pytest.mark.parametrize(
    ("spectrum", "arrived_s", "sent_s", "seems_s"),
    [
        # 0 and 1 upload from 1 s on, 3 bit/s each; at 3 s both have 6 bits left and 2 joins: 2 bit/s each. At 6 s, 0
        # and 1 are done, and 2 has 6 bits left, which alone take 1 s.
        ("equal", [6.0, 6.0, 7.0], [5, 5, 4], [5.0, 5.0, 4.0]),
        # 0 uploads from 1 to 3 s, 1, ready at 1 s, from 3 to 5 s, 2, ready at 3 s, from 5 to 7 s. Waiting seems to be
        # part of the upload, but costs no energy.
        ("in-turn", [3.0, 5.0, 7.0], [2, 2, 2], [2.0, 4.0, 4.0]),
    ],
)
@pytest.mark.usefixtures("_six_bits_a_second")
def test_shared_band(spectrum: str, arrived_s: list[float], sent_s: list[float], seems_s: list[float]) -> None:
    settings = Settings(spectrum=spectrum)
    loop = make_loop(FedAvg(), made(settings), settings=settings)
    for start_s, record in zip((0.0, 7.0), steps(loop, 2), strict=True):
        assert (record.merged.tolist(), (record.merged_arrived_s - start_s).tolist()) == ([0, 1, 2], arrived_s)
        assert (record.compute_j, record.transmit_j) == (1 + 1 + 3, np.dot([10, 20, 30], sent_s))
    assert loop.fleet.upload_s.tolist() == seems_s
    assert loop.fleet.latency_s.tolist() == arrived_s


@pytest.mark.usefixtures("_six_bits_a_second")
def test_upload_that_starts_later_slows_down_the_others() -> None:
    """Split equally. 0 and 2 start at 0 s: 0 uploads alone from 1 s, 6 bits by 2 s. 1, started at 1 s, joins then: 3
    bit/s each; 2 joins at 3 s: 0, with 3 bits left, and 1, with 9, have 2 bit/s, as 2 has. 0 is done at 4.5 s. Then 1
    has 6 bits left and 2 has 9: 3 bit/s, 1 is done at 6.5 s; 2 uploads its last 3 bits by 7 s."""
    settings = Settings(spectrum="equal")
    plans = RoundPlan(ids(0, 2), Deadline(1.0)), RoundPlan(ids(1), AllOf(ids(0, 1, 2)))
    *_, record = simulate(Scripted(*plans), made(settings), rounds=2, settings=settings)
    assert record.merged.tolist() == [0, 1, 2]
    assert record.merged_arrived_s == pytest.approx([4.5, 6.5, 7.0])
    assert record.transmit_j == pytest.approx(10 * 3.5 + 20 * 4.5 + 30 * 4)


@pytest.mark.parametrize(("spectrum", "arrives_s", "sent_s"), [("equal", 3.5, 1.0), ("in-turn", 3.0, 0.0)])
@pytest.mark.usefixtures("_six_bits_a_second")
def test_canceled_upload_leaves_the_band(spectrum: str, arrives_s: float, sent_s: float) -> None:
    """0 and 1 are ready at 1 s; 1 is dropped at 2 s. Split equally, 0 has uploaded 3 bits by then and uploads the other
    9 in 1.5 s; 1 has been on air for 1 s. In turn, 1 was waiting all the time. A restored run knows as much."""
    settings = Settings(spectrum=spectrum)
    strategy = Scripted(RoundPlan(ids(0, 1), Deadline(2.0)), RoundPlan(ids(), Arrivals(1), drops=ids(1)))
    whole, restored = (make_loop(strategy, made(settings), settings=settings) for _ in range(2))
    whole.step()
    for loop in (resume(whole, restored), whole):
        (record,) = steps(loop, 1)
        assert (record.merged.tolist(), record.end_s, record.compute_j) == ([0], arrives_s, 2.0)
        assert record.transmit_j == pytest.approx(10 * (arrives_s - 1) + 20 * sent_s)


def test_uploads_in_turn_are_rejected_on_a_split_band() -> None:
    settings = Settings(num_clients=4, spectrum="equal")
    with pytest.raises(InputError, match="spectrum"):
        next(simulate(FedCSGreedy(60.0), draw_fleet(settings), rounds=1, settings=settings))


def test_rate_on_a_shared_band_by_hand() -> None:
    """Nine bands of 30 kHz, each with a noise of −100 dBm, split by 4: b = 9/4 bands with b times the noise."""
    settings = Settings(fading="rayleigh", spectrum="equal", coherence_s=1.0)
    fleet, clients = draw_fleet(settings, num_clients=9, seed=2), np.array([7, 3])
    loss_db = 128.1 + 37.6 * np.log10(fleet.population.distance_km[clients])
    gain = fading_gain(-np.inf, key(2, "fading"), clients, np.array(17))
    bands = 9 / 4
    snr = 0.1 * 10 ** (-loss_db / 10) * gain / (bands * 1e-13)
    band = Airtime(settings, fleet, fleet.population, seed=2)
    assert band.shared_rate_bps(clients, 17, 4) == pytest.approx(bands * 30e3 * np.log2(1 + snr), rel=1e-12)


@pytest.mark.parametrize("limits", [{}, {"_MAX_CACHED_ELEMENTS": 1}, {"MAX_CACHED_CLIENTS": 3}], ids=str)
def test_cached_rates_agree_with_single_computations(limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(fading="rician", speed_mps=(1.0, 15.0), shadowing_db=8.0, coherence_s=3.0, spectrum="equal")
    fleet, everybody = draw_fleet(settings, num_clients=9, seed=2), np.arange(9)

    def band() -> Airtime:
        return Airtime(settings, fleet, fleet.population, seed=2)

    asked = [(block, everybody[first::3]) for first in (2, 0, 1) for block in (40, 0, 15, 16, 41, 3)]
    alone = [[band().shared_rate_bps(clients[[place]], block, 4)[0] for place in range(3)] for block, clients in asked]
    for name, limit in limits.items():
        monkeypatch.setattr(airtime, name, limit)
    together = band()
    for (block, clients), rates in zip(asked, alone, strict=True):
        assert together.shared_rate_bps(clients, block, 4) == pytest.approx(rates, rel=1e-12)
        assert together.shared_rate_bps(clients[::-1], block, 4) == pytest.approx(rates[::-1], rel=1e-12)


def faded_end_s(settings: Settings, fleet: Fleet, client: int, begin_s: float, power_w: float = 0.1) -> float:
    """Return when 100 kbit are transferred: block after block, with the draws themselves."""
    distance_km, block_s = float(fleet.population.distance_km[client]), settings.radio.coherence_s
    snr = power_w * 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10) / 1e-13
    left_bits, now_s = 100e3, begin_s
    while True:
        block = int(now_s // block_s)
        k_db = -np.inf if settings.radio.rician_k_db is None else settings.radio.rician_k_db
        gain = fading_gain(k_db, key(0, "fading"), np.array([client]), np.array([block]))[0]
        rate_bps = 30e3 * np.log2(1 + snr * gain)
        sent_bits = rate_bps * ((block + 1) * block_s - now_s)
        if left_bits <= sent_bits:
            return float(now_s + left_bits / rate_bps)
        left_bits, now_s = left_bits - sent_bits, (block + 1) * block_s


@pytest.mark.parametrize(
    "changes",
    [
        {"fading": "rayleigh", "coherence_s": 0.5, "download": True},
        {"fading": "rician", "rician_k_db": 3.0, "coherence_s": 1.0},
    ],
    ids=lambda changes: changes["fading"],
)
def test_fading_is_followed_block_by_block(changes: dict[str, Any]) -> None:
    """Over two rounds of FedAvg; the download is on the same channel, with the power of the station."""
    settings = Settings(num_clients=4, **changes)
    fleet, now_s = draw_fleet(settings), 0.0
    for record in simulate(FedAvg(), fleet, rounds=2, settings=settings):
        downloads = settings.radio.download
        began_s = [faded_end_s(settings, fleet, client, now_s, 20.0) if downloads else now_s for client in range(4)]
        ready_s = np.array(began_s) + fleet.compute_s
        ends_s = np.array([faded_end_s(settings, fleet, client, float(ready_s[client])) for client in range(4)])
        order = np.argsort(ends_s)
        assert record.merged.tolist() == order.tolist()
        assert record.merged_arrived_s == pytest.approx(ends_s[order], rel=1e-12)
        assert record.transmit_j == pytest.approx(0.1 * (ends_s - ready_s).sum())
        assert record.compute_j == pytest.approx(fleet.compute_j.sum())
        now_s = record.end_s


def test_client_alone_on_a_shared_band_gets_a_full_band() -> None:
    ends_s = []
    for spectrum in ("fixed", "equal", "in-turn"):
        settings = Settings(num_clients=1, fading="rayleigh", coherence_s=0.1, spectrum=spectrum)
        ends_s.append(next(simulate(FedAvg(), draw_fleet(settings), rounds=1, settings=settings)).end_s)
    assert ends_s == pytest.approx([ends_s[0]] * 3, rel=1e-12)


def test_uploads_of_a_plan_in_turn_follow_the_channel() -> None:
    """One after the other on the whole band; estimates of the time on it are corrected by measured ones."""
    for spectrum in ("fixed", "in-turn"):
        settings = Settings(num_clients=4, fading="rayleigh", coherence_s=0.25, spectrum=spectrum)
        fleet = draw_fleet(settings)
        channel = Airtime(settings, fleet, fleet.population, seed=0)
        loop = make_loop(FedCSGreedy(60.0), fleet, settings=settings)
        (record,) = steps(loop, 1)
        free_s, sent_s, expected_s = 0.0, 0.0, []
        for client in record.started:
            begin_s = np.maximum(free_s, fleet.compute_s[[client]])
            free_s = float(channel.ends_s(np.array([client]), np.array([100e3]), begin_s, whole_band=True)[0])
            expected_s.append(free_s)
            sent_s += free_s - float(begin_s[0])
            assert loop.fleet.shared_upload_s[client] == pytest.approx(free_s - float(begin_s[0]))
        assert record.merged_arrived_s == pytest.approx(expected_s)
        assert record.transmit_j == pytest.approx(0.1 * sent_s)


def upload_s(*distance_km: float, power_w: float = 0.1) -> list[float]:
    """Return the upload times of 100 kbit on 30 kHz without fading."""
    snr = power_w * 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10) / 1e-13
    return (100e3 / (30e3 * np.log2(1 + snr))).tolist()


def test_client_that_walks_away_uploads_more_slowly(tmp_path: Path) -> None:
    """From 0.2 km to 1 km while it computes: the server expects the rate of 0.2 km."""
    positions = traced(tmp_path / "places.csv", "client,time_s,x_km,y_km 0,0,0.2,0 0,1,1,0")
    settings = Settings(num_clients=1, positions=positions)
    fleet, (near_s, far_s) = draw_fleet(settings), upload_s(0.2, 1.0)
    loop = make_loop(FedAvg(), fleet, settings=settings)
    (record,) = steps(loop, 1)
    assert record.end_s == pytest.approx(fleet.compute_s[0] + far_s)
    assert record.merged_expected_s == pytest.approx(fleet.compute_s + near_s)
    assert record.transmit_j == pytest.approx(0.1 * far_s)
    assert loop.fleet.upload_s[0] == pytest.approx(far_s)


def test_refreshed_estimates_follow_the_position_and_the_mean_over_fading(tmp_path: Path) -> None:
    """Client 0 is at 1 km when it is asked, at 40 s. The mean rate is b·e^(1/γ)·E1(1/γ)/ln 2."""
    positions = traced(tmp_path / "places.csv", "client,time_s,x_km,y_km 0,0,0.2,0 0,5,1,0 1,0,0.1,0")
    changes: dict[str, Any] = {"positions": positions, "download": True, "refresh_estimates_every_s": 40.0}
    settings = Settings(num_clients=2, fading="rayleigh", **changes)
    idle = [RoundPlan(ids(), Deadline(end_s)) for end_s in (40.0, 41.0)]
    loop = make_loop(Scripted(*idle), draw_fleet(settings), settings=settings)
    steps(loop, 2)
    for power_w, took_s in ((0.1, loop.fleet.upload_s), (20.0, loop.fleet.download_s)):
        snr = power_w * 10 ** (-(128.1 + 37.6 * np.log10([1.0, 0.1])) / 10) / 1e-13
        assert took_s == pytest.approx(100e3 / (30e3 * np.exp(1 / snr) * exp1(1 / snr) / np.log(2)), rel=1e-4)


def test_download_comes_first() -> None:
    fleet, paper = draw_fleet(Settings(download=True), 5), draw_fleet(Settings(), 5)
    assert fleet.download_s == pytest.approx(upload_s(*fleet.population.distance_km, power_w=20.0))
    assert fleet.latency_s == pytest.approx(fleet.download_s + paper.latency_s)
    for settings in (None, Settings(download=True), Settings(download=True, slowdown=1e-300)):
        record = next(simulate(FedAvg(), fleet, rounds=1, settings=settings))
        assert record.merged_arrived_s == pytest.approx(np.sort(fleet.latency_s))
        assert record.compute_j == pytest.approx(paper.compute_j.sum())
        assert record.transmit_j == pytest.approx(paper.transmit_j.sum())


def test_strategies_leave_room_for_the_download() -> None:
    """LESSON fitted, 2 + 2 s in slots of 10 s: 80 samples, 8 + 2 s; after a download of 3 s, 48: 3 + 4.8 + 2 s.
    FedCS, within 5 s: client 0 would upload from 5 to 6 s and is left out."""
    for download_s, arrived_s in ((0.0, 10.0), (3.0, 9.8)):
        fleet = make_fleet([4.0 + download_s, 25.0])
        fleet.compute_s[0], fleet.upload_s[0], fleet.download_s[0] = 2.0, 2.0, download_s
        record = next(simulate(LessonFitted(10.0), fleet, rounds=1))
        assert record.merged_arrived_s.tolist() == pytest.approx([arrived_s])
    fleet = make_fleet([4.0, 6.0], shared_upload_s=[1.0, 1.0])
    for download_s, started in ((0.0, [0, 1]), (3.0, [1])):
        fleet.download_s[0] = download_s
        for settings in (None, Settings(slowdown=1e-300)):
            record = next(simulate(FedCSGreedy(5.0), fleet, rounds=1, settings=settings))
            assert (record.started.tolist(), record.end_s) == (started, 4.0)


@pytest.mark.parametrize(
    "changes", [{"fading": "rician", "speed_mps": (5.0, 30.0)}, {"slowdown": 2.0, "download": True}], ids=str
)
def test_arrival_of_a_client_does_not_depend_on_others(changes: dict[str, Any]) -> None:
    settings = Settings(num_clients=5, **changes)
    arrived_s = []
    for who in (ids(3), ids(0, 1, 2, 3, 4)):
        strategy = Scripted(RoundPlan(who, AllOf(ids(3))))
        (record,) = simulate(strategy, draw_fleet(settings), rounds=1, seed=7, settings=settings)
        arrived_s.append(record.merged_arrived_s[record.merged == 3].tolist())
    assert arrived_s[0] == arrived_s[1] != []


def test_promoted_client_arrives_by_the_deadline() -> None:
    """It is assumed to take 5 s: almost without fading, it arrives after 5 s."""
    settings = Settings(num_clients=4, download=True, fading="rician", rician_k_db=300.0, ensure_first_tier=True)
    fleet = draw_fleet(settings).at_deadline(5.0)
    first, *others = simulate(Lesson(5.0), fleet, rounds=6, settings=settings)
    assert first.merged.tolist() == [fleet.promoted.client]
    assert first.merged_arrived_s == pytest.approx([5.0])
    assert [(record.retiered, record.note) for record in others] == [(0, "")] * 5
    assert "tier 1" in first.note


def test_shadowing_depends_on_the_fleet_and_not_on_the_run() -> None:
    settings = Settings(num_clients=6, shadowing_db=8.0, fading="rician", rician_k_db=100.0)
    for seed in (0, 1):
        (record,) = simulate(FedAvg(), draw_fleet(settings), rounds=1, seed=seed, settings=settings)
        assert record.merged_arrived_s == pytest.approx(record.merged_expected_s, rel=1e-3)


SNR_1, SNR_3, SNR_15 = (f"{10 * np.log10(snr):.15f}" for snr in (1, 3, 15))
"""In dB: 1, 2 and 4 bit/s per Hz; on 10 Hz, 10 bit/s until 2 s, 20 until 4 s and 40 until 6 s, and so on."""
CHANGING = f"a,0,{SNR_1} a,2,{SNR_3} a,4,{SNR_15}"


def computing_1_s(settings: Settings, num_clients: int) -> Fleet:
    fleet, compute_s = draw_fleet(settings, num_clients), np.ones(num_clients)
    return replace(fleet, compute_s=compute_s, latency_s=fleet.download_s + compute_s + fleet.upload_s)


@pytest.mark.parametrize(
    ("rows", "changes", "arrived_s"),
    [
        # From 1 s: 10 bits by 2 s, 40 by 4 s, the last 20 in 0.5 s. From 5.5 s: 20 by 6 s, 20 by 8 s, 30 in 1.5 s.
        (CHANGING, {}, [[4.5], [9.5]]),
        # The download of 30 bits ends at 2.5 s. After 1 s of computing, 10 bits by 4 s, the other 20 by 4.5 s.
        (CHANGING, {"download": True, "model_bits": 30.0}, [[4.5]]),
        # In blocks of 4 s, each with the SNR at its start: 30 bits by 4 s, the other 40 in 1 s.
        (CHANGING, {"coherence_s": 4.0}, [[5.0]]),
        # Two clients split 20 Hz: 20 bit/s each, 2 s for 40 bits.
        (f"a,0,{SNR_3} b,0,{SNR_3}", {"spectrum": "equal", "model_bits": 40.0}, [[3.0, 3.0]]),
    ],
    ids=["upload", "download", "blocks", "shared band"],
)
def test_uploads_over_an_snr_trace(
    tmp_path: Path, rows: str, changes: dict[str, Any], arrived_s: list[list[float]]
) -> None:
    trace = traced(tmp_path / "snr.csv", f"trace,time_s,snr_db {rows}")
    parts = {"snr_start": "beginning", "bandwidth_hz": 10.0, "model_bits": 70.0} | changes
    settings = Settings(snr_trace=trace, **parts)
    fleet = computing_1_s(settings, len(arrived_s[0]))
    records = list(simulate(FedAvg(), fleet, rounds=len(arrived_s), settings=settings))
    assert [record.merged_arrived_s.tolist() for record in records] == [pytest.approx(one) for one in arrived_s]
    if not changes:
        assert [record.transmit_j for record in records] == pytest.approx([0.1 * 3.5, 0.1 * 4.0])
        assert fleet.upload_s == pytest.approx([3.0]), "70 bits at a mean of (2·10 + 2·20 + 2·40) / 6 bit/s"


def test_every_transfer_has_the_rate_of_its_phone() -> None:
    """The n-th upload of client i takes 2 Mbit / rate(i, n), at 0.1 W."""
    settings = Settings(preset="phones", model_bits=2e6, download=True)
    rates, everybody, start_s = PhoneRates(3, 0), np.arange(3), 0.0
    record: RoundRecord
    for index, record in enumerate(simulate(FedAvg(), computing_1_s(settings, 3), rounds=3, settings=settings)):
        which = np.full(3, index)
        up_s, down_s = (2e6 / rates.rate_bps(way, everybody, which) for way in ("up", "down"))
        assert record.merged_arrived_s == pytest.approx(np.sort(start_s + down_s + 1 + up_s))
        assert record.transmit_j == pytest.approx(0.1 * up_s.sum())
        start_s = record.end_s
