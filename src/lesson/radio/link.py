"""From path loss to upload time, Eq. (5) and (6)."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.settings.sections import RadioSettings

MAX_TIMES_SENT = 100
"""Number of times that a corrupted upload is sent; if the last one is corrupted as well, the update is lost."""


def mean_times_sent(error_rate: FloatArray) -> FloatArray:
    """Return how often an upload is sent on average: Σ q^n over n < MAX_TIMES_SENT, with the shape of the rates q."""
    with np.errstate(invalid="ignore"):
        mean = (1 - error_rate**MAX_TIMES_SENT) / (1 - error_rate)
    return np.where(error_rate < 1, mean, MAX_TIMES_SENT)


def gain(path_loss_db: FloatArray) -> FloatArray:
    """Return the channel gain g of each client, shape (num_clients,): 10^(−path loss / 10)."""
    return np.power(10.0, -path_loss_db / 10)


def ratio(decibels: float) -> float:
    """Convert dB to a ratio; inf on overflow."""
    with np.errstate(over="ignore"):
        return float(np.power(10.0, decibels / 10))


def watts(power_dbm: float) -> float:
    """Convert dBm to watts; inf on overflow."""
    return ratio(power_dbm - 30)


def signal_to_noise(power_w: FloatArray, gain: FloatArray, noise_w: FloatArray | float) -> FloatArray:
    """Return the signal-to-noise ratio p·g / N0 of each client, shape (num_clients,)."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(power_w * gain / noise_w)


def rate_bps(bandwidth_hz: FloatArray | float, signal_to_noise: FloatArray) -> FloatArray:
    """Return the rate of each client in bits per second, shape (num_clients,). Eq. (5): b·log2(1 + p·g / N0)."""
    return np.asarray(bandwidth_hz / float(np.log(2)) * np.log1p(signal_to_noise))


def upload_s(model_bits: float, rate_bps: FloatArray) -> FloatArray:
    """Return the upload time of each client in seconds, shape (num_clients,). Eq. (6): s / r; inf at rate 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return model_bits / rate_bps


@dataclass(frozen=True)
class Link:
    """Noise and data rates of transfers. Ratios are not in dB.

    Attributes:
        band_hz: Bandwidth of a client's own band. Signal-to-noise ratios refer to it.
        noise_w: Noise power on this band; on other bands, it grows with the bandwidth.
        gap: Signal-to-noise ratio divided by the one that would suffice for the same rate by Eq. (5).
        max_bps_per_hz: Maximum rate per bandwidth.
        min_snr: Signal-to-noise ratio below which nothing is received.
    """

    band_hz: float
    noise_w: float
    gap: float = 1.0
    max_bps_per_hz: float = np.inf
    min_snr: float = 0.0

    @classmethod
    def of(cls, radio: RadioSettings) -> Self:
        noise_dbm = radio.noise_dbm
        if radio.noise_dbm_per_hz is not None:
            noise_dbm = radio.noise_dbm_per_hz + radio.noise_figure_db + 10 * float(np.log10(radio.bandwidth_hz))
        return cls(
            radio.bandwidth_hz,
            watts(noise_dbm),
            ratio(radio.snr_gap_db),
            np.inf if radio.max_bps_per_hz is None else radio.max_bps_per_hz,
            ratio(radio.min_snr_db) if radio.packet_error == "outage" else 0.0,
        )

    def snr(self, power_w: FloatArray, gain: FloatArray, band_hz: FloatArray | float | None = None) -> FloatArray:
        """Return the signal-to-noise ratio of each client on a band; by default, on its own one."""
        bands = 1.0 if band_hz is None else band_hz / self.band_hz
        return signal_to_noise(power_w, gain, bands * self.noise_w)

    def rate_bps(self, snr: FloatArray, band_hz: FloatArray | float | None = None) -> FloatArray:
        """Return the data rate in bits per second at this signal-to-noise ratio on a band; see `snr`."""
        band_hz = self.band_hz if band_hz is None else band_hz
        rates = rate_bps(band_hz, snr / self.gap)
        if self.max_bps_per_hz < np.inf:
            rates = np.minimum(rates, self.max_bps_per_hz * band_hz)
        return np.where(snr >= self.min_snr, rates, 0.0) if self.min_snr else rates

    def snr_at(self, rate_bps: FloatArray) -> FloatArray:
        """Return the signal-to-noise ratio of each client that has this data rate on its own band, by Eq. (5)."""
        return np.asarray(self.gap * np.expm1(float(np.log(2)) * rate_bps / self.band_hz))
