"""Transfer times on channels that change over time, and data rates on a shared band."""

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key
from lesson.fleet.allocation import Resources
from lesson.fleet.channels import channel_of, snr_traces_of
from lesson.fleet.fleet import Fleet
from lesson.fleet.population import Population
from lesson.radio import link, transfer
from lesson.radio.channel import k_db_of
from lesson.radio.fading import Fading, fading_gain
from lesson.settings.settings import Settings

SHORT_S, LONG = 0.1, 1000
"""On a shared band, shorter coherence times are averaged. So are uploads of more coherence times than LONG."""
MAX_CACHED_CLIENTS = 4096
"""Channels of larger fleets are not cached: a span holds all clients, not only those that upload."""
_SPAN = 64
"""Number of consecutive blocks whose channels are computed together."""
_MAX_CACHED_BLOCKS = 1024
"""Number of blocks of one request up to which spans are cached. Few uploads take longer, and spans hold all clients."""
_MAX_CACHED_ELEMENTS = 1 << 22
"""Number of cached (client, block) pairs at which the oldest span is evicted."""
_EAGER_CLIENTS = 256
"""In fleets up to this size, a span is computed for all clients at once, which takes about as long as for one."""


class Airtime:
    """Data rates and transfer times of a drawn fleet.

    Time is divided into blocks. Path loss, shadowing and measured channels are constant within a block. Fading is
    constant within the coherence time, which may be much shorter; long uploads then have the mean rate over fading.
    """

    def __init__(self, settings: Settings, fleet: Fleet, population: Population, seed: int) -> None:
        self._radio, self._power_w = settings.radio, population.power_w
        self._fading = Fading(settings.radio)
        self._link, self._key = self._fading.link, key(seed, "fading")
        self._has_k = self._fading.kind == "rician"
        self._block_s, self._coherence_s = settings.block_s, settings.coherence_s
        fades, averages = self._fading.kind != "none", self._coherence_s < min(self._block_s, SHORT_S)
        self._shared_fades = fades and not averages
        self.shared_block_s = self._coherence_s if self._shared_fades else self._block_s
        """Interval at which rates on a shared band change."""
        self._whole_hz = len(fleet) * settings.radio.bandwidth_hz
        self._channel = channel_of(settings, population, seed)
        self._traces = snr_traces_of(settings, len(fleet), population.seed)
        self._station_power_ratio = settings.radio.station_power_w / population.power_w
        if self._traces is not None:  # traces have no transmit powers, so the SNR is the same in both directions
            self._station_power_ratio = np.ones(len(fleet))
        self._standing: FloatArray | None = None
        """Mean SNR and Rician K, shape (2, num_clients), if they never change."""
        if np.isinf(self._block_s):
            self._standing = self._computed(np.arange(len(fleet))[:, None], np.zeros((1, 1), dtype=np.int64))[:, :, 0]
        self._spans: dict[int, FloatArray] = {}
        """The same by span of blocks, shape (2, num_clients, _SPAN) each; NaN if not computed yet."""

    def ends_s(
        self,
        clients: IntArray,
        bits: FloatArray,
        begin_s: FloatArray,
        *,
        down: bool = False,
        whole_band: bool = False,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Return the end times of uploads, or downloads, of these sizes that begin at `begin_s`.

        Each uses the client's own band, the band and power in `resources`, or is alone on the whole band.
        """

        def bands_of(who: IntArray) -> FloatArray | float:
            if resources is not None:
                return resources.band[who] * self._link.band_hz
            return self._whole_hz if whole_band else self._link.band_hz

        def mean_bps(who: IntArray, blocks: IntArray) -> FloatArray:
            return self._mean_bps(who, blocks, bands_of(who), down=down, resources=resources)

        def faded_bps(who: IntArray, blocks: IntArray) -> FloatArray:
            return self._faded_bps(who, blocks, bands_of(who), down=down, resources=resources)

        if self._fading.kind == "none":
            return transfer.finish_s(clients, begin_s, bits, mean_bps, self._block_s)
        who = clients[:, None]
        band_hz, (snr, _) = bands_of(who), self._mean_snr(who, self._first(begin_s), down=down, resources=resources)
        with np.errstate(divide="ignore"):
            usual_s = bits / self._link.rate_bps(snr * (self._link.band_hz / band_hz), band_hz)[:, 0]
        ends_s, is_long = np.empty(len(clients)), usual_s > LONG * self._coherence_s
        for rows, rates, block_s in (is_long, mean_bps, self._block_s), (~is_long, faded_bps, self._coherence_s):
            if rows.any():
                ends_s[rows] = transfer.finish_s(clients[rows], begin_s[rows], bits[rows], rates, block_s)
        return ends_s

    def shared_rate_bps(self, clients: IntArray, block: int, num_sharing: int) -> FloatArray:
        """Return the rates of clients, shape (n,), in a block in which `num_sharing` clients split the whole band."""
        who, blocks, band_hz = clients[:, None], np.array([[block]]), self._whole_hz / num_sharing
        rates = self._faded_bps if self._shared_fades else self._mean_bps
        return rates(who, blocks, band_hz)[:, 0]

    def typical_s(self, clients: IntArray, bits: FloatArray, now_s: float, *, down: bool = False) -> FloatArray:
        """Return the seconds that transfers take on each client's own band at the mean rate of the current block."""
        snr, k_db = self._mean_snr(clients[:, None], self._block_at(np.array([now_s]))[:, None], down=down)
        mean_bps = self._fading.rate_bps if down else self._fading.useful_bps
        return link.upload_s(1.0, mean_bps(snr, k_db, self._link.band_hz)[:, 0]) * bits

    def error_rate(
        self,
        clients: IntArray,
        begin_s: FloatArray,
        *,
        whole_band: bool = False,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Return the probability that uploads that begin at these times are corrupted."""
        snr, k_db = self._mean_snr(clients[:, None], self._first(begin_s), resources=resources)
        if resources is not None:
            snr = snr / resources.band[clients, None]
        elif whole_band:
            snr = snr * (self._link.band_hz / self._whole_hz)
        return self._fading.error_rate(snr, k_db)[:, 0]

    def _block_at(self, time_s: FloatArray) -> IntArray:
        return transfer.block_at(time_s, self._block_s)

    def _first(self, begin_s: FloatArray) -> IntArray:
        """Return the block in which each transfer begins, shape (n, 1); any block if it never begins."""
        return self._block_at(np.where(np.isfinite(begin_s), begin_s, 0.0))[:, None]

    def _mean_bps(
        self,
        clients: IntArray,
        blocks: IntArray,
        band_hz: FloatArray | float,
        *,
        down: bool = False,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Return the mean rates over fading of clients (n, 1) in blocks (n, K) or (1, K). Noise grows with the band."""
        snr, k_db = self._mean_snr(clients, blocks, down=down, resources=resources)
        return self._fading.rate_bps(snr * (self._link.band_hz / band_hz), k_db, band_hz)

    def _faded_bps(
        self,
        clients: IntArray,
        blocks: IntArray,
        band_hz: FloatArray | float,
        *,
        down: bool = False,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Return the rates of clients (n, 1) in intervals of the coherence time, (n, K) or (1, K), with fading."""
        slow = blocks
        if self._block_s != self._coherence_s:
            times_s = np.asarray(blocks * self._coherence_s, np.float64)
            slow = self._block_at(times_s.reshape(-1)).reshape(blocks.shape)
        snr, k_db = self._mean_snr(clients, slow, down=down, resources=resources)
        gain = fading_gain(k_db, self._key, clients, blocks)
        return self._link.rate_bps(snr * (self._link.band_hz / band_hz) * gain, band_hz)

    def _mean_snr(
        self, clients: IntArray, blocks: IntArray, *, down: bool = False, resources: Resources | None = None
    ) -> tuple[FloatArray, FloatArray | float]:
        """Return the SNR without fading of clients (n, 1) in blocks (n, K) or (1, K), on their own bands, and K.

        Clients may send with the power in `resources`; the base station sends with its own.
        """
        if self._standing is not None:
            snr, k_db = self._standing[0, clients], self._standing[1, clients] if self._has_k else -np.inf
        elif len(self._power_w) > MAX_CACHED_CLIENTS or blocks.shape[1] > _MAX_CACHED_BLOCKS:
            snr, k_db = self._computed(clients, blocks)
        else:
            snr, k_db = self._cached(clients, blocks)
        if down:
            snr = snr * self._station_power_ratio[clients]
        elif resources is not None:
            snr = snr * resources.power[clients]
        return snr, k_db if self._has_k else -np.inf

    def _cached(self, clients: IntArray, blocks: IntArray) -> FloatArray:
        """Return mean SNR and K, shape (2, n, K), from spans of blocks."""
        numbers, places = np.divmod(blocks, _SPAN)
        first, last = int(numbers.min()), int(numbers.max())
        if first == last:
            return self._span(first, clients[:, 0])[:, clients, places]
        found = np.empty((2, *np.broadcast_shapes(clients.shape, blocks.shape)))
        who, numbers, places = np.broadcast_arrays(clients, numbers, places)
        for number in range(first, last + 1):
            here = numbers == number
            if here.any():
                found[:, here] = self._span(number, np.unique(who[here]))[:, who[here], places[here]]
        return found

    def _span(self, number: int, clients: IntArray) -> FloatArray:
        """Return a span, computed for at least these clients."""
        if number not in self._spans:
            if len(self._spans) * _SPAN * len(self._power_w) >= _MAX_CACHED_ELEMENTS:
                del self._spans[next(iter(self._spans))]
            self._spans[number] = np.full((2, len(self._power_w), _SPAN), np.nan)
            if len(self._power_w) <= _EAGER_CLIENTS:
                clients = np.arange(len(self._power_w))
        span = self._spans[number]
        new = clients[np.isnan(span[0, clients, 0])]
        if len(new):
            span[:, new] = self._computed(new[:, None], number * _SPAN + np.arange(_SPAN)[None, :])
        return span

    def _computed(self, clients: IntArray, blocks: IntArray) -> FloatArray:
        """Return mean SNR and K, shape (2, n, K)."""
        times_s = np.asarray(0.0 * blocks if np.isinf(self._block_s) else blocks * self._block_s, np.float64)
        if self._traces is not None:
            return np.array(np.broadcast_arrays(self._traces.at(clients, times_s), 0.0))
        snr = self._link.snr(self._power_w[clients], link.gain(-self._channel.gain_db(clients, times_s)))
        k_db = k_db_of(self._radio, self._channel, clients, times_s)
        return np.array(np.broadcast_arrays(snr, k_db))
