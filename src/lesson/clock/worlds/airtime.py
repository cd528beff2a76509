"""Transfer times on channels that change over time, and data rates on a shared band."""

from pathlib import Path

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.random import key
from lesson.fleet.allocation import Resources
from lesson.fleet.channels import snr_traces_of
from lesson.fleet.fleet import Fleet
from lesson.fleet.population import Population
from lesson.fleet.traces import read_positions
from lesson.radio import fading, link, mobility, transfer
from lesson.radio.channel import Channel
from lesson.settings.settings import Settings

MAX_CACHED_CLIENTS = 4096
"""The rates of larger fleets are not cached: a span holds all clients, not only those that upload."""
_SPAN = 16
"""Number of consecutive time blocks that are computed together for a shared band."""
_MAX_CACHED_ELEMENTS = 1 << 22
"""Number of cached (client, block) pairs at which the oldest span is evicted."""


class Airtime:
    """Data rates and transfer times of a drawn fleet; rates are constant within blocks of `coherence_s`."""

    def __init__(self, settings: Settings, fleet: Fleet, population: Population, seed: int) -> None:
        self._settings, self._power_w, self._link = settings, population.power_w, link.Link.of(settings.radio)
        self.coherence_s = settings.radio.coherence_s if settings.channel_changes else np.inf
        self._fading = key(seed, "fading")
        self._channel = Channel(settings, population.seed)
        self._whole_hz = len(fleet) * settings.radio.bandwidth_hz
        self._mobility = _make_mobility(settings, fleet, population, seed)
        self._traces = snr_traces_of(settings, len(fleet), population.seed)
        self._standing_snr = np.empty(0)
        if self._mobility is None and self._traces is None:
            self._standing_snr = self._signal_to_noise(population.x_km, population.y_km, population.power_w)
        self._station_power_ratio = settings.radio.station_power_w / population.power_w
        if self._traces is not None:  # traces have no transmit powers, so the SNR is the same in both directions
            self._station_power_ratio = np.ones(len(fleet))
        self._spans: dict[int, FloatArray] = {}
        """Mean SNR and fading gain by span of blocks, shape (2, num_clients, _SPAN) each; NaN if not computed yet."""

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

        Each uses the client's own band, or is alone on the whole band, or uses the client's `resources`, which are
        those of all clients.
        """
        band_hz = self._whole_hz if whole_band else self._link.band_hz

        def rates(who: IntArray, blocks: IntArray) -> FloatArray:
            if resources is not None:
                return self._rate_bps(who, blocks, resources.band[who] * band_hz, resources.power[who])
            return self._rate_bps(who, blocks, band_hz, down=down)

        return transfer.finish_s(clients, begin_s, bits, rates, self.coherence_s)

    def shared_rate_bps(self, clients: IntArray, block: int, num_sharing: int) -> FloatArray:
        """Return the rates of clients, shape (n,), in a block in which `num_sharing` clients split the whole band."""
        if len(self._power_w) > MAX_CACHED_CLIENTS:
            return self._rate_bps(clients[:, None], np.array([[block]]), self._whole_hz / num_sharing)[:, 0]
        number, place = divmod(block, _SPAN)
        if number not in self._spans:
            if len(self._spans) * _SPAN * len(self._power_w) >= _MAX_CACHED_ELEMENTS:
                del self._spans[next(iter(self._spans))]
            self._spans[number] = np.full((2, len(self._power_w), _SPAN), np.nan)
        span = self._spans[number]
        new = clients[np.isnan(span[0, clients, place])]
        if len(new):
            blocks = number * _SPAN + np.arange(_SPAN)[None, :]
            span[0, new], span[1, new] = self._mean_snr(new[:, None], blocks), self._gain(new[:, None], blocks)
        return self._rate_of(span[0, clients, place], span[1, clients, place], self._whole_hz / num_sharing)

    def typical_s(self, clients: IntArray, bits: FloatArray, now_s: float, *, down: bool = False) -> FloatArray:
        """Return the seconds that transfers of these sizes take on each client's own band now, without fading."""
        block = transfer.block_at(np.array([now_s]), self.coherence_s)
        snr = self._mean_snr(clients[:, None], block[:, None])[:, 0]
        rate_bps = self._link.rate_bps(snr * self._station_power_ratio[clients] if down else snr)
        return link.upload_s(1.0, rate_bps) * bits

    def _rate_bps(
        self,
        clients: IntArray,
        blocks: IntArray,
        band_hz: FloatArray | float,
        power: FloatArray | float = 1.0,
        *,
        down: bool = False,
    ) -> FloatArray:
        """Return the rates of clients (n, 1) in time blocks (n, K) on a band of `band_hz`, shape (n, K).

        Noise power grows with the band. Clients send with `power` times their usual power, and the base station with
        its own.
        """
        snr = self._mean_snr(clients, blocks) * power
        if down:
            snr = snr * self._station_power_ratio[clients]
        rate_bps = self._rate_of(snr, self._gain(clients, blocks), band_hz)
        return np.broadcast_to(rate_bps, (len(clients), blocks.shape[1]))

    def _rate_of(self, mean_snr: FloatArray, gain: FloatArray, band_hz: FloatArray | float) -> FloatArray:
        """Return the rate in bit/s on a band of `band_hz`; `mean_snr` is for the client's own band."""
        return self._link.rate_bps(mean_snr * (self._link.band_hz / band_hz) * gain, band_hz)

    def _gain(self, clients: IntArray, blocks: IntArray) -> FloatArray:
        """Return the fading gain (in power) of clients (n, 1) in time blocks (n, K) or (1, K), shape (n, K)."""
        return fading.fading_gain(
            self._settings.radio.fading, self._settings.radio.rician_k_db, self._fading, clients, blocks
        )

    def _mean_snr(self, clients: IntArray, blocks: IntArray) -> FloatArray:
        """Return the SNR without fading of clients (n, 1) on their own bands in time blocks (n, K) or (1, K)."""
        if self._traces is not None:
            return self._traces.at(clients, np.multiply(blocks, self.coherence_s, dtype=np.float64))
        if self._mobility is None:
            return self._standing_snr[clients]
        times_s = np.broadcast_to(blocks * self.coherence_s, (len(clients), blocks.shape[1]))
        return self._signal_to_noise(*self._mobility.at(clients[:, 0], times_s), self._power_w[clients])

    def _signal_to_noise(self, x_km: FloatArray, y_km: FloatArray, power_w: FloatArray) -> FloatArray:
        """Return the SNR without fading at these positions, on a client's own band."""
        return self._link.snr(power_w, link.gain(self._channel.loss_db(x_km, y_km)))


def _make_mobility(
    settings: Settings, fleet: Fleet, population: Population, seed: int
) -> mobility.RandomWaypoint | mobility.Itinerary | None:
    """Return the clients' movement; None if they do not move."""
    if settings.fleet.positions:
        return mobility.Itinerary(read_positions(Path(settings.fleet.positions), fleet.names, settings.fleet.area_km))
    if not settings.moves:
        return None
    return mobility.RandomWaypoint(
        seed, population.x_km, population.y_km, settings.fleet.area_km, settings.radio.speed_mps, settings.radio.pause_s
    )
