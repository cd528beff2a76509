"""Uploads over SNR traces and at the data rates of phones, worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fleets import traced
from lesson import FedAvg, Fleet, InputError, Lesson, Settings, Simulation, draw_fleet, radio
from lesson.cli import main
from lesson.fleet.phones import PhoneRates

SNR_1, SNR_3, SNR_15 = (f"{10 * np.log10(snr):.15f}" for snr in (1, 3, 15))
"""In dB: 1, 2 and 4 bit/s per Hz."""
ROWS = f"trace,time_s,snr_db a,0,{SNR_1} a,2,{SNR_3} a,4,{SNR_15}"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def with_trace(rows: str = ROWS, **changes: Any) -> Settings:
    traced(Path("snr.csv"), rows)
    changes = {"snr_start": "beginning", "bandwidth_hz": 10.0, "model_bits": 70.0} | changes
    return Settings(snr_trace="snr.csv", **changes)


def computing_1_s(settings: Settings, num_clients: int) -> Fleet:
    fleet, compute_s = draw_fleet(settings, num_clients), np.ones(num_clients)
    return replace(fleet, compute_s=compute_s, latency_s=fleet.download_s + compute_s + fleet.upload_s)


def test_an_upload_over_a_changing_snr() -> None:
    """On 10 Hz, rates are 10 bit/s until 2 s, 20 until 4 s and 40 until 6 s, then again 10. The upload begins at 1 s:
    10 bits by 2 s, 40 more by 4 s, the last 20 of 70 in 0.5 s. The next begins at 5.5 s: 20 bits by 6 s, 20 by 8 s,
    the last 30 at 20 bit/s in 1.5 s: 9.5 s."""
    settings = with_trace()
    simulation = Simulation(FedAvg(), computing_1_s(settings, 1), settings=settings)
    first, second = simulation.step(), simulation.step()
    assert first is not None
    assert second is not None
    assert first.merged_arrived_s == pytest.approx([4.5])
    assert first.transmit_j == pytest.approx(0.1 * 3.5)
    assert second.merged_arrived_s == pytest.approx([9.5])
    assert second.transmit_j == pytest.approx(0.1 * 4.0)


def test_the_first_estimate_is_the_upload_at_the_mean_rate_and_the_next_the_measured_one() -> None:
    """The mean rate is (2·10 + 2·20 + 2·40)/6 = 70/3 bit/s: 3 s for 70 bits. The first upload takes 3.5 s."""
    settings = with_trace()
    fleet = computing_1_s(settings, 1)
    assert fleet.upload_s == pytest.approx([3.0])
    simulation = Simulation(Lesson(4.0), fleet, settings=settings)
    record = simulation.step()
    assert record is not None
    assert (record.end_s, record.merged.tolist()) == (4.0, [])
    record = simulation.step()
    assert record is not None
    assert record.merged.tolist() == [0]
    assert simulation.fleet.upload_s == pytest.approx([3.5])


@pytest.mark.parametrize("start", ["drawn", "beginning"])
def test_a_constant_snr_is_a_standing_client_with_that_snr(start: str) -> None:
    """Three clients whose path loss gives some SNR: traces with the same SNR give the same rounds."""
    fleet = draw_fleet(Settings(), 3)
    people = fleet.population
    assert people is not None
    loss_db = radio.log_distance_path_loss_db(people.distance_km, 128.1, 37.6)
    snr_db = 10 * np.log10(radio.signal_to_noise(people.power_w, radio.gain(loss_db), radio.watts(-100)))
    rows = [f"{client},{time_s},{snr!r}" for client, snr in enumerate(snr_db.tolist()) for time_s in (0, 7, 9)]
    settings = with_trace(" ".join(["trace,time_s,snr_db", *rows]), snr_start=start, bandwidth_hz=30e3, model_bits=1e5)
    measured = draw_fleet(settings, 3)
    for name in ("upload_s", "shared_upload_s", "latency_s", "transmit_j"):
        assert getattr(measured, name) == pytest.approx(getattr(fleet, name))
    expected, varying = Simulation(FedAvg(), fleet), Simulation(FedAvg(), measured, settings=settings)
    for _ in range(3):
        one, other = expected.step(), varying.step()
        assert one is not None
        assert other is not None
        assert other.merged_arrived_s == pytest.approx(one.merged_arrived_s)
        assert (other.compute_j, other.transmit_j) == pytest.approx((one.compute_j, one.transmit_j))


def test_clients_of_a_trace_share_a_band() -> None:
    """Two clients with an SNR of 3 on their own 10 Hz split 20 Hz: 10 Hz and 20 bit/s each, 2 s for 40 bits."""
    settings = with_trace(f"trace,time_s,snr_db a,0,{SNR_3} b,0,{SNR_3}", spectrum="equal", model_bits=40.0)
    record = Simulation(FedAvg(), computing_1_s(settings, 2), settings=settings).step()
    assert record is not None
    assert record.merged_arrived_s == pytest.approx([3.0, 3.0])


def test_downloads_have_the_same_snr() -> None:
    """10 bit/s until 2 s, then 20: the download of 30 bits ends at 2.5 s. After 1 s of computing, 10 bits by 4 s, the
    other 20 at 40 bit/s by 4.5 s."""
    settings = with_trace(download=True, model_bits=30.0)
    record = Simulation(FedAvg(), computing_1_s(settings, 1), settings=settings).step()
    assert record is not None
    assert record.merged_arrived_s == pytest.approx([4.5])


def test_the_channel_is_that_at_the_start_of_each_block() -> None:
    """In blocks of 4 s: 10 bit/s from 0 to 4 s, 40 from 4 to 8 s: 30 bits by 4 s, the other 40 by 5 s."""
    settings = with_trace(coherence_s=4.0)
    record = Simulation(FedAvg(), computing_1_s(settings, 1), settings=settings).step()
    assert record is not None
    assert record.merged_arrived_s == pytest.approx([5.0])


def phones(**changes: Any) -> Settings:
    return Settings(preset="phones", model_bits=2e6, **changes)


def test_every_upload_has_the_rate_of_its_phone() -> None:
    """The n-th upload of client i takes 2 Mbit / rate(i, n), and costs that long at 0.1 W."""
    settings = phones()
    simulation, rates = Simulation(FedAvg(), computing_1_s(settings, 3), settings=settings), PhoneRates(3, 0)
    everybody, start_s = np.arange(3), 0.0
    for index in range(4):
        record = simulation.step()
        assert record is not None
        upload_s = 2e6 / rates.rate_bps("up", everybody, np.full(3, index))
        arrived_s = dict(zip(record.merged.tolist(), record.merged_arrived_s.tolist(), strict=True))
        assert [arrived_s[client] for client in range(3)] == pytest.approx(start_s + 1 + upload_s)
        assert record.transmit_j == pytest.approx(0.1 * upload_s.sum())
        assert record.end_s == pytest.approx(start_s + 1 + upload_s.max())
        start_s = record.end_s


def test_downloads_of_phones_have_downlink_rates() -> None:
    settings = phones(download=True)
    record = Simulation(FedAvg(), computing_1_s(settings, 1), settings=settings).step()
    assert record is not None
    rates, client = PhoneRates(1, 0), np.array([0])
    both_s = 2e6 / rates.rate_bps("down", client, client) + 2e6 / rates.rate_bps("up", client, client)
    assert record.merged_arrived_s == pytest.approx(1 + both_s)


def test_a_promoted_phone_is_as_fast_as_assumed() -> None:
    """No phone meets 0.1 s, so the fastest is assumed to: its uploads shrink by the same factor."""
    settings = phones(ensure_first_tier=True, deadline_s=0.1)
    nominal = draw_fleet(settings, 5)
    fleet = nominal.at_deadline(0.1)
    assert fleet.promoted is not None
    client = fleet.promoted.client
    factor = 0.1 / fleet.promoted.latency_s
    record = next(
        record
        for record in iter(Simulation(Lesson(0.1), fleet, settings=settings).step, None)
        if client in record.merged.tolist()
    )
    place = record.merged.tolist().index(client)
    rate_bps = PhoneRates(5, 0).rate_bps("up", np.array([client]), np.array([0]))[0]
    took_s = factor * (nominal.compute_s[client] + 2e6 / rate_bps)
    assert record.merged_arrived_s[place] - record.merged_started_s[place] == pytest.approx(took_s)


@pytest.mark.parametrize("name", ["fading", "shadowing_db", "speed_mps", "positions", "trace", "spectrum"])
def test_measured_channels_replace_the_models(name: str) -> None:
    value = {"fading": "rayleigh", "shadowing_db": 3.0, "speed_mps": (1.0, 2.0), "spectrum": "equal"}.get(name, "a.csv")
    with pytest.raises(InputError, match=rf'throughput = "phones" cannot be combined with {name}: measured data rates'):
        phones(**{name: value})
    if name != "spectrum":
        with pytest.raises(InputError, match=rf"snr_trace cannot be combined with {name}: the trace already sets the"):
            with_trace(**{name: value})
    with pytest.raises(InputError, match="snr_trace cannot be combined with throughput"):
        with_trace(throughput="phones")


def test_settings_without_effect_on_measured_channels_are_reported() -> None:
    needs = 'has no effect unless throughput is "model" and snr_trace is unset'
    assert with_trace(noise_dbm=-90.0, path_loss="umi").caveats() == [
        f"path_loss = umi {needs}",
        f"noise_dbm = -90.0 {needs}",
    ]
    assert with_trace(download=True, station_power_w=5.0).caveats() == [f"station_power_w = 5.0 {needs}"]
    assert not with_trace(coherence_s=2.0).caveats()
    assert phones(bandwidth_hz=1e6).caveats() == ['bandwidth_hz = 1000000.0 has no effect unless throughput is "model"']
    assert Settings(snr_start="beginning").caveats() == ["snr_start = beginning has no effect unless snr_trace is set"]
    assert not Settings(preset="phones").caveats()
    assert not with_trace(preset="printed").caveats()
    assert len(with_trace(preset="printed", noise_dbm=-100.0).caveats()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("radio.snr_trace=snr.csv", "[radio] snr_trace cannot be combined with measured latencies, which already"),
        ("radio.throughput=phones", "[radio] throughput cannot be combined with measured latencies, which already"),
    ],
)
def test_measured_latencies_already_include_uploads(
    change: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.csv").write_text("client,latency_s\na,3\nb,9\n")
    assert main(["plan", "--latencies", "fleet.csv", "--set", change]) == 2
    output = capsys.readouterr().err
    assert reason in output
    assert output.count("\n") == 1


def test_positions_of_clients_with_measured_channels_are_not_shown() -> None:
    for settings in (with_trace(), phones()):
        people = draw_fleet(settings, 2).population
        assert people is not None
        assert not people.is_placed
    assert draw_fleet(Settings(), 2).population.is_placed  # type: ignore[union-attr]
