"""Fits a fleet to a recording: for every client its times, failures and presence, ready to be simulated.

A client's future local trainings are drawn from its recorded ones by a block bootstrap: blocks of consecutive jobs,
which begin at the same positions in the recording for all clients. Slow phases of a client and slow phases of the whole
fleet, such as a busy network, are thereby kept. Before each simulation, the blocks themselves are drawn with
replacement, so the spread over simulations includes the uncertainty of a short recording. Latencies are smoothed by a
narrow kernel, because the slowest of a few recorded ones is not the slowest possible one.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.core.random import stream
from lesson.fleet.fleet import Fleet, make_fleet
from lesson.fleet.traces import Presence, WorkTrace
from lesson.flight.recording import ARRIVED, FAILED, OPEN, RESTARTED, Recording
from lesson.flight.timeline import grouped, rounds_of
from lesson.settings.settings import Settings

MIN_OBSERVED = 5
"""Clients with fewer replies borrow the variation of all clients."""
COLD = 1.5
"""A client's first reply is left out if it took longer than all later ones, and more than COLD times their median."""
MIN_TRACE, MAX_TRACE = 64, 512
"""Smallest and largest number of local trainings drawn per client; after that, a trace repeats."""
MAX_BANDWIDTH = 0.5
"""Largest width of the kernel, for clients whose latencies alternate; it raises their mean by exp(0.5²/2), or 13 %."""
JOIN_GAP_S = 30.0
"""An absence shorter than this around a restart of the server is an artifact of the restart."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Recorded jobs of one client that have ended, in order of time; arrays have shape (num_jobs,)."""

    latency_s: FloatArray
    compute_share: FloatArray
    """Share of the latency that was computing; NaN if unknown."""
    is_lost: BoolArray

    @property
    def replies_s(self) -> FloatArray:
        """Latencies of the jobs that arrived; of all jobs if none arrived."""
        return self.latency_s if self.is_lost.all() else self.latency_s[~self.is_lost]

    @cached_property
    def bandwidth(self) -> float:
        """Width of a kernel that smooths the latencies, as a share of them, by Silverman's rule s·n^(−1/5).

        s is the spread of log-latencies from one job to the next, estimated by the median of absolute differences, so
        that phases in which a client is slower do not count.
        """
        steps = np.abs(np.diff(np.log(self.replies_s)))
        spread = float(np.median(steps)) / (0.6745 * math.sqrt(2)) if len(steps) else 0.0
        return min(MAX_BANDWIDTH, float(spread * len(self.replies_s) ** -0.2))


@dataclass(frozen=True, eq=False)
class FittedFleet:
    """The clients of a recording that were asked to train.

    Attributes:
        recording: Recording to which the fleet was fitted.
        names: Names of the clients.
        observed: Recorded jobs of each client.
        is_pooled: Clients with fewer than MIN_OBSERVED replies, shape (num_clients,).
        pool: Latencies of all clients, each divided by its client's median.
        num_samples: Samples that each client trained on.
        energy_j: Mean energy of a client's local training in joules; NaN if unknown.
        overhead_s: Median time between the end of a round and the start of the next; 0 if rounds are unknown.
        intervals: Presence of clients that joined late or left, as (client, from_s, to_s) since the first request.
        duration_s: Seconds from the first request to the last event.
        notes: What was assumed or left out, one line each.
    """

    recording: Recording
    names: tuple[str, ...]
    observed: tuple[Observed, ...]
    is_pooled: BoolArray
    pool: FloatArray
    num_samples: IntArray
    energy_j: FloatArray
    overhead_s: float
    intervals: tuple[tuple[int, float, float], ...]
    duration_s: float
    notes: tuple[str, ...]

    @cached_property
    def split_is_known(self) -> bool:
        """Whether the compute time of every client is known, so that its transfer time is, too."""
        return all(np.isfinite(one.compute_share).any() for one in self.observed)

    @cached_property
    def median_s(self) -> FloatArray:
        """Median latency of each client's replies, or of its failures if it never replied, shape (num_clients,)."""
        return np.array([float(np.median(one.replies_s)) for one in self.observed])

    @property
    def transfer_s(self) -> float:
        """Median over the clients of the time that messages take beside local training; NaN if it is unknown."""
        return float(np.median(self.median_s * (1 - self._compute_share)))

    def fleet(self, settings: Settings | None = None) -> Fleet:
        """Return the clients with their median latencies; a client that never replied is unreachable."""
        never_replied = np.array([one.is_lost.all() for one in self.observed])
        return self._fleet(settings or Settings(), np.where(never_replied, math.inf, self.median_s))

    def first_estimates(self, trace: WorkTrace, settings: Settings) -> Fleet:
        """Return the clients with the latencies of their first local trainings in a trace; medians for failed ones."""
        everybody = np.arange(len(self.names))
        first = np.zeros_like(everybody)
        compute_s, upload_s = trace.at(everybody, first)
        return self._fleet(settings, np.where(trace.fails(everybody, first), self.median_s, compute_s + upload_s))

    def presence(self) -> Presence | None:
        """Return when clients are connected; None if all of them always are."""
        if not self.intervals:
            return None
        client, from_s, to_s = (np.array(column) for column in zip(*self.intervals, strict=True))
        return Presence(len(self.names), client, from_s, to_s)

    def draw_trace(self, seed: int, replicate: int) -> WorkTrace:
        """Draw future local trainings of all clients; every replicate of a seed is another draw."""
        rng = stream(seed, "flight", replicate)
        counts = np.array([len(one.latency_s) for one in self.observed])
        length = int(np.clip(4 * counts.max(), MIN_TRACE, MAX_TRACE))
        block = max(1, round(float(np.median(counts)) ** (1 / 3)))
        # The recording is resampled first, as a set of blocks; what follows is drawn from these. One block less than
        # the recording has makes the variance of a mean unbiased (Rao and Wu 1988).
        begins = rng.random(max(2, math.ceil(float(np.median(counts)) / block) - 1))
        begins = begins[rng.integers(len(begins), size=math.ceil(length / block))]
        columns = [self._draw(client, begins, block, length, rng) for client in range(len(self.names))]
        latency_s, share, is_lost = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        compute_s = latency_s * np.nan_to_num(share, nan=1.0)
        offsets = np.arange(len(self.names) + 1) * length
        return WorkTrace(compute_s, latency_s - compute_s, offsets, is_lost)

    def _draw(
        self, client: int, begins: FloatArray, block: int, length: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return latencies, compute shares and failures of a client's next `length` local trainings."""
        one = self.observed[client]
        first = (begins * len(one.latency_s)).astype(np.int64)
        places = ((first[:, None] + np.arange(block)) % len(one.latency_s)).reshape(-1)[:length]
        latency_s = one.latency_s[places]
        if self.is_pooled[client]:
            ratio = self.pool[rng.integers(len(self.pool), size=length)]
            usual_s = np.where(one.is_lost[places], latency_s, self.median_s[client])
            latency_s = usual_s * ratio
        width = 0.0 if self.is_pooled[client] else one.bandwidth
        latency_s = latency_s * np.exp(width * rng.standard_normal(length))
        return latency_s, one.compute_share[places], one.is_lost[places]

    @cached_property
    def _compute_share(self) -> FloatArray:
        """Median share of each client's latency that is computing; NaN if the split is unknown."""
        known = self.split_is_known
        return np.array([np.nanmedian(one.compute_share) if known else math.nan for one in self.observed])

    def _fleet(self, settings: Settings, latency_s: FloatArray) -> Fleet:
        with np.errstate(invalid="ignore"):
            compute_s = latency_s * self._compute_share
            upload_s = latency_s - compute_s
        names: list[int | str] = list(self.names)
        fleet = make_fleet(settings, names, self.num_samples, compute_s, upload_s, latency_s)
        return replace(fleet, batch_samples=np.zeros_like(self.num_samples))  # the work is unknown, except for its time


def fit(recording: Recording) -> FittedFleet:
    """Fit a fleet to a recording.

    Raises:
        InputError: No client ever replied.
    """
    jobs, notes = recording.jobs, list[str]()
    outcome, ended_s = jobs.outcome.copy(), jobs.ended_s.copy()
    if not np.any(outcome == ARRIVED):
        raise InputError(f"{recording.name} has no replies from clients; record a run in which clients reply")
    intervals = _joined(recording)
    jobs_of = grouped(jobs.client, len(recording.names))
    explained = _ended_by_absence(recording, intervals, jobs_of)
    num_ended = np.bincount(jobs.client[outcome != OPEN], minlength=len(recording.names))
    slowest_s = np.max(jobs.latency_s[outcome == ARRIVED])
    # Asked, and no reply by the end of the recording, although others replied in less time. If the client was asked
    # again, the server had stopped waiting.
    is_open = (num_ended[jobs.client] == 0) & (recording.end_s - jobs.asked_s >= slowest_s)
    for asked in jobs_of:
        again_s = np.append(jobs.asked_s[asked[1:]], recording.end_s)
        ended_s[asked] = np.where(is_open[asked], again_s, ended_s[asked])
    outcome[is_open] = FAILED
    counts = (outcome != OPEN) & ~explained & (ended_s > jobs.asked_s)
    kept, observed, cold = list[int](), list[Observed](), 0
    for client, asked in enumerate(jobs_of):
        mine = asked[counts[asked]]
        latency_s, is_lost = ended_s[mine] - jobs.asked_s[mine], outcome[mine] == FAILED
        if len(mine) and _is_cold(latency_s, is_lost):
            mine, latency_s, is_lost, cold = mine[1:], latency_s[1:], is_lost[1:], cold + 1
        if len(mine):
            with np.errstate(invalid="ignore"):
                share = np.clip(jobs.compute_s[mine] / latency_s, 0.0, 1.0)
            share = np.where(np.isnan(share), _median(share), share)
            kept.append(client)
            observed.append(Observed(latency_s, np.where(is_lost, 1.0, share), is_lost))
    if all(one.is_lost.all() for one in observed):
        raise InputError(f"{recording.name} has no usable reply: none took longer than 0 s; check its times")
    names = tuple(recording.names[client] for client in kept)
    replies = np.array([np.count_nonzero(~one.is_lost) for one in observed])
    is_pooled = (replies < MIN_OBSERVED) & (replies > 0)
    ratios = [one.replies_s / np.median(one.replies_s) for one in observed if np.count_nonzero(~one.is_lost) > 1]
    pool = np.concatenate(ratios) if ratios else np.ones(1)
    notes += _notes(recording, names, replies, cold, has_pool=bool(ratios))
    reported = [jobs.num_samples[jobs_of[client]] for client in kept]
    place = {client: number for number, client in enumerate(kept)}
    return FittedFleet(
        recording=recording,
        names=names,
        observed=tuple(observed),
        is_pooled=is_pooled,
        pool=pool,
        num_samples=_samples([one[one > 0] for one in reported], notes),
        energy_j=np.array([_mean(jobs.energy_j[jobs_of[client]]) for client in kept]),
        overhead_s=_overhead_s(recording),
        intervals=_presence(recording, intervals, place),
        duration_s=recording.end_s - recording.begin_s,
        notes=tuple(notes),
    )


def _is_cold(latency_s: FloatArray, is_lost: BoolArray) -> bool:
    """Return whether a client's first reply shows its start rather than its usual speed."""
    replies_s = latency_s[~is_lost]
    if is_lost[0] or len(replies_s) < 4:
        return False
    others_s = replies_s[1:]
    return bool(replies_s[0] > others_s.max() and replies_s[0] > COLD * np.median(others_s))


def _ended_by_absence(
    recording: Recording, intervals: list[tuple[int, float, float]], jobs_of: list[IntArray]
) -> BoolArray:
    """Return which jobs failed because their client left or the server restarted, shape (num_jobs,)."""
    jobs = recording.jobs
    failed: BoolArray = jobs.outcome == FAILED
    explained: BoolArray = jobs.reason == RESTARTED
    for client, _, to_s in intervals:
        mine = jobs_of[client]
        explained[mine] |= failed[mine] & (jobs.asked_s[mine] <= to_s) & (to_s <= jobs.ended_s[mine] + JOIN_GAP_S)
    return explained


def _joined(recording: Recording) -> list[tuple[int, float, float]]:
    """Return when clients were connected; intervals that touch are joined.

    So are those with a short absence between them that a restart of the server has caused.
    """
    joined, resumed_s = list[tuple[int, float, float]](), [*recording.resumed_s, math.inf]
    for client, from_s, to_s in recording.intervals:
        who, since_s, until_s = joined[-1] if joined else (-1, 0.0, 0.0)
        restarted = resumed_s[bisect_left(resumed_s, until_s)] <= from_s
        if who == client and (from_s == until_s or (restarted and from_s - until_s < JOIN_GAP_S)):
            joined[-1] = client, since_s, to_s
        else:
            joined.append((client, from_s, to_s))
    return joined


def _presence(
    recording: Recording, intervals: list[tuple[int, float, float]], place: dict[int, int]
) -> tuple[tuple[int, float, float], ...]:
    """Return the intervals of clients that joined after the first request or left, since then; none if nobody did."""
    changing = {client for client, from_s, to_s in intervals if from_s > recording.begin_s or to_s < math.inf}
    since = recording.begin_s
    return tuple(
        (place[client], max(from_s - since, 0.0), to_s - since)
        for client, from_s, to_s in intervals
        if client in changing and client in place and to_s > since
    )


def _overhead_s(recording: Recording) -> float:
    """Return the median time from the end of a round to the next request; 0 if the rounds are unknown."""
    asked_s = np.sort(recording.jobs.asked_s)
    ends_s = np.array([one.end_s for one in rounds_of(recording)])
    places = np.searchsorted(asked_s, ends_s, side="left")
    gaps = asked_s[places[places < len(asked_s)]] - ends_s[places < len(asked_s)]
    return float(np.median(gaps)) if len(gaps) else 0.0


def _samples(reported: list[IntArray], notes: list[str]) -> IntArray:
    """Return the samples of each client: the median of what it reported, or of all clients if it reported none."""
    usual = [int(np.median(one)) for one in reported if len(one)]
    if missing := len(reported) - len(usual):
        assumed = "1 sample is assumed" if not usual else f"{int(np.median(usual))} are assumed, the median of others"
        notes.append(f"{missing} of {len(reported)} clients report no number of samples: {assumed}")
    default = int(np.median(usual)) if usual else 1
    return np.array([int(np.median(one)) if len(one) else default for one in reported], dtype=np.int64)


def _notes(recording: Recording, names: tuple[str, ...], replies: IntArray, cold: int, *, has_pool: bool) -> list[str]:
    """Return what the fit left out or assumed, one line each."""
    notes = []
    num_asked = len(np.unique(recording.jobs.client))
    if missing := len(recording.names) - num_asked:
        notes.append(f"{missing} of {len(recording.names)} clients were never asked to train and are left out")
    if unfinished := num_asked - len(names):
        notes.append(f"{unfinished} of {num_asked} clients have no local training that ended and are left out")
    if silent := [name for name, number in zip(names, replies.tolist(), strict=True) if not number]:
        notes.append(f"no replies from {listed(silent)}: all their local trainings are simulated as failed")
    if few := [name for name, number in zip(names, replies.tolist(), strict=True) if 0 < number < MIN_OBSERVED]:
        how = "their variation is pooled from all clients" if has_pool else "their times are assumed to be constant"
        notes.append(f"fewer than {MIN_OBSERVED} replies from {listed(few)}: {how}")
    if cold:
        notes.append(
            f"the first reply is left out for {cold} of {len(names)} clients: it took longer than all later ones, and "
            f"more than {COLD:g} times their median"
        )
    return notes


def listed(names: list[str], most: int = 5) -> str:
    """Return a list of names as text, cut after `most`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else math.nan


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
