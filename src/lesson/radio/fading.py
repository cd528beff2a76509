"""Small-scale fading by multipath propagation: draws for every client and block of time, and means over fading."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import Key, exponentials, uniforms
from lesson.radio.link import Link, mean_times_sent, rate_bps, ratio
from lesson.settings.sections import RadioSettings

FadingKind = Literal["none", "rayleigh", "rician"]

_PHASE = np.array(1)  # a third id, so that the phase is drawn independently of the power
_GRID_DB = np.arange(-100.0, 200.5, 0.5)
"""Mean signal-to-noise ratios at which means are tabulated. Between them, they are interpolated linearly."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_LOWEST, _DEVIATIONS, _LARGEST_K = 1e-6, 6.0, 1e6
"""Integrals over fading leave out power gains below the first number, and amplitudes that differ from the mean by more
standard deviations than the second. K is limited to the third, at which there is almost no fading."""


def fading_gain(k_db: FloatArray | float, key: Key, clients: IntArray, blocks: IntArray) -> FloatArray:
    """Return the power gain |h|², with mean 1, of the shape that clients and blocks broadcast to.

    h = √(K/(K+1)) + CN(0, 1/(K+1)), where K is the power of the direct path relative to that of the scattered paths.
    Without a direct path, at K = −inf dB, this is Rayleigh fading.
    """
    power = exponentials(key, clients, blocks)
    if np.all(np.isneginf(k_db)):
        return power
    scattered = 1 / (1 + np.power(10.0, np.asarray(k_db) / 10))
    direct = np.sqrt(1 - scattered)
    power *= scattered
    amplitude = np.sqrt(power, out=power)
    # |a + b·e^jθ|² = (a − b)² + 4ab·cos²(θ/2), which cannot round below 0.
    half_phase = np.cos(np.pi * uniforms(key, clients, blocks, _PHASE))
    gain: FloatArray = (direct - amplitude) ** 2 + 4 * direct * amplitude * half_phase**2
    return gain


class Fading:
    """Means over fading of data rates and error rates, from tables over the mean signal-to-noise ratio.

    An upload that is much longer than the coherence time has the mean rate, the ergodic rate. K is in dB, and −inf for
    Rayleigh fading.
    """

    def __init__(self, radio: RadioSettings) -> None:
        self.kind: FadingKind = radio.fading
        self.link = Link.of(radio)
        self._waterfall = ratio(radio.waterfall_db)
        self._sends_again = radio.packet_error == "exponential" and radio.on_error == "retransmit"
        self._tables: dict[tuple[str, float], FloatArray] = {}

    def rate_bps(self, snr: FloatArray, k_db: FloatArray | float, band_hz: FloatArray | float) -> FloatArray:
        """Return the mean data rate at a mean signal-to-noise ratio on a band."""
        if self.kind == "none":
            return self.link.rate_bps(snr, band_hz)
        return rate_bps(band_hz, snr) * self._mean("rate", snr, k_db)

    def useful_bps(self, snr: FloatArray, k_db: FloatArray | float, band_hz: FloatArray | float) -> FloatArray:
        """Return the mean data rate of uploads, where those that are sent again count once."""
        rates = self.rate_bps(snr, k_db, band_hz)
        return rates / mean_times_sent(self.error_rate(snr, k_db)) if self._sends_again else rates

    def error_rate(self, snr: FloatArray, k_db: FloatArray | float) -> FloatArray:
        """Return the mean probability 1 − exp(−m/SNR) that an upload is corrupted, m being the waterfall threshold."""
        return self._error_rate(snr) if self.kind == "none" else self._mean("error", snr, k_db)

    def _error_rate(self, snr: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.asarray(-np.expm1(-self._waterfall / snr))

    def _mean(self, what: str, snr: FloatArray, k_db: FloatArray | float) -> FloatArray:
        with np.errstate(divide="ignore"):
            snr_db = 10 * np.log10(snr)
        if np.ndim(k_db) == 0:
            return np.asarray(np.interp(snr_db, _GRID_DB, self._table(what, float(k_db))))
        snr_db, k_db = np.broadcast_arrays(snr_db, k_db)
        means = np.empty(snr_db.shape)
        for one in np.unique(k_db).tolist():
            means[k_db == one] = np.interp(snr_db[k_db == one], _GRID_DB, self._table(what, one))
        return means

    def _table(self, what: str, k_db: float) -> FloatArray:
        if (what, k_db) not in self._tables:
            snr, link = np.power(10.0, _GRID_DB / 10), self.link
            if what == "error":
                table = fading_mean(self._error_rate, snr, k_db)
            else:  # relative to Eq. (5) without fading, which makes the table smooth
                most = link.gap * np.expm1(link.max_bps_per_hz * np.log(2))
                table = fading_mean(lambda at: link.rate_bps(at, 1.0), snr, k_db, (link.min_snr, most))
                table /= rate_bps(1.0, snr)
            self._tables[what, k_db] = table
        return self._tables[what, k_db]


def fading_mean(
    function: Callable[[FloatArray], FloatArray], snr: FloatArray, k_db: float, kinks: Sequence[float] = ()
) -> FloatArray:
    """Return the mean of a function of the signal-to-noise ratio over fading, for each mean ratio, shape (n,).

    The function must be smooth except at `kinks`, ascending. Integrals are over the logarithm of the power gain.
    """
    from scipy.special import i0e  # few fleets need it

    k = min(ratio(k_db), _LARGEST_K)
    direct, spread = np.sqrt(k / (1 + k)), _DEVIATIONS / np.sqrt(2 * (1 + k))
    ends = max(direct - spread, 0.0) ** 2 + _LOWEST, (direct + spread) ** 2
    edges = np.log([np.clip(one, *ends) * np.ones_like(snr) for one in (ends[0], *(k / snr for k in kinks), ends[1])])
    total = np.zeros_like(snr)
    for low, high in pairwise(edges):
        gain = np.exp((low + high)[:, None] / 2 + np.outer(high - low, _NODES / 2))
        apart = np.sqrt((1 + k) * gain) - np.sqrt(k)
        density = (1 + k) * np.exp(-(apart**2)) * i0e(2 * np.sqrt(k * (1 + k) * gain))
        total += (function(snr[:, None] * gain) * density * gain) @ _WEIGHTS * (high - low) / 2
    return total
