"""A fleet: latency, energy and aggregation weight of every client, drawn from the settings or measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.fleet import latency
from lesson.fleet.channels import channel_of, phone_rates_of, positions_of, snr_traces_of
from lesson.fleet.measured import Measured, listed_clients
from lesson.fleet.population import Population, draw_population
from lesson.fleet.spread import Spread
from lesson.fleet.tiers import client_to_promote
from lesson.fleet.traces import read_work
from lesson.radio import link
from lesson.radio.channel import k_db_of
from lesson.radio.fading import Fading
from lesson.radio.link import Link
from lesson.settings.settings import Settings

OUTLIER = 100.0
"""Multiple of the 90 % quantile beyond which a latency is an outlier, which tables and figures do not cover."""
MAX_PROCESSED = 10**18
"""Maximum number of samples processed in one local training; more do not fit into 64 bits."""


@dataclass(frozen=True)
class Promotion:
    """A client whose latency is set to the deadline because tier 1 would be empty otherwise, and its actual latency."""

    client: int
    latency_s: float


@dataclass(frozen=True, eq=False)
class Fleet:
    """What the clock and the server know about each client; arrays have shape (num_clients,), NaN where unknown.

    The arrays are never modified: code that updates estimates works on copies.

    Attributes:
        names: Name of each client in files and reports; numbers from 0 for drawn clients.
        compute_s: Compute time of one local training in seconds.
        upload_s: Upload time on the client's own band in seconds.
        shared_upload_s: Upload time alone on the combined band of all clients in seconds, for strategies whose clients
            upload in turn.
        latency_s: Time from start to arrival in seconds: download, compute and upload time. inf: the client is
            unreachable.
        download_s: Download time of the model in seconds; 0 if it is neglected, as in the paper.
        compute_j: Compute energy of one local training in joules.
        transmit_j: Energy of one upload on the client's own band in joules.
        shared_transmit_j: Energy of one upload alone on the combined band in joules.
        num_samples: Number of training samples.
        client_weight: Aggregation weight before normalization: the number of samples, or 1.
        local_steps: Number of minibatches in one local training, for all of which `compute_s` is charged.
        batch_samples: Number of samples in each of them; 0 if it is unknown, or if clients train whole epochs.
        model_bits: Size of an uncompressed model in bits.
        level: Compression level of the usual upload; NaN without compression.
        level_bits: Size of an upload in bits at each compression level that a plan may name, from the least to the most
            compression; empty without compression.
        population: Positions and CPUs of drawn clients; None if latencies were measured.
        gain_db: Gain of the channel to the base station, without fading; None unless it follows from positions.
        snr_db: Signal-to-noise ratio of an upload on the client's own band at this gain; None like `gain_db`.
        link: Noise and data rates; None like `gain_db`.
        error_rate: Probability that an upload is corrupted; None unless [radio] packet_error has such a probability.
        ensure_first_tier: Whether `at_deadline` promotes the fastest client if no client meets the deadline.
        promoted: The promoted client and its actual latency; None if there is none.
        too_costly: Which clients are unreachable only because an update would need more energy than `max_update_j`;
            None without this limit.
        spread: How latencies vary around those of the fleet, which are means; None if they do not vary, or only as
            settings say.
    """

    names: Sequence[int | str]
    compute_s: FloatArray
    upload_s: FloatArray
    shared_upload_s: FloatArray
    latency_s: FloatArray
    download_s: FloatArray
    compute_j: FloatArray
    transmit_j: FloatArray
    shared_transmit_j: FloatArray
    num_samples: IntArray
    client_weight: FloatArray
    local_steps: IntArray
    batch_samples: IntArray
    model_bits: float
    level: float = math.nan
    level_bits: Mapping[float, float] = field(default_factory=dict)
    population: Population | None = None
    gain_db: FloatArray | None = None
    snr_db: FloatArray | None = None
    link: Link | None = None
    error_rate: FloatArray | None = None
    ensure_first_tier: bool = False
    promoted: Promotion | None = None
    too_costly: BoolArray | None = None
    spread: Spread | None = None

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def upload_bits(self) -> float:
        """Size of the usual upload in bits."""
        return self.level_bits.get(self.level, self.model_bits)

    def bits_at(self, levels: FloatArray | float) -> FloatArray:
        """Return the size of uploads at these levels in bits, shape (len(levels),)."""
        different, places = np.unique(levels, return_inverse=True)
        return np.array([self.level_bits.get(level, self.model_bits) for level in different.tolist()])[places]

    @property
    def upload_ratio(self) -> float:
        """Size of the usual upload divided by that of an uncompressed model."""
        return self.upload_bits / self.model_bits

    @property
    def rate_bps(self) -> FloatArray:
        """Data rate of an upload on each client's own band in bit/s, shape (num_clients,)."""
        with np.errstate(divide="ignore"):
            return self.upload_bits * self.assumed_latency_ratio / self.upload_s

    def snr_of(self, clients: IntArray) -> FloatArray:
        """Return the SNR, not in dB, of drawn clients on their own bands that follows from their upload times."""
        return self.snr_at(clients, self.rate_bps[clients])

    def snr_at(
        self, clients: IntArray, rate_bps: FloatArray, band: FloatArray | float = 1.0, power: FloatArray | float = 1.0
    ) -> FloatArray:
        """Return the same, given data rates at multiples of each client's own band and power."""
        assert self.link is not None, "only drawn clients with positions have an SNR"
        assert self.snr_db is not None, "only drawn clients with positions have an SNR"
        snr = self.link.snr_at(rate_bps / band) * (band / power)
        if self.link.max_bps_per_hz < np.inf:  # a rate at the maximum is that of any higher SNR
            is_highest = rate_bps >= self.link.max_bps_per_hz * self.link.band_hz * band * (1 - 1e-9)
            snr = np.where(is_highest, np.maximum(snr, 10 ** (self.snr_db[clients] / 10)), snr)
        return np.maximum(snr, self.link.min_snr)

    def rate_with(self, clients: IntArray, band_hz: FloatArray, power_w: FloatArray | None = None) -> FloatArray:
        """Return the data rate in bit/s of each client with this band and transmit power; by default, the usual power.

        It follows from the SNR in `snr_of`; noise grows with the band.
        """
        assert self.link is not None, "only drawn clients with positions have an SNR"
        assert self.population is not None, "only drawn clients have a transmit power"
        snr = self.snr_of(clients) * (self.link.band_hz / band_hz)
        if power_w is not None:
            snr = snr * (power_w / self.population.power_w[clients])
        return self.link.rate_bps(snr, band_hz)

    def varying(self, settings: Settings | None) -> list[str]:
        """Return what makes actual times differ from the server's estimates: settings, and sd_s of a file."""
        return [*([] if settings is None else settings.varying), *([] if self.spread is None else ["sd_s"])]

    @property
    def reachable(self) -> BoolArray:
        """Which clients have a finite latency, shape (num_clients,)."""
        return np.isfinite(self.latency_s)

    @property
    def assumed_latency_ratio(self) -> FloatArray:
        """Assumed latency of each client divided by its actual latency, shape (num_clients,); 1 unless promoted."""
        ratio = np.ones(len(self))
        if self.promoted is not None:
            ratio[self.promoted.client] = self.latency_s[self.promoted.client] / self.promoted.latency_s
        return ratio

    @property
    def slowest_s(self) -> float:
        """Latency of the slowest reachable client in seconds: the round length of FedAvg."""
        if not self.reachable.any():
            raise InputError(f"no client can be reached: all {len(self)} latencies are infinite")
        return float(self.latency_s[self.reachable].max())

    def update_j(self, needed_by: str) -> FloatArray:
        """Return the energy of each client's usual update in joules; raise InputError, naming a setting, if unknown."""
        joules = self.compute_j + self.transmit_j
        if len(unknown := np.flatnonzero(self.reachable & np.isnan(joules))):
            raise InputError(
                f"[fleet] {needed_by} needs compute_j and transmit_j of every client, but client "
                f"'{str(self.names[unknown[0]])[:40]}' has none; add both columns to the file of latencies"
            )
        return joules

    def quantile_s(self, share: float) -> float:
        """Latency in seconds that this share of the reachable clients do not exceed, rounded down to a client's."""
        return quantile_of(self.latency_s[self.reachable], share)

    @property
    def reach_s(self) -> float:
        """Latency in seconds of the slowest reachable client that is not an outlier; see `reach_of`."""
        return reach_of(self.latency_s[self.reachable])

    def first(self, count: int) -> "Fleet":
        """Return the first `count` clients, or the whole fleet if it has no more.

        Their values do not change: `shared_upload_s` still refers to the band of the whole fleet.
        """
        if count >= len(self):
            return self
        cut: dict[str, Any] = {name: part[:count] for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return replace(
            self,
            names=self.names[:count],
            population=None if self.population is None else self.population.first(count),
            promoted=self.promoted if self.promoted is not None and self.promoted.client < count else None,
            spread=None if self.spread is None else self.spread.first(count),
            **cut,
        )

    def with_payload(self, bits: float) -> "Fleet":
        """Return the fleet with uploads of this size: their times and energies change in proportion."""
        ratio = bits / self.upload_bits
        upload_s = ratio * self.upload_s
        with np.errstate(invalid="ignore"):  # inf − inf for unreachable clients
            latency_s = np.where(self.reachable, self.latency_s - self.upload_s + upload_s, np.inf)
        return replace(
            self,
            upload_s=upload_s,
            shared_upload_s=ratio * self.shared_upload_s,
            latency_s=latency_s,
            transmit_j=ratio * self.transmit_j,
            shared_transmit_j=ratio * self.shared_transmit_j,
            model_bits=bits,
            level=math.nan,
            level_bits={},
        )

    def at_deadline(self, deadline_s: float) -> "Fleet":
        """Return the fleet that strategies with tiers use at this deadline.

        With `ensure_first_tier`, if no client meets the deadline, the fastest one is promoted: its latency is set to
        the deadline, and the parts of its latency are scaled accordingly. Otherwise, the fleet is unchanged.
        """
        fastest = client_to_promote(self.latency_s, deadline_s, self.ensure_first_tier)
        if fastest is None:
            return self
        real_s, latency_s, ratio = float(self.latency_s[fastest]), self.latency_s.copy(), np.ones(len(self))
        latency_s[fastest], ratio[fastest] = deadline_s, deadline_s / real_s
        return replace(
            self,
            compute_s=ratio * self.compute_s,
            upload_s=ratio * self.upload_s,
            shared_upload_s=ratio * self.shared_upload_s,
            download_s=ratio * self.download_s,
            latency_s=latency_s,
            promoted=Promotion(fastest, real_s),
        )


def draw_fleet(settings: Settings, num_clients: int | None = None, seed: int | None = None) -> Fleet:
    """Draw a random population of clients and return its fleet, with the latencies of Eqs. (3) to (6).

    If the settings name a file of latencies, the fleet is that of the file, and nothing is drawn.

    Args:
        settings: Area, radio, CPUs and training; or a file of latencies.
        num_clients: Number of clients; by default, the one in the settings. A client has the same values in a larger
            fleet.
        seed: Random seed; by default, the one in the settings.

    Raises:
        InputError: `num_clients`, `seed` or an input file of the settings is invalid.
    """
    if settings.fleet.latencies and num_clients is not None:
        raise InputError(
            f"num_clients must not be given with [fleet] latencies, which lists the clients, got {num_clients}"
        )
    return fleet_of(settings, find_clients(settings, num_clients, seed))


def find_clients(settings: Settings, num_clients: int | None = None, seed: int | None = None) -> Population | Measured:
    """Return the clients of the settings: those in the file of latencies, or drawn ones."""
    if not settings.fleet.latencies:
        return draw_population(settings, num_clients, seed)
    return listed_clients(settings)


def fleet_of(settings: Settings, clients: Population | Measured, num_samples: IntArray | None = None) -> Fleet:
    """Return the fleet of a population, with the latencies of Eqs. (3) to (6), or of clients with measured times.

    `num_samples` is the number of samples each client holds, if a data set has been split; by default, that of the
    population or the file.
    """
    if num_samples is not None:
        clients = replace(clients, num_samples=num_samples)
    return _without_costly(_fleet_of(settings, clients), settings.fleet.max_update_j)


def _fleet_of(settings: Settings, clients: Population | Measured) -> Fleet:
    if isinstance(clients, Measured):
        fleet = make_fleet(settings, clients.names, clients.num_samples, **_compressed(clients, settings))
        return replace(fleet, spread=clients.spread)
    if settings.fleet.positions:
        clients = _at_itinerary_begins(clients, settings)
    with np.errstate(all="ignore"):  # extreme settings give infinite latencies, that is, unreachable clients
        return _drawn_fleet(settings, clients)


def make_fleet(
    settings: Settings,
    names: Sequence[int | str],
    num_samples: IntArray,
    compute_s: FloatArray,
    upload_s: FloatArray,
    latency_s: FloatArray,
    *,
    download_s: FloatArray | None = None,
    shared_upload_s: FloatArray | None = None,
    compute_j: FloatArray | None = None,
    transmit_j: FloatArray | None = None,
    shared_transmit_j: FloatArray | None = None,
) -> Fleet:
    """Return a fleet with these times and energies; see `Fleet`.

    By default, downloads take no time, the upload also serves as the upload alone on a shared band, and energies are
    unknown. If the settings name a trace, times are those of each client's first local training in it.
    """
    transmit_j = np.full(len(names), np.nan) if transmit_j is None else transmit_j
    upload = settings.upload
    fleet = Fleet(
        names=names,
        compute_s=compute_s,
        upload_s=upload_s,
        shared_upload_s=upload_s if shared_upload_s is None else shared_upload_s,
        latency_s=latency_s,
        download_s=np.zeros(len(names)) if download_s is None else download_s,
        compute_j=np.full(len(names), np.nan) if compute_j is None else compute_j,
        transmit_j=transmit_j,
        shared_transmit_j=transmit_j if shared_transmit_j is None else shared_transmit_j,
        num_samples=num_samples,
        client_weight=client_weight(settings, num_samples),
        local_steps=local_work(settings, num_samples)[0],
        batch_samples=batch_samples(settings, num_samples),
        model_bits=upload.whole_bits,
        level=math.nan if upload.level is None else upload.level,
        level_bits=upload.bits_of,
        ensure_first_tier=settings.strategy.ensure_first_tier,
    )
    return _as_traced(fleet, settings)


def _without_costly(fleet: Fleet, max_update_j: float | None) -> Fleet:
    """Return the fleet without the clients whose updates need more energy than this: they are unreachable."""
    if max_update_j is None:
        return fleet
    joules = fleet.update_j("max_update_j")
    too_costly = fleet.reachable & (joules > max_update_j)
    if too_costly.any() and np.array_equal(too_costly, fleet.reachable):
        least = joules[fleet.reachable].min()
        raise InputError(
            f"[fleet] max_update_j must be at least {least:g}, what the least costly update needs, got {max_update_j:g}"
        )
    return replace(fleet, latency_s=np.where(too_costly, np.inf, fleet.latency_s), too_costly=too_costly)


def _compressed(clients: Measured, settings: Settings) -> dict[str, FloatArray]:
    """Return the columns of measured clients, whose upload times are those of models that are not compressed."""
    columns, upload = dict(clients.columns), settings.upload
    if upload.compression == "none":
        return columns
    if np.any(np.isnan(columns["upload_s"]) & np.isfinite(columns["latency_s"])):
        raise InputError(
            "[upload] compression needs upload_s of every client; add the column to the file of latencies, or use none"
        )
    ratio = upload.bits / upload.whole_bits
    saved_s = np.where(np.isfinite(columns["latency_s"]), (1 - ratio) * columns["upload_s"], 0.0)
    columns["latency_s"] = columns["latency_s"] - saved_s
    columns["upload_s"], columns["transmit_j"] = ratio * columns["upload_s"], ratio * columns["transmit_j"]
    return columns


def _at_itinerary_begins(population: Population, settings: Settings) -> Population:
    """Return the population at its initial positions in the positions file."""
    everybody = np.arange(len(population))[:, None]
    x_km, y_km = positions_of(settings, population, population.seed)(everybody, np.zeros((1, 1)))
    return replace(population, x_km=x_km[:, 0], y_km=y_km[:, 0])


def _as_traced(fleet: Fleet, settings: Settings) -> Fleet:
    """Return the fleet with the times of each client's first local training in the trace, if there is one.

    Energies are scaled in proportion to the times.
    """
    if not settings.fleet.trace:
        return fleet
    everybody = np.arange(len(fleet))
    compute, upload = read_work(Path(settings.fleet.trace), fleet.names).at(everybody, np.zeros_like(everybody))
    upload = fleet.upload_ratio * upload
    with np.errstate(divide="ignore", invalid="ignore"):
        return replace(
            fleet,
            compute_s=compute,
            upload_s=upload,
            shared_upload_s=upload,
            latency_s=fleet.download_s + latency.latency_s(compute, upload),
            compute_j=fleet.compute_j / fleet.compute_s * compute,
            transmit_j=fleet.transmit_j / fleet.upload_s * upload,
            shared_transmit_j=fleet.transmit_j / fleet.upload_s * upload,
        )


def _drawn_fleet(settings: Settings, population: Population) -> Fleet:
    if settings.training.latency_samples == "processed":
        _, charged = local_work(settings, population.num_samples)
    else:
        charged = np.full(len(population), settings.training.latency_samples)
    cycles = latency.num_cycles(settings.training.charged_passes, population.cycles_per_sample, charged)
    compute_s = latency.compute_s(cycles, population.cpu_hz)
    links = _Links.of(settings, population) if settings.uses_positions else None
    upload_s, shared_s, download_s, error_rate = _sent_s(settings, population, links)
    shared_s = np.nan_to_num(shared_s, nan=np.inf, posinf=np.inf)
    fleet = make_fleet(
        settings,
        range(len(population)),
        population.num_samples,
        compute_s,
        upload_s,
        np.nan_to_num(download_s + latency.latency_s(compute_s, upload_s), nan=np.inf, posinf=np.inf),
        shared_upload_s=shared_s,
        download_s=download_s,
        compute_j=latency.compute_j(settings.fleet.energy_kappa, cycles, population.cpu_hz),
        transmit_j=latency.transmit_j(population.power_w, upload_s),
        shared_transmit_j=latency.transmit_j(population.power_w, shared_s),
    )
    fleet = replace(fleet, population=population, error_rate=error_rate)
    if links is None:
        return fleet
    snr_db = 10 * np.log10(links.snr(population.power_w))
    return replace(fleet, gain_db=links.gain_db, snr_db=snr_db, link=links.link)


class _Links(NamedTuple):
    """The links of drawn clients at the beginning of a run, without fading; arrays have shape (num_clients,)."""

    gain_db: FloatArray
    k_db: FloatArray | float
    """Rician K; −inf for Rayleigh fading."""
    link: Link
    """Noise and data rates."""

    @property
    def gain(self) -> FloatArray:
        """Gain as a ratio."""
        return link.gain(-self.gain_db)

    @classmethod
    def of(cls, settings: Settings, population: Population) -> Self:
        channel, everybody = channel_of(settings, population, population.seed), np.arange(len(population))[:, None]
        gain_db = channel.gain_db(everybody, np.zeros((1, 1)))[:, 0]
        k_db = k_db_of(settings.radio, channel, everybody, np.zeros((1, 1)))
        return cls(gain_db, k_db if isinstance(k_db, float) else k_db[:, 0], Link.of(settings.radio))

    def snr(self, power_w: FloatArray, num_bands: int = 1) -> FloatArray:
        """Return the signal-to-noise ratio on the combined band of `num_bands` clients."""
        return self.link.snr(power_w, self.gain, num_bands * self.link.band_hz)


def _sent_s(
    settings: Settings, population: Population, links: _Links | None
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray | None]:
    """Return upload times, those alone on the combined band of all clients, download times, and error rates.

    Bandwidth b and noise N0 grow with the number of bands, the power p does not. Times are those at the mean rate: of a
    client's SNR trace, of its phone, or of Eq. (5) at its position. Error rates are the probabilities that uploads on
    clients' own bands are corrupted; None if [radio] packet_error has no such probability.
    """
    radio, num_clients, fading = settings.radio, len(population), Fading(settings.radio)
    own_hz, has_errors, error_rate = fading.link.band_hz, radio.packet_error == "exponential", None
    if (traces := snr_traces_of(settings, num_clients, population.seed)) is not None:
        up_bps = traces.mean(lambda snr: fading.useful_bps(snr, -np.inf, own_hz))
        shared_bps = traces.mean(lambda snr: fading.useful_bps(snr / num_clients, -np.inf, num_clients * own_hz))
        down_bps = traces.mean(lambda snr: fading.rate_bps(snr, -np.inf, own_hz))
        error_rate = traces.mean(lambda snr: fading.error_rate(snr, -np.inf)) if has_errors else None
    elif (phones := phone_rates_of(settings, num_clients, population.seed)) is not None:
        up_bps, shared_bps, down_bps = phones.mean_bps("up"), phones.mean_bps("up"), phones.mean_bps("down")
    else:
        assert links is not None, "rates depend on positions"
        up_bps, shared_bps = (
            fading.useful_bps(links.snr(population.power_w, bands), links.k_db, bands * own_hz)
            for bands in (1, num_clients)
        )
        down_bps = fading.rate_bps(links.snr(np.full(num_clients, radio.station_power_w)), links.k_db, own_hz)
        error_rate = fading.error_rate(links.snr(population.power_w), links.k_db) if has_errors else None
    upload, shared_upload = (link.upload_s(settings.upload.bits, one) for one in (up_bps, shared_bps))
    download = link.upload_s(settings.upload.whole_bits, down_bps) if radio.download else np.zeros(num_clients)
    return upload, shared_upload, download, error_rate


def local_work(settings: Settings, num_samples: IntArray) -> tuple[IntArray, IntArray]:
    """Return the number of minibatches in one local training and of samples they process, each (num_clients,)."""
    training = settings.training
    batch, epochs = np.minimum(training.batch_size, num_samples), training.local_epochs
    if epochs:
        if (most := int(num_samples.max(initial=0))) * epochs > MAX_PROCESSED:
            raise InputError(f"local_epochs * num_samples must be at most {MAX_PROCESSED:g}, got {epochs} and {most}")
        return epochs * -(-num_samples // batch), epochs * num_samples
    return np.full(len(num_samples), training.local_steps), training.local_steps * batch


def batch_samples(settings: Settings, num_samples: IntArray) -> IntArray:
    """Return the number of samples in a minibatch of each client; 0 if clients train whole epochs."""
    if settings.training.local_epochs:
        return np.zeros_like(num_samples)
    return np.minimum(settings.training.batch_size, np.maximum(1, num_samples))


def client_weight(settings: Settings, num_samples: IntArray) -> FloatArray:
    """Return the aggregation weight of each client before normalization, shape (num_clients,)."""
    return num_samples.astype(np.float64) if settings.training.weighting == "samples" else np.ones(len(num_samples))


def quantile_of(seconds: FloatArray, share: float) -> float:
    """Return the value that this share of finite values do not exceed, rounded down to one of them."""
    place = math.floor(share * (len(seconds) - 1))
    return float(np.partition(seconds, place)[place])


def reach_of(seconds: FloatArray) -> float:
    """Return the largest of finite values that is not an outlier: at most OUTLIER times the 90 % quantile."""
    return float(seconds[seconds <= OUTLIER * quantile_of(seconds, 0.9)].max())


Columns = dict[str, list[Any] | None]


def links_of(fleet: Fleet, chosen: IntArray) -> Columns:
    """Return the links of the chosen clients to the base station as columns, with None as in `columns_of`."""
    placed = fleet.population if fleet.population is not None and fleet.population.is_placed else None
    links = {
        "distance_km": None if placed is None else placed.distance_km,
        "gain_db": fleet.gain_db,
        "snr_db": fleet.snr_db,
        "error_rate": fleet.error_rate,
        "rate_bps": None if np.isnan(fleet.upload_s).all() else fleet.rate_bps,
        "upload_bits": np.full(len(fleet), fleet.upload_bits),
    }
    return {name: None if values is None else finite_or_none(values[chosen]) for name, values in links.items()}


def columns_of(fleet: Fleet, chosen: IntArray) -> Columns:
    """Return names, positions (km), times (s) and energies (J) of the chosen clients as columns.

    Values that are not finite are None; so is a whole column of positions or energies if it is unknown for all clients.
    """
    placed = fleet.population if fleet.population is not None and fleet.population.is_placed else None
    columns = Columns(name=[fleet.names[client] for client in chosen.tolist()])
    for name in ("x_km", "y_km"):
        columns[name] = None if placed is None else finite_or_none(getattr(placed, name)[chosen])
    for name in ("compute_s", "upload_s", "latency_s", "compute_j", "transmit_j"):
        values: FloatArray = getattr(fleet, name)
        is_unknown = name.endswith("_j") and np.all(np.isnan(values))
        columns[name] = None if is_unknown else finite_or_none(values[chosen])
    return columns


def sample_by_latency(fleet: Fleet, most: int) -> IntArray:
    """Return at most `most` clients, sorted: evenly spaced by latency, with the fastest and the slowest."""
    if len(fleet) <= most:
        return np.arange(len(fleet))
    order = np.argsort(fleet.latency_s, kind="stable")
    return np.sort(order[np.linspace(0, len(fleet) - 1, most).round().astype(np.int64)])


def finite_or_none(values: FloatArray) -> list[float | None]:
    """Return the values as a list for JSON, with None for NaN and infinity."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
