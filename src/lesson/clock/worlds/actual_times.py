"""Actual times of local training and transfers in a varying world, and when clients leave or disconnect.

Times vary with fading, movement, measured channels, a shared band, random slowdown, measured distributions or a trace.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lesson.clock.estimates import PARTS, take_turns
from lesson.clock.faults import Disconnections
from lesson.clock.ledger import Ledger
from lesson.clock.resources import size_scale, slowdown, usual_rate_bps
from lesson.clock.worlds.airtime import Airtime
from lesson.core.arrays import NO_CLIENTS, BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import exponentials, key, uniforms
from lesson.fleet.allocation import Resources
from lesson.fleet.channels import phone_rates_of
from lesson.fleet.fleet import Fleet
from lesson.fleet.phones import PhoneRates
from lesson.fleet.tiers import TOLERANCE
from lesson.fleet.traces import Presence, WorkTrace, read_presence, read_work
from lesson.radio.link import MAX_TIMES_SENT
from lesson.radio.sharing import SharedBand
from lesson.settings.settings import Settings
from lesson.strategies.base import Updates


class ActualTimes:
    """Actual duration of each local training and its transfers.

    Arrays have shape (num_clients,) and describe each client's latest local training.
    """

    SAVED = (*PARTS, "_upload_begins_s", "_shares", "lost", "_leaves_s", "back_s", "_to_forecast", "_band", "_factor")

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        seed: int,
        disconnections: Disconnections | None = None,
        trace: WorkTrace | None = None,
        presence: Presence | None = None,
    ) -> None:
        """Read the files that [fleet] names; without them, `trace` and `presence` are used."""
        _check_known(settings, fleet)
        population, compute_w, transmit_w = fleet.population, np.full(len(fleet), np.nan), np.full(len(fleet), np.nan)
        if population is not None:  # for clients whose power is not energy / time
            compute_w, transmit_w = settings.fleet.energy_kappa * population.cpu_hz**3, population.power_w.copy()
        self._compute_w = _ratio(fleet.compute_j, fleet.compute_s, compute_w)
        self._transmit_w = _ratio(fleet.transmit_j, fleet.upload_s, transmit_w)
        fleet = _with_parts(fleet)
        self._fleet, self._slowdown, self._slow = fleet, settings.fleet.slowdown, key(seed, "slowdown")
        self._drawn = key(seed, "latency")
        self._factor: FloatArray = np.ones(len(fleet))
        """Drawn latency divided by its mean; 1 if latencies have no distribution."""
        self._knows_means = settings.server.estimate == "last"
        """Whether the server knows the means of latencies that have a distribution, instead of observing latencies."""
        self.download_s: FloatArray = np.zeros(len(fleet))
        self.compute_s: FloatArray = np.zeros(len(fleet))
        self.upload_s: FloatArray = np.zeros(len(fleet))
        """Seconds spent uploading, without waiting for a turn."""
        self._upload_begins_s: FloatArray = np.zeros(len(fleet))
        """When each upload begins; on a shared band, when the client is ready to upload."""
        self._shares: BoolArray = np.zeros(len(fleet), dtype=np.bool_)
        """Whether each client uploads on the shared band."""
        self.lost: BoolArray = np.zeros(len(fleet), dtype=np.bool_)
        """Whether each client's update never arrives, because the client leaves or disconnects first."""
        self._leaves_s: FloatArray = np.full(len(fleet), np.inf)
        """When each client leaves or disconnects; inf if never."""
        self.back_s: FloatArray = np.zeros(len(fleet))
        """When each client rejoins after a disconnection; inf if never, 0 if it has not disconnected."""
        self._disconnections = disconnections
        if settings.fleet.trace:
            trace = read_work(Path(settings.fleet.trace), fleet.names)
        if settings.fleet.presence:
            presence = read_presence(Path(settings.fleet.presence), fleet.names)
        self._trace = None if trace is None else _traced(trace, fleet)
        self.presence = presence or Presence(len(fleet), NO_CLIENTS, np.empty(0), np.empty(0))
        self._phones: PhoneRates | None = None
        if population is not None:
            self._phones = phone_rates_of(settings, len(fleet), population.seed)
        self._up_bits: FloatArray = fleet.upload_bits * fleet.assumed_latency_ratio
        """Size of each client's usual upload in bits; smaller for a promoted client, to match its assumed latency."""
        self._down_bits: FloatArray = fleet.model_bits * fleet.assumed_latency_ratio
        self._airtime: Airtime | None = None
        self._errors, self._packets = settings.radio.on_error, key(seed, "packet errors")
        self._has_errors = settings.radio.packet_error == "exponential"
        if population is not None and (
            settings.channel_changes or settings.radio.spectrum != "fixed" or self._has_errors
        ):
            self._airtime = Airtime(settings, fleet, population, seed)
        self._downloads = settings.radio.download
        self._band: SharedBand | None = None
        if self._airtime is not None and settings.radio.spectrum != "fixed":
            self._band = SharedBand(
                settings.radio.spectrum, self._airtime.shared_rate_bps, self._airtime.shared_block_s
            )
        self._spectrum, self._to_forecast = settings.radio.spectrum, False

    def launch(
        self,
        clients: IntArray,
        index: IntArray,
        compute_scale: FloatArray,
        upload_scale: FloatArray,
        now_s: float,
        free_s: float | None = None,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Start local trainings now; return when each update arrives, or when the server notices that it is lost.

        `index` numbers each client's local trainings from 0; `compute_scale` multiplies the usual compute time, and
        `upload_scale` the size of the usual upload. The result is inf for uploads on a shared band, whose arrivals
        `forecast` schedules. With `free_s`, clients upload in turn on one channel, which is free from then on.
        `resources` are those of all clients; None if they have their usual ones.
        """
        if self._fleet.spread is not None:
            factor = self._factor[clients] = self._fleet.spread.factors(self._drawn, clients, index)
            compute_scale, upload_scale = factor * compute_scale, factor * upload_scale
        ready_s = now_s + self._prepare(clients, index, compute_scale, now_s)
        leaves_s = self.presence.leaves_s(clients, now_s)
        drops_out_s = self._drop_out(clients, index, ready_s, now_s, leaves_s)
        leaves_s = np.minimum(leaves_s, drops_out_s)
        self._leaves_s[clients], self._shares[clients] = leaves_s, False
        delay_s = 0.0 if self._disconnections is None else self._disconnections.detection_delay_s
        late_s = np.where(leaves_s == drops_out_s, delay_s, 0.0)
        fails, times_sent = self._fail(clients, index, ready_s, whole_band=free_s is not None, resources=resources)
        upload_scale = upload_scale * times_sent
        if self._band is not None and self._airtime is not None and free_s is None:
            self._upload_begins_s[clients], self.upload_s[clients] = ready_s, 0.0
            self.lost[clients] = (leaves_s < np.inf) | fails
            sends = np.isinf(leaves_s)
            self._shares[clients] = sends
            self._band.add(clients[sends], ready_s[sends], (upload_scale * self._up_bits[clients])[sends])
            self._to_forecast = True
            return leaves_s + late_s
        if free_s is None:
            sends_s = self._sends_s(clients, index, upload_scale, ready_s, resources=resources)
            begins_s, self.upload_s[clients] = ready_s, sends_s
        elif self._spectrum == "equal":
            raise InputError(
                "[radio] spectrum must not be 'equal' with a strategy whose clients upload in turn; use 'in-turn'"
            )
        else:
            begins_s, self.upload_s[clients] = self._in_turn(clients, index, upload_scale, ready_s, leaves_s, free_s)
        self._upload_begins_s[clients], ends_s = begins_s, begins_s + self.upload_s[clients]
        leaves_first = ends_s > leaves_s * (1 + TOLERANCE)
        self.lost[clients] = leaves_first | fails
        return np.where(leaves_first, leaves_s + late_s, ends_s)

    def _fail(
        self, clients: IntArray, index: IntArray, ready_s: FloatArray, *, whole_band: bool, resources: Resources | None
    ) -> tuple[BoolArray, FloatArray | float]:
        """Return which updates are lost although they are uploaded, and how often each upload is sent.

        The error rate is that at the beginning of the upload. On a band that is split, it is that of the own band.
        """
        if self._trace is not None:
            return self._trace.fails(clients, index), 1.0
        if not self._has_errors or self._airtime is None:
            return np.zeros(len(clients), dtype=np.bool_), 1.0
        whole_band = whole_band or self._spectrum == "in-turn"
        rate = self._airtime.error_rate(clients, ready_s, whole_band=whole_band, resources=resources)
        drawn = uniforms(self._packets, clients, index)
        if self._errors == "lose":
            return drawn < rate, 1.0
        with np.errstate(divide="ignore"):  # sent more than n times with probability rate^n
            times_sent = 1 + np.floor(np.abs(np.log(drawn) / np.log(rate)))  # inf at a rate of 1
        return times_sent > MAX_TIMES_SENT, np.minimum(times_sent, MAX_TIMES_SENT)

    def _drop_out(
        self, clients: IntArray, index: IntArray, ready_s: FloatArray, now_s: float, leaves_s: FloatArray
    ) -> FloatArray:
        """Return when each client disconnects from a local training that would end at `ready_s`; note when it rejoins.

        The result is inf if a client does not disconnect, or leaves first. A client that is still offline, without the
        server having noticed, disconnects at once.
        """
        if self._disconnections is None:
            return np.full(len(clients), np.inf)
        moments = self._disconnections.moments(clients, index)
        at_s = np.where(np.isinf(moments), np.inf, now_s + np.minimum(moments, 1.0) * (ready_s - now_s))
        offline = self.back_s[clients] > now_s
        at_s = np.where(offline, now_s, np.where(at_s <= leaves_s, at_s, np.inf))
        back_s = np.where(np.isinf(at_s), 0.0, at_s + self._disconnections.offline_s(clients, index))
        self.back_s[clients] = np.where(offline, self.back_s[clients], back_s)
        return at_s

    def _prepare(self, clients: IntArray, index: IntArray, compute_scale: FloatArray, now_s: float) -> FloatArray:
        """Return the seconds from each client's start to the end of its computing; note download and compute time."""
        download_s = self._fleet.download_s[clients]
        if self._downloads and self._airtime is not None:
            begin_s = np.full(len(clients), now_s)
            download_s = self._airtime.ends_s(clients, self._down_bits[clients], begin_s, down=True) - now_s
        elif self._downloads and self._phones is not None:
            download_s = self._down_bits[clients] / self._phones.rate_bps("down", clients, index)
        usual_s = self._fleet.compute_s[clients] if self._trace is None else self._trace.at(clients, index)[0]
        compute_s = compute_scale * usual_s
        if self._slowdown:
            compute_s = compute_s * (1 + self._slowdown * exponentials(self._slow, clients, index))
        self.download_s[clients], self.compute_s[clients] = download_s, compute_s
        return download_s + compute_s

    def _sends_s(
        self,
        clients: IntArray,
        index: IntArray,
        upload_scale: FloatArray,
        begins_s: FloatArray,
        *,
        whole_band: bool = False,
        resources: Resources | None = None,
    ) -> FloatArray:
        """Return how long uploads that begin at `begins_s` take, on the client's own band or alone on the whole one."""
        if self._trace is not None:
            return upload_scale * self._trace.at(clients, index)[1]
        bits = upload_scale * self._up_bits[clients]
        if self._phones is not None:
            return bits / self._phones.rate_bps("up", clients, index)
        if self._airtime is not None:
            ends_s = self._airtime.ends_s(clients, bits, begins_s, whole_band=whole_band, resources=resources)
            with np.errstate(invalid="ignore"):  # inf − inf if an upload never begins
                return np.nan_to_num(ends_s - begins_s, nan=0.0, posinf=np.inf)
        if resources is not None:
            upload_scale = upload_scale * slowdown(self._fleet, clients, resources)
        return upload_scale * (self._fleet.shared_upload_s if whole_band else self._fleet.upload_s)[clients]

    def _in_turn(
        self,
        clients: IntArray,
        index: IntArray,
        upload_scale: FloatArray,
        ready_s: FloatArray,
        leaves_s: FloatArray,
        free_s: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Return when uploads begin, and how long they take, if each uses the whole band after the one before.

        A client that leaves or disconnects frees the band for the next.
        """

        def upload_s(place: int, begin_s: float) -> float:
            here = slice(place, place + 1)
            one = clients[here], index[here], upload_scale[here], np.array([begin_s])
            return float(self._sends_s(*one, whole_band=True)[0])

        return take_turns(ready_s, free_s, upload_s, leaves_s)

    def asked_s(self, clients: IntArray, now_s: float) -> dict[str, FloatArray]:
        """Return the download, compute and upload time of the usual local training for idle clients now.

        Transfer times are those at the mean rate at each client's current position; with a trace, compute and upload
        times are the means of its rows.
        """
        fleet = self._fleet
        compute_s, upload_s, download_s = fleet.compute_s[clients], fleet.upload_s[clients], fleet.download_s[clients]
        if self._trace is not None:
            compute_s, upload_s = self._trace.usual(clients)
        elif self._airtime is not None:
            upload_s = self._airtime.typical_s(clients, self._up_bits[clients], now_s)
            if self._downloads:
                download_s = self._airtime.typical_s(clients, self._down_bits[clients], now_s, down=True)
        return {"download_s": download_s, "compute_s": compute_s, "upload_s": upload_s}

    def forecast(self, ledger: Ledger) -> None:
        """Schedule the arrivals of updates on a shared band, assuming that no other client starts."""
        if self._band is not None and self._to_forecast:
            clients, arrives_s = self._band.forecast()
            if self._disconnections is not None:
                others = np.setdiff1d(ledger.clients_in_flight(), clients)
                clients = np.concatenate([clients, others])
                arrives_s = np.concatenate([arrives_s, ledger.updates_of(others).arrived_s])
            ledger.reschedule(clients, arrives_s)
            self._to_forecast = False

    def pass_time(self, now_s: float) -> None:
        """Advance the shared band to `now_s`."""
        if self._band is not None:
            self._band.advance(now_s)

    def leave_band(self, clients: IntArray, *, dropped: bool = False) -> None:
        """Remove clients from the shared band after their updates have arrived or were dropped."""
        if self._band is not None:
            leaving = clients[self._shares[clients]]
            self.upload_s[leaving] = self._band.sent_s(leaving)
            self._band.remove(leaving)
            self._to_forecast |= dropped

    def parts_s(self, arrived: Updates, resources: Resources | None = None) -> dict[str, FloatArray]:
        """Return the times that the server measures for arrived updates, scaled to the usual local training, by part.

        Clients report when they have received the model and when they have finished computing; on a shared band, all
        the time after that counts as upload. Upload times of uploads in turn are converted to the client's own band, as
        are those with allocated `resources`, by the SNR that follows from their data rates.
        """
        clients, fleet, in_turn = arrived.client, self._fleet, arrived.in_turn
        seems_s = arrived.arrived_s - self._upload_begins_s[clients]
        upload_s = np.where(self._shares[clients], seems_s, self.upload_s[clients])
        if in_turn.any():
            alone_s, own_s = fleet.shared_upload_s[clients], fleet.upload_s[clients]
            upload_s *= np.divide(own_s, alone_s, out=np.ones(len(clients)), where=in_turn & (alone_s > 0))
        if resources is None:
            upload_s = upload_s / arrived.upload_scale
        else:
            bits = size_scale(fleet, arrived) * self._up_bits[clients]
            upload_s = self._up_bits[clients] / usual_rate_bps(fleet, clients, bits / upload_s, resources)
        factor = self._factor[clients] if self._knows_means else 1.0
        return {
            "download_s": self.download_s[clients],
            "compute_s": self.compute_s[clients] / arrived.compute_scale / factor,
            "upload_s": upload_s / factor,
        }

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | None = None) -> FloatArray:
        """Return the compute and transmit energy of updates, shape (2, num_updates); see `World.energy_j`."""
        clients, started_s = updates.client, updates.started_s
        leaves_s = self._leaves_s[clients] - started_s  # a client that has left uses no energy
        elapsed_s = leaves_s if elapsed_s is None else np.minimum(elapsed_s, leaves_s)
        computing_s = np.clip(elapsed_s - self.download_s[clients], 0, self.compute_s[clients])
        sent_s = np.clip(started_s + elapsed_s - self._upload_begins_s[clients], 0, self.upload_s[clients])
        sending_s = np.where(self._shares[clients], self.upload_s[clients], sent_s)
        return np.array([computing_s * self._compute_w[clients], sending_s * self._transmit_w[clients]])


def _traced(work: WorkTrace, fleet: Fleet) -> WorkTrace:
    """Return a trace with the upload times of the fleet's uploads; those of a promoted client match its latency."""
    ratio = np.repeat(fleet.assumed_latency_ratio, np.diff(work.offsets))
    return replace(work, compute_s=ratio * work.compute_s, upload_s=ratio * fleet.upload_ratio * work.upload_s)


def _check_known(settings: Settings, fleet: Fleet) -> None:
    """Raise if a fleet lacks values that the settings require."""
    if fleet.population is None:
        settings.check_excluded("latencies", "a fleet of measured clients")
        if fleet.spread is not None and settings.fleet.trace:
            raise InputError("sd_s in the file of latencies cannot be combined with [fleet] trace, which has all times")
        unknown = np.flatnonzero(np.isnan(fleet.compute_s) & fleet.reachable)
        if settings.fleet.slowdown and len(unknown):
            raise InputError(
                f"[fleet] slowdown needs compute_s of every client, but {len(unknown)} have none, first client "
                f"'{str(fleet.names[unknown[0]])[:40]}'; fill in the column in the file of latencies"
            )


def _ratio(joules: FloatArray, seconds: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Return the power in watts, shape (num_clients,); `otherwise` if the time is 0, infinite or unknown."""
    return np.divide(joules, seconds, out=otherwise, where=(seconds > 0) & np.isfinite(seconds))


def _with_parts(fleet: Fleet) -> Fleet:
    """Return the fleet with unknown compute and upload times replaced by what the other parts leave of the latency.

    If both are unknown, all of it is compute time. The clock needs parts that add up to the latency, and the server
    measures the same parts.
    """
    with np.errstate(invalid="ignore"):
        left_s = fleet.latency_s - fleet.download_s
        compute_s = np.where(np.isnan(fleet.compute_s), left_s - np.nan_to_num(fleet.upload_s), fleet.compute_s)
        upload_s = np.where(np.isnan(fleet.upload_s), left_s - compute_s, fleet.upload_s)
    return replace(fleet, compute_s=np.maximum(compute_s, 0.0), upload_s=np.maximum(upload_s, 0.0))
