"""Uploads on channels that change, on a band that is shared, and after a download, each worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import make_fleet, traced
from helpers.scripted import Scripted, ids
from lesson import FedAvg, Fleet, InputError, Lesson, Settings, Simulation, draw_fleet, radio, simulate
from lesson.clock.worlds.airtime import Airtime
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key
from lesson.strategies.base import AllOf, Arrivals, Deadline, RoundPlan
from lesson.strategies.extensions.lesson_filled import LessonFilled
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedcs_greedy import FedCSGreedy
from lesson.strategies.safa import Safa


def made(settings: Settings) -> Fleet:
    """Three clients of 1 W for computing, for 1, 1 and 3 s, and 10, 20 and 30 W for sending 12 bits, alone in 2 s."""
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
    """For all together, whoever they are."""

    def rate_bps(self: Airtime, clients: IntArray, block: int, num_sharing: int) -> FloatArray:
        return np.full(len(clients), 6.0 / num_sharing)

    monkeypatch.setattr(Airtime, "shared_rate_bps", rate_bps)


@pytest.mark.usefixtures("_six_bits_a_second")
def test_a_band_that_is_split_equally() -> None:
    """0 and 1 send from 1 s on, 3 bit/s each; at 3 s both have 6 bits left and 2 joins: 2 bit/s each. At 6 s 0 and 1
    are through, 2 has 6 bits left, which alone take 1 s. On air for 5, 5 and 4 s."""
    settings = Settings(spectrum="equal")
    simulation = Simulation(FedAvg(), made(settings), settings=settings)
    record = simulation.step()
    assert record is not None
    assert (record.merged.tolist(), record.merged_arrived_s.tolist()) == ([0, 1, 2], [6.0, 6.0, 7.0])
    assert (record.compute_j, record.transmit_j) == (1 + 1 + 3, 10 * 5 + 20 * 5 + 30 * 4)
    assert simulation.fleet.upload_s.tolist() == [5.0, 5.0, 4.0]
    assert simulation.fleet.latency_s.tolist() == [6.0, 6.0, 7.0]
    # It continues in the same way: the band is free again.
    assert simulation.step().merged_arrived_s.tolist() == [13.0, 13.0, 14.0]  # type: ignore[union-attr]


@pytest.mark.usefixtures("_six_bits_a_second")
def test_a_band_that_is_used_in_turn() -> None:
    """0 sends from 1 to 3 s, 1, ready at 1 s, from 3 to 5 s, 2, ready at 3 s, from 5 to 7 s. Waiting makes the latency
    longer, not the time on air."""
    settings = Settings(spectrum="in-turn")
    simulation = Simulation(FedAvg(), made(settings), settings=settings)
    record = simulation.step()
    assert record is not None
    assert record.merged_arrived_s.tolist() == [3.0, 5.0, 7.0]
    assert (record.compute_j, record.transmit_j) == (1 + 1 + 3, 2 * (10 + 20 + 30))
    assert simulation.fleet.upload_s.tolist() == [2.0, 4.0, 4.0]
    assert simulation.fleet.latency_s.tolist() == [3.0, 5.0, 7.0]


@pytest.mark.usefixtures("_six_bits_a_second")
def test_an_upload_that_starts_later_slows_down_the_others() -> None:
    """Split equally. 0 and 2 start at 0 s: 0 sends alone from 1 s, 6 bits by 2 s. 1, started at 1 s, joins then: 3
    bit/s each; 2 joins at 3 s: 0, with 3 bits left, and 1, with 9, have 2 bit/s, as 2 has. 0 is through at 4.5 s. Then
    1 has 6 bits left and 2 has 9: 3 bit/s, 1 is through at 6.5 s; 2 sends its last 3 bits by 7 s."""
    settings = Settings(spectrum="equal")
    begin = Scripted(Deadline(0), plan=RoundPlan(ids(0, 2), Deadline(1.0)))
    simulation = Simulation(begin, made(settings), settings=settings)
    simulation.step()
    simulation.strategy = Scripted(Deadline(0), plan=RoundPlan(ids(1), AllOf(ids(0, 1, 2))))
    record = simulation.step()
    assert record is not None
    assert record.merged.tolist() == [0, 1, 2]
    assert record.merged_arrived_s == pytest.approx([4.5, 6.5, 7.0])
    assert record.transmit_j == pytest.approx(10 * 3.5 + 20 * 4.5 + 30 * 4)


@pytest.mark.parametrize(("spectrum", "arrives_s", "sent_s"), [("equal", 3.5, 1.0), ("in-turn", 3.0, 0.0)])
@pytest.mark.usefixtures("_six_bits_a_second")
def test_a_canceled_upload_leaves_the_band(spectrum: str, arrives_s: float, sent_s: float) -> None:
    """0 and 1 are ready at 1 s; 1 is called back at 2 s. Split equally, 0 has sent 3 bits by then and sends the other 9
    in 1.5 s; 1 has been on air for 1 s. In turn, 1 was waiting all the time. A restored simulation knows as much."""
    settings = Settings(spectrum=spectrum)
    simulation = Simulation(
        Scripted(Deadline(0), plan=RoundPlan(ids(0, 1), Deadline(2.0))), made(settings), settings=settings
    )
    simulation.step()
    drop = Scripted(Deadline(0), plan=RoundPlan(ids(), Arrivals(1), drops=ids(1)))
    restored = Simulation(drop, made(settings), settings=settings)
    restored.restore(*simulation.state())
    simulation.strategy = drop
    for record in (simulation.step(), restored.step()):
        assert record is not None
        assert (record.merged.tolist(), record.end_s) == ([0], arrives_s)
        assert record.compute_j == 2.0
        assert record.transmit_j == pytest.approx(10 * (arrives_s - 1) + 20 * sent_s)


@pytest.mark.parametrize("sharing", [1, 2, 3])
def test_the_rate_on_a_shared_band_is_that_of_its_share(sharing: int) -> None:
    """Of three clients' bands b a third of the band is b, with noise N0; the whole is 3·b with 3·N0."""
    settings = Settings(spectrum="equal")
    fleet = draw_fleet(settings, 3)
    people = fleet.population
    assert people is not None
    airtime = Airtime(settings, fleet, people, seed=0)
    snr = 0.1 * 10 ** (-(128.1 + 37.6 * np.log10(people.distance_km)) / 10) / 1e-13
    bands = 3 / sharing
    expected_bps = bands * 30e3 * np.log2(1 + snr / bands)
    assert airtime.shared_rate_bps(ids(0, 1, 2), 0, sharing) == pytest.approx(expected_bps)
    own_s = airtime.uploaded_s(ids(0, 1, 2), np.zeros(3))
    assert own_s == pytest.approx(fleet.upload_s)
    assert airtime.uploaded_s(ids(0, 1, 2), np.zeros(3), whole_band=True) == pytest.approx(fleet.shared_upload_s)


def faded_end_s(settings: Settings, fleet: Fleet, client: int, begin_s: float, power_w: float = 0.1) -> float:
    """When 100 kbit are through: block after block, with the draws themselves."""
    assert fleet.population is not None
    distance_km = float(fleet.population.distance_km[client])
    snr = power_w * 10 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10) / 1e-13
    left_bits, now_s = 100e3, begin_s
    while True:
        block = int(now_s // settings.radio.coherence_s)
        kind, ricean = settings.radio.fading, settings.radio.rician_k_db
        gain = radio.fading_gain(kind, ricean, key(0, "fading"), np.array([client]), np.array([block]))[0]
        rate_bps = 30e3 * np.log2(1 + snr * gain)
        end_s = (block + 1) * settings.radio.coherence_s
        if left_bits <= rate_bps * (end_s - now_s):
            return float(now_s + left_bits / rate_bps)
        left_bits -= rate_bps * (end_s - now_s)
        now_s = end_s


FADING: list[dict[str, Any]] = [{"fading": "rayleigh", "coherence_s": 0.5}, {"fading": "rician", "rician_k_db": 3.0}]


@pytest.mark.parametrize("changes", FADING, ids=lambda changes: changes["fading"])
@pytest.mark.parametrize("download", [False, True])
def test_fading_is_followed_block_by_block(changes: dict[str, Any], download: bool) -> None:
    """Over two rounds of FedAvg; the download is on the same channel, with the power of the station."""
    settings = Settings(num_clients=4, download=download, **changes)
    fleet = draw_fleet(settings)
    now_s = 0.0
    for record in simulate(FedAvg(), fleet, rounds=2, settings=settings):
        began_s = [faded_end_s(settings, fleet, client, now_s, 20.0) if download else now_s for client in range(4)]
        ready_s = np.array(began_s) + fleet.compute_s
        ends_s = np.array([faded_end_s(settings, fleet, client, float(ready_s[client])) for client in range(4)])
        order = np.argsort(ends_s)
        assert record.merged.tolist() == order.tolist()
        assert record.merged_arrived_s == pytest.approx(ends_s[order], rel=1e-12)
        assert record.transmit_j == pytest.approx(0.1 * (ends_s - ready_s).sum())
        assert record.compute_j == pytest.approx(fleet.compute_j.sum())
        now_s = record.end_s


def test_fading_on_a_shared_band_follows_the_same_draws() -> None:
    """One client alone on its band, whether it is called shared or not, over many blocks."""
    ends_s = []
    for spectrum in ("fixed", "equal", "in-turn"):
        settings = Settings(num_clients=1, fading="rayleigh", coherence_s=0.1, spectrum=spectrum)
        ends_s.append(next(simulate(FedAvg(), draw_fleet(settings), rounds=1, settings=settings)).end_s)
    assert ends_s == pytest.approx([ends_s[0]] * 3, rel=1e-12)


def test_a_client_that_walks_away_sends_more_slowly(tmp_path: Path) -> None:
    """From 0.2 km to 1 km, there from 1 s on; while it computes. All is sent at the rate of 1 km, 6.2 kbit/s, and the
    server, which does not refresh its estimates, expected that of 0.2 km."""
    positions = traced(tmp_path / "places.csv", "client,time_s,x_km,y_km 0,0,0.2,0 0,1,1,0")
    settings = Settings(num_clients=1, positions=positions)
    fleet = draw_fleet(settings)
    assert fleet.population is not None
    assert (fleet.population.x_km.tolist(), fleet.population.y_km.tolist()) == ([0.2], [0.0])
    snr = np.array([0.1 * 10 ** (-(128.1 + 37.6 * np.log10(km)) / 10) / 1e-13 for km in (0.2, 1.0)])
    near_s, far_s = 100e3 / (30e3 * np.log2(1 + snr))
    assert fleet.compute_s[0] > 1.0
    assert fleet.upload_s[0] == pytest.approx(near_s)
    simulation = Simulation(FedAvg(), fleet, settings=settings)
    record = simulation.step()
    assert record is not None
    assert record.end_s == pytest.approx(fleet.compute_s[0] + far_s)
    assert record.merged_expected_s == pytest.approx(fleet.compute_s + near_s)
    assert record.transmit_j == pytest.approx(0.1 * far_s)
    assert simulation.fleet.upload_s[0] == pytest.approx(far_s)


def test_refreshed_estimates_use_the_mean_channel_at_the_current_position(tmp_path: Path) -> None:
    """Client 0 stands at 1 km when it is asked, at 40 s, in the middle of nothing; fading is not told."""
    text = "client,time_s,x_km,y_km 0,0,0.2,0 0,5,1,0 1,0,0.1,0"
    changes: dict[str, Any] = {"positions": traced(tmp_path / "places.csv", text), "download": True}
    settings = Settings(num_clients=2, fading="rayleigh", refresh_estimates_every_s=40.0, **changes)
    plans = [RoundPlan(ids(), Deadline(40.0)), RoundPlan(ids(), Deadline(41.0))]
    simulation = Simulation(Scripted(Deadline(0), plan=plans[0]), draw_fleet(settings), settings=settings)
    simulation.step()
    simulation.strategy = Scripted(Deadline(0), plan=plans[1])
    simulation.step()
    gain = 10 ** (-128.1 / 10)
    assert simulation.fleet.upload_s[0] == pytest.approx(100e3 / (30e3 * np.log2(1 + 0.1 * gain / 1e-13)))
    assert simulation.fleet.download_s[0] == pytest.approx(100e3 / (30e3 * np.log2(1 + 20 * gain / 1e-13)))
    assert simulation.fleet.upload_s[1] == pytest.approx(draw_fleet(settings).upload_s[1])


def test_a_download_comes_first() -> None:
    """Of 20 W at the station: 100 kbit / (30 kHz · log2(1 + 200·SNR)). The paper's fleet is the same without it."""
    fleet, paper = draw_fleet(Settings(download=True), 5), draw_fleet(Settings(), 5)
    assert fleet.population is not None
    snr = 20.0 * 10 ** (-(128.1 + 37.6 * np.log10(fleet.population.distance_km)) / 10) / 1e-13
    assert fleet.download_s == pytest.approx(100e3 / (30e3 * np.log2(1 + snr)))
    assert fleet.latency_s == pytest.approx(fleet.download_s + paper.latency_s)
    assert not paper.download_s.any()
    for settings in (None, Settings(download=True), Settings(download=True, slowdown=1e-300)):
        record = next(simulate(FedAvg(), fleet, rounds=1, settings=settings))
        assert record.merged_arrived_s == pytest.approx(np.sort(fleet.latency_s))
        assert record.compute_j == pytest.approx(paper.compute_j.sum())
        assert record.transmit_j == pytest.approx(paper.transmit_j.sum())


def with_download(fleet: Fleet, download_s: list[float]) -> Fleet:
    seconds = np.array(download_s)
    return replace(fleet, download_s=seconds, latency_s=fleet.latency_s + seconds)


def test_filled_slots_leave_room_for_the_download() -> None:
    """2 + 2 s in slots of 10 s: four minibatches fit, 4·2 + 2; after a download of 3 s two, 3 + 2·2 + 2 s."""
    for download_s, lasts_s in ((0.0, 10.0), (3.0, 9.0)):
        fleet = with_download(make_fleet([4.0, 15.0]), [download_s, 0.0])
        record = next(simulate(LessonFilled(10.0), fleet, rounds=1))
        assert (record.merged.tolist(), record.merged_arrived_s.tolist()) == ([0], [lasts_s])
        assert record.compute_j == (4.0 if download_s == 0 else 2.0)


def test_greedy_fedcs_schedules_uploads_after_the_download() -> None:
    """Computed after 2 and 3 s, 1 s each to send: 0 from 2 to 3, 1 from 3 to 4. With 3 s of download for client 0, 1
    sends from 3 to 4 and 0 from 5 to 6; within 5 s it is left out."""
    plain = make_fleet([4.0, 6.0], shared_upload_s=[1.0, 1.0])
    later = with_download(plain, [3.0, 0.0])
    for fleet, deadline_s, started, end_s in [(plain, 5, [0, 1], 4), (later, 5, [1], 4), (later, 6, [1, 0], 6)]:
        for settings in (None, Settings(slowdown=1e-300)):
            record = next(simulate(FedCSGreedy(float(deadline_s)), fleet, rounds=1, settings=settings))
            assert (record.started.tolist(), record.end_s) == (started, end_s)


@pytest.mark.parametrize("settings", [None, Settings(slowdown=1e-300)], ids=["as expected", "varying"])
def test_training_canceled_during_the_download_costs_no_energy(settings: Settings | None) -> None:
    """Rounds of 1 s. At 3 s clients 2 and 3 are called back: 2 after 3 s of its download of 4 s; 3, with one of 1 s,
    after 2 of 50 s of computing for 4 J."""
    fleet = with_download(make_fleet([1.0, 1.0, 100.0, 100.0]), [0.0, 0.0, 4.0, 1.0])
    simulation = Simulation(Safa(lag_tolerance=3, round_limit_s=1.0), fleet, settings=settings)
    records = [simulation.step() for _ in range(4)]
    assert records[3] is not None
    assert records[3].compute_j == pytest.approx(1 + 2 + 2 / 50 * 4)


def test_uploads_of_a_plan_in_turn_follow_the_channel() -> None:
    """FedCS as its authors have it, on a channel that fades: one after the other on the whole band, with the estimated
    upload times on it corrected by measured ones."""
    settings = Settings(num_clients=4, fading="rayleigh", coherence_s=0.25)
    fleet = draw_fleet(settings)
    people = fleet.population
    assert people is not None
    airtime = Airtime(settings, fleet, people, seed=0)
    for spectrum in ("fixed", "in-turn"):
        changed = settings.model_copy(update={"spectrum": spectrum})
        simulation = Simulation(FedCSGreedy(60.0), fleet, settings=changed)
        record = simulation.step()
        assert record is not None
        free_s, sent_s, expected_s = 0.0, 0.0, []
        for client in record.started:
            begin_s = np.maximum(free_s, fleet.compute_s[[client]])
            end_s = airtime.uploaded_s(np.array([client]), begin_s, whole_band=True)
            sent_s += float(end_s[0] - begin_s[0])
            expected_s.append(free_s := float(end_s[0]))
            assert simulation.fleet.shared_upload_s[client] == pytest.approx(float(end_s[0] - begin_s[0]))
        assert record.merged_arrived_s == pytest.approx(expected_s)
        assert record.transmit_j == pytest.approx(0.1 * sent_s)


def test_a_plan_in_turn_on_a_band_that_is_split_is_rejected() -> None:
    settings = Settings(num_clients=4, spectrum="equal")
    with pytest.raises(InputError, match="spectrum must not be 'equal' with a strategy whose clients upload in turn"):
        next(simulate(FedCSGreedy(60.0), draw_fleet(settings), rounds=1, settings=settings))


@pytest.mark.parametrize("changes", [*FADING, {"speed_mps": (5.0, 30.0)}, {"slowdown": 2.0, "download": True}])
def test_what_happens_to_a_client_does_not_depend_on_others(changes: dict[str, Any]) -> None:
    """With a band of its own: the same client, started at the same times, with and without the others."""
    settings = Settings(num_clients=5, **changes)
    fleet = draw_fleet(settings)
    arrived_s = []
    for who in (ids(3), ids(0, 1, 2, 3, 4)):
        plan = RoundPlan(who, AllOf(ids(3)))
        simulation = Simulation(Scripted(Deadline(0), plan=plan), fleet, seed=7, settings=settings)
        record = simulation.step()
        assert record is not None
        arrived_s.append(record.merged_arrived_s[record.merged == 3].tolist())
    assert arrived_s[0] == arrived_s[1] != []


def test_a_promoted_client_has_less_to_send() -> None:
    """Taken as 5 s, whatever it is: without fading it is there after 5 s, whether times vary or not."""
    settings = Settings(num_clients=4, download=True, fading="rician", rician_k_db=300.0, ensure_first_tier=True)
    fleet = draw_fleet(settings).at_deadline(5.0)
    assert fleet.promoted is not None
    simulation = Simulation(Lesson(5.0), fleet, settings=settings)
    record = simulation.step()
    assert record is not None
    assert record.merged.tolist() == [fleet.promoted.client]
    assert record.merged_arrived_s == pytest.approx([5.0])
    for _ in range(5):
        assert simulation.step().retiered == 0  # type: ignore[union-attr]


def test_events_on_a_shared_band_come_one_by_one() -> None:
    """FedAsync merges each as it comes; the same arrivals as FedAvg's first round, until somebody starts again."""
    settings = Settings(num_clients=5, spectrum="in-turn")
    fleet = draw_fleet(settings)
    first = next(simulate(FedAvg(), fleet, rounds=1, settings=settings))
    records = list(simulate(FedAsync(), fleet, rounds=20, settings=settings))
    assert (records[0].merged[0], records[0].end_s) == (first.merged[0], first.merged_arrived_s[0])
    ends_s = [record.end_s for record in records]
    assert ends_s == sorted(ends_s)
    assert ends_s[0] > 0
