"""A fleet: how long each client takes and what that costs, drawn from a scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lesson import radio
from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.fleet import latency
from lesson.fleet.population import Population, draw_population
from lesson.fleet.tiers import UNREACHABLE, assign_tiers
from lesson.fleet.traces import read_positions, read_work
from lesson.radio.channel import Channel, off_the_station
from lesson.settings.settings import Settings, section_of

NEEDS_POSITIONS = ("path_loss", "shadowing_db", "download", "fading", "speed_mps", "positions", "spectrum")
MAX_PROCESSED = 10**18
"""Samples that one piece of local work may see: more do not fit into 64 bits."""


@dataclass(frozen=True)
class Promotion:
    """A client put into tier 1, which would be empty without it, and the latency it really has."""

    client: int
    latency_s: float


@dataclass(frozen=True, eq=False)
class Fleet:
    """What the clock and the server need of each client; arrays are (num_clients,), NaN where not known.

    Nothing writes to these arrays: whatever learns new values works on copies.
    """

    names: Sequence[int | str]
    compute_s: FloatArray
    upload_s: FloatArray
    shared_upload_s: FloatArray
    """Seconds to upload alone on the band of all clients together, for strategies whose clients send in turn."""
    latency_s: FloatArray
    download_s: FloatArray
    """Seconds until the model is there, in `latency_s` too; 0 where it is neglected, as the paper does."""
    compute_j: FloatArray
    transmit_j: FloatArray
    shared_transmit_j: FloatArray
    num_samples: IntArray
    client_weight: FloatArray
    """What a client counts for in a merge: its samples, or 1."""
    local_steps: IntArray
    """Minibatches that `compute_s` is charged for."""
    model_bits: float
    """Size of a model that is sent."""
    population: Population | None = None
    promoted: Promotion | None = None

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def reachable(self) -> BoolArray:
        """Which clients ever arrive, (num_clients,)."""
        return np.isfinite(self.latency_s)

    @property
    def assumed_latency_ratio(self) -> FloatArray:
        """What each client's times are taken to be of what they really are, (num_clients,): 1, unless promoted."""
        ratio = np.ones(len(self))
        if self.promoted is not None:
            ratio[self.promoted.client] = self.latency_s[self.promoted.client] / self.promoted.latency_s
        return ratio

    @property
    def slowest_s(self) -> float:
        """Latency of the slowest reachable client: the round length of FedAvg."""
        if not self.reachable.any():
            raise InputError(f"no client can be reached: all {len(self)} latencies are infinite")
        return float(self.latency_s[self.reachable].max())

    def first(self, count: int) -> "Fleet":
        """The first so many clients, or all if there are not more, as they are in this fleet: alone on the band of all
        its clients, as far as `shared_upload_s` goes."""
        if count >= len(self):
            return self
        cut: dict[str, Any] = {name: part[:count] for name, part in vars(self).items() if isinstance(part, np.ndarray)}
        return replace(
            self,
            names=self.names[:count],
            population=None if self.population is None else self.population.first(count),
            promoted=self.promoted if self.promoted is not None and self.promoted.client < count else None,
            **cut,
        )

    def with_first_tier(self, deadline_s: float) -> "Fleet":
        """This fleet if somebody is in tier 1; else with its fastest client's latency taken as the deadline."""
        tiers = assign_tiers(self.latency_s, deadline_s)
        if np.any(tiers == 1) or np.all(tiers == UNREACHABLE):
            return self
        fastest = int(np.argmin(self.latency_s))
        real_s = float(self.latency_s[fastest])

        def taken_as_deadline(seconds: FloatArray) -> FloatArray:
            changed = seconds.copy()
            changed[fastest] *= deadline_s / real_s
            return changed

        latencies = self.latency_s.copy()
        latencies[fastest] = deadline_s
        return replace(
            self,
            compute_s=taken_as_deadline(self.compute_s),
            upload_s=taken_as_deadline(self.upload_s),
            download_s=taken_as_deadline(self.download_s),
            latency_s=latencies,
            promoted=Promotion(fastest, real_s),
        )


def draw_fleet(
    settings: Settings, num_clients: int | None = None, seed: int = 0, num_samples: IntArray | None = None
) -> Fleet:
    """The fleet of a drawn population, with the latencies of Eq. (3) to (6).

    `num_samples` is what each client really holds, where a data set has been divided; else it is drawn.
    """
    people = draw_population(settings, num_clients, seed)
    if num_samples is not None:
        people = replace(people, num_samples=num_samples)
    if settings.fleet.positions:
        people = _as_itinerary_begins(people, settings)
    with np.errstate(all="ignore"):  # settings far out give infinite latencies: unreachable clients
        return _as_traced(_fleet_of(settings, people), settings)


def measured_fleet(
    settings: Settings,
    names: Sequence[int | str],
    num_samples: IntArray,
    compute_s: FloatArray,
    upload_s: FloatArray,
    latency_s: FloatArray,
) -> Fleet:
    """The fleet of clients whose times were measured; what an upload costs alone on the channel is what it costs."""
    unknown = np.full(len(names), np.nan)
    measured = Fleet(
        names=names,
        compute_s=compute_s,
        upload_s=upload_s,
        shared_upload_s=upload_s,
        latency_s=latency_s,
        download_s=np.zeros(len(names)),
        compute_j=unknown,
        transmit_j=unknown,
        shared_transmit_j=unknown,
        num_samples=num_samples,
        client_weight=client_weight(settings, num_samples),
        local_steps=local_work(settings, num_samples)[0],
        model_bits=settings.upload.model_bits,
    )
    return _as_traced(measured, settings)


def check_measured(settings: Settings) -> None:
    """Raise if a setting needs the positions of clients, which measured latencies do not give."""
    for name in settings.changed_names(*NEEDS_POSITIONS):
        raise InputError(
            f"[{section_of(name)}] {name} must be left out with measured latencies: they do not tell where clients are"
        )


def _as_itinerary_begins(people: Population, settings: Settings) -> Population:
    """A population that stands where a file of positions says that it is at first."""
    everybody = np.arange(len(people))
    places = read_positions(Path(settings.fleet.positions), everybody.tolist(), settings.fleet.area_km)
    x_km, y_km = radio.Itinerary(places).at(everybody, np.zeros((len(people), 1)))
    x_km, y_km = off_the_station(x_km[:, 0], y_km[:, 0])
    return replace(people, x_km=x_km, y_km=y_km)


def _as_traced(fleet: Fleet, settings: Settings) -> Fleet:
    """A fleet with the times that a trace says of each client's first piece of work, if there is one."""
    if not settings.fleet.trace:
        return fleet
    everybody = np.arange(len(fleet))
    compute, upload = read_work(Path(settings.fleet.trace), fleet.names).at(everybody, np.zeros_like(everybody))
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


def _fleet_of(settings: Settings, people: Population) -> Fleet:
    steps, processed = local_work(settings, people.num_samples)
    charged = (
        processed
        if settings.training.latency_samples == "processed"
        else np.full(len(people), settings.training.latency_samples)
    )
    cycles = latency.num_cycles(settings.training.local_iterations, people.cycles_per_sample, charged)
    gain = radio.gain(Channel(settings, people.seed).loss_db(people.x_km, people.y_km))

    def sent_s(power_w: FloatArray, num_bands: int = 1) -> FloatArray:
        """Seconds to send a model over so many clients' bands, noise included: b and N0 grow with them, p does not."""
        noise_w = num_bands * radio.watts(settings.radio.noise_dbm)
        snr = radio.signal_to_noise(power_w, gain, noise_w)
        return radio.upload_s(settings.upload.model_bits, radio.rate_bps(num_bands * settings.radio.bandwidth_hz, snr))

    compute, upload = latency.compute_s(cycles, people.cpu_hz), sent_s(people.power_w)
    station_w = np.full(len(people), settings.radio.station_power_w)
    download = sent_s(station_w) if settings.radio.download else np.zeros(len(people))
    shared_upload = np.nan_to_num(sent_s(people.power_w, len(people)), nan=np.inf, posinf=np.inf)
    return Fleet(
        names=range(len(people)),
        compute_s=compute,
        upload_s=upload,
        shared_upload_s=shared_upload,
        latency_s=np.nan_to_num(download + latency.latency_s(compute, upload), nan=np.inf, posinf=np.inf),
        download_s=download,
        compute_j=latency.compute_j(settings.fleet.energy_kappa, cycles, people.cpu_hz),
        transmit_j=latency.transmit_j(people.power_w, upload),
        shared_transmit_j=latency.transmit_j(people.power_w, shared_upload),
        num_samples=people.num_samples,
        client_weight=client_weight(settings, people.num_samples),
        local_steps=steps,
        model_bits=settings.upload.model_bits,
        population=people,
    )


def local_work(settings: Settings, num_samples: IntArray) -> tuple[IntArray, IntArray]:
    """Minibatches of one piece of local work and the samples they see, each (num_clients,)."""
    training = settings.training
    batch, epochs = np.minimum(training.batch_size, num_samples), training.local_epochs
    if epochs:
        if (most := int(num_samples.max(initial=0))) * epochs > MAX_PROCESSED:
            raise InputError(f"local_epochs * num_samples must be at most {MAX_PROCESSED:g}, got {epochs} and {most}")
        return epochs * -(-num_samples // batch), epochs * num_samples
    return np.full(len(num_samples), training.local_steps), training.local_steps * batch


def client_weight(settings: Settings, num_samples: IntArray) -> FloatArray:
    """What each client counts for in a merge before normalizing, (num_clients,)."""
    return num_samples.astype(np.float64) if settings.training.weighting == "samples" else np.ones(len(num_samples))


Columns = dict[str, list[Any] | None]


def columns_of(fleet: Fleet, chosen: IntArray) -> Columns:
    """Names, places, seconds and joules of some clients; places or joules that nobody knows of any are None."""
    people, columns = fleet.population, Columns(name=[fleet.names[client] for client in chosen.tolist()])
    for name in ("x_km", "y_km"):
        columns[name] = None if people is None else finite_or_none(getattr(people, name)[chosen])
    for name in ("compute_s", "upload_s", "latency_s"):
        columns[name] = finite_or_none(getattr(fleet, name)[chosen])
    for name in ("compute_j", "transmit_j"):
        joules: FloatArray = getattr(fleet, name)
        columns[name] = None if np.all(np.isnan(joules)) else finite_or_none(joules[chosen])
    return columns


def sample_by_latency(fleet: Fleet, most: int) -> IntArray:
    """All clients, or so many of them: every so many-th by latency, the fastest and the slowest among them, sorted."""
    if len(fleet) <= most:
        return np.arange(len(fleet))
    order = np.argsort(fleet.latency_s, kind="stable")
    return np.sort(order[np.linspace(0, len(fleet) - 1, most).round().astype(np.int64)])


def finite_or_none(values: FloatArray) -> list[float | None]:
    """Numbers as JSON takes them."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
