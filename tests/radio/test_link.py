"""Worked values of Eq. (5) and (6) at 30 kHz and 100 kbit.

released, d = 1 km: path loss 128.1 + 37.6·log10(1) = 128.1 dB; gain 10^-12.81 = 1.548817e-13; received
0.1 W · 1.548817e-13 = 1.548817e-14 W over N0 = 10^((-100-30)/10) = 1e-13 W gives 0.1548817; rate
30000·log2(1.1548817) = 6232.35 bit/s; upload 100000 / 6232.35 = 16.0453 s.
"""

import numpy as np
import pytest

from lesson.radio.link import Link, gain, rate_bps, signal_to_noise, upload_s, watts
from lesson.radio.path_loss import log_distance_path_loss_db
from lesson.settings.sections import RadioSettings


def one(value: float) -> np.ndarray:
    return np.array([value])


def path_loss(distance_km: float) -> np.ndarray:
    return log_distance_path_loss_db(one(distance_km), 128.1, 37.6)


def upload(distance_km: float, power_w: float, noise_dbm: float) -> float:
    snr = signal_to_noise(one(power_w), gain(path_loss(distance_km)), watts(noise_dbm))
    return float(upload_s(100e3, rate_bps(30e3, snr))[0])


def test_each_step_at_one_kilometer() -> None:
    assert path_loss(1.0)[0] == pytest.approx(128.1, rel=1e-12)
    assert path_loss(10.0)[0] == pytest.approx(128.1 + 37.6)
    assert gain(one(128.1))[0] == pytest.approx(1.548817e-13, rel=1e-6)
    assert watts(-100) == pytest.approx(1e-13, rel=1e-12)
    assert watts(30) == pytest.approx(1.0, rel=1e-12)
    assert signal_to_noise(one(0.1), one(1.548817e-13), 1e-13)[0] == pytest.approx(0.154882, rel=1e-5)
    assert rate_bps(30e3, one(0.154882))[0] == pytest.approx(6232.35, rel=1e-5)
    assert upload_s(100e3, one(6232.35))[0] == pytest.approx(16.0453, rel=1e-5)


@pytest.mark.parametrize(
    ("distance_km", "power_w", "noise_dbm", "expected_s"),
    [(1.0, 0.1, -100, 16.0453), (0.5, 0.1, -100, 2.04312), (1.0, 1.0, -94, 7.03096)],
)
def test_upload_time(distance_km: float, power_w: float, noise_dbm: float, expected_s: float) -> None:
    assert upload(distance_km, power_w, noise_dbm) == pytest.approx(expected_s, rel=1e-5)


def test_weak_signal_is_not_rounded_to_zero() -> None:
    # log2(1 + x) = x / ln 2 for tiny x: 30000 · 1e-20 / 0.693147 = 4.32809e-16 bit/s, not 0.
    assert rate_bps(30e3, one(1e-20))[0] == pytest.approx(4.32809e-16, rel=1e-5)


def test_upload_without_signal_takes_forever() -> None:
    assert rate_bps(30e3, one(0.0))[0] == 0
    assert upload_s(100e3, one(0.0))[0] == np.inf
    assert signal_to_noise(one(1.0), one(1.0), watts(1e6))[0] == 0


def test_noise_density_over_the_band_that_is_used() -> None:
    # -174 dBm/Hz + 5 dB + 10·log10(30000) = -124.229 dBm, that is 10^(-15.4229) = 3.7767e-16 W, and ten times that on
    # a band ten times as wide, so uploads get less than ten times as fast.
    link = Link.of(RadioSettings(noise_dbm_per_hz=-174.0, noise_figure_db=5.0))
    assert link.noise_w == pytest.approx(3.7767e-16, rel=1e-4)
    assert Link.of(RadioSettings(noise_dbm_per_hz=-174.0, bandwidth_hz=3e5)).noise_w == pytest.approx(
        1.1943e-15, rel=1e-4
    )
    gain_at_1km = one(1.548817e-13)  # 0.1 W · 1.548817e-13 / 3.7767e-16 = 41.010; log2(42.010) = 5.39266
    assert link.rate_bps(link.snr(one(0.1), gain_at_1km))[0] == pytest.approx(30e3 * 5.39266, rel=1e-4)
    wide = link.rate_bps(link.snr(one(0.1), gain_at_1km, 3e5), 3e5)  # log2(1 + 4.1010) = 2.35078
    assert wide[0] == pytest.approx(3e5 * 2.35078, rel=1e-4)


def test_gap_cap_and_outage() -> None:
    # A gap of 3.0103 dB halves the SNR: log2(1 + 3 / 2) = 1.321928 bit/s per Hz at an SNR of 3.
    assert Link(10.0, 1.0, gap=2.0).rate_bps(one(3.0))[0] == pytest.approx(13.21928)
    assert Link(10.0, 1.0, max_bps_per_hz=1.5).rate_bps(np.array([1.0, 3.0])) == pytest.approx([10, 15])
    assert Link(10.0, 1.0, min_snr=2.0).rate_bps(np.array([1.99, 2.0])) == pytest.approx([0, 15.84963])
    radio = RadioSettings(packet_error="outage", snr_gap_db=3.0)
    assert Link.of(radio).min_snr == pytest.approx(10**-0.67)
    assert Link.of(radio).gap == pytest.approx(1.995262)
