"""Check of how far a replay can be trusted: predict the second half of a recording from the first, and compare."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lesson.core.arrays import BoolArray, FloatArray
from lesson.core.errors import InputError, printable
from lesson.fleet.tiers import assign_tiers
from lesson.fleet.traces import WorkTrace
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.recording import ARRIVED, OPEN, Jobs, Recording
from lesson.flight.replay import NUM_REPLICATES, Candidate, Spread, measure, simulate_replicate
from lesson.flight.timeline import grouped, is_synchronous, recorded_strategy, round_lengths_s, rounds_of
from lesson.planning.plan import propose_deadline_s
from lesson.strategies import STRATEGIES, find_strategy, options_of, setting_names

MIN_ROUNDS = 6
"""Number of rounds that a recording needs, three in each half."""
MAX_DRAWN = 20_000_000
"""Largest number of drawn latencies that are kept to compare with those of the second half."""


@dataclass(frozen=True)
class Prediction:
    """A predicted value with its interval, and the value that was measured; NaN if it is unknown."""

    what: str
    unit: str
    predicted: Spread
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the predicted mean."""
        return abs(self.predicted.mean - self.measured) / self.measured if self.measured else math.nan

    @property
    def is_covered(self) -> bool:
        """Whether the measured value lies in the interval."""
        return self.measured in self.predicted


@dataclass(frozen=True, eq=False)
class Check:
    """Predictions of the second half of a recording.

    Attributes:
        strategy: Strategy that was simulated, with its options.
        deadline_s: Deadline for which tiers and late updates are compared.
        predictions: Means over the second half.
        order: Share of pairs of clients whose order by latency was predicted correctly; NaN without pairs.
        num_pairs: Number of these pairs.
        wrong_tiers: Clients that are in another tier in the second half: name, predicted tier, measured tier.
        num_clients: Number of clients that replied in both halves.
        round_coverage: Share of rounds whose length lies in the interval predicted for single rounds; NaN if unknown.
        latency_coverage: Share of latencies that lie in the interval predicted for their client.
    """

    strategy: str
    deadline_s: float
    predictions: tuple[Prediction, ...]
    order: float
    num_pairs: int
    wrong_tiers: tuple[tuple[str, int, int], ...]
    num_clients: int
    round_coverage: float
    latency_coverage: float


def check_recording(
    recording: Recording,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    tell: Callable[[int], None] = lambda _: None,
) -> Check:
    """Predict the second half of a recording from the first.

    A recording does not contain the options of its strategy. `options`, such as `{"fedbuff": {"concurrency": 5}}`, sets
    them; by default, the number of clients that train at the same time is estimated from the first half.

    Raises:
        InputError: The recording is too short, no client replied in both halves, its strategy can neither be named nor
            inferred, or `options` are those of another strategy.
    """
    lengths = round_lengths_s(recording)
    if len(lengths) < MIN_ROUNDS:
        got = f"got {len(lengths)}; record more rounds"
        raise InputError(f"{recording.name} must have at least {MIN_ROUNDS} complete rounds to be checked, {got}")
    middle_s = lengths[len(lengths) // 2][0]
    fitted = fit(first_half(recording, middle_s))
    later = [seconds for begin_s, seconds in lengths if begin_s >= middle_s]
    candidate = _recorded_candidate(recording, fitted, options)
    strategy, until_s = candidate.make(), sum(later)
    deadline_s = recording.header.deadline_s or propose_deadline_s(fitted.fleet())
    comparison = _Halves(fitted, recording, middle_s, deadline_s, num_replicates)
    if not comparison.later:
        raise InputError(f"{recording.name} has no client that replied in both halves; record the same clients longer")
    values: dict[str, list[float]] = {"round_s": [], "updates_per_h": []}
    single_s: list[float] = []
    for replicate in range(num_replicates):
        trace = fitted.draw_trace(seed, replicate)
        records = simulate_replicate(fitted, trace, strategy, replicate, until_s)
        comparison.add(trace)
        row = measure(records, fitted.energy_j)
        begins = [record.start_s for record in records]
        periods = np.diff(begins)
        values["round_s"].append(float(periods.mean()) if len(periods) else row["round_s"] + fitted.overhead_s)
        values["updates_per_h"].append(row["updates_per_h"])
        single_s += periods.tolist()
        tell(replicate + 1)
    rounds = rounds_of(recording)
    merged = [one.merged for one in rounds if one.end_s > middle_s and one.merged is not None]
    last_s = max((one.end_s for one in rounds), default=math.nan)
    updates = sum(map(len, merged)) / (last_s - middle_s) * 3600 if merged else math.nan
    predictions = [
        Prediction("round length", "s", Spread.of(np.array(values["round_s"])), float(np.mean(later))),
        Prediction("updates per hour", "", Spread.of(np.array(values["updates_per_h"])), updates),
        comparison.late_share(),
    ]
    band = Spread.of(np.array(single_s))
    order, num_pairs = comparison.order()
    return Check(
        strategy=", ".join([candidate.label, *(f"{name} = {value}" for name, value in candidate.options.items())]),
        deadline_s=deadline_s,
        predictions=tuple(one for one in predictions if math.isfinite(one.measured)),
        order=order,
        num_pairs=num_pairs,
        wrong_tiers=comparison.wrong_tiers(),
        num_clients=len(comparison.later),
        round_coverage=float(np.mean([seconds in band for seconds in later])) if single_s else math.nan,
        latency_coverage=comparison.latency_coverage(),
    )


def first_half(recording: Recording, middle_s: float) -> Recording:
    """Return what a recording showed until a moment; jobs that had not ended are open."""
    jobs = recording.jobs
    before = np.flatnonzero(jobs.asked_s < middle_s)
    ended = jobs.ended_s[before] <= middle_s
    columns = {name: values[before] for name, values in vars(jobs).items() if isinstance(values, np.ndarray)}
    columns["outcome"] = np.where(ended, columns["outcome"], OPEN)
    columns["num_samples"] = np.where(ended, columns["num_samples"], 0)
    for name in ("ended_s", "download_s", "compute_s", "energy_j"):
        columns[name] = np.where(ended, columns[name], np.nan)
    reason = tuple(jobs.reason[place] if known else "" for place, known in zip(before, ended.tolist(), strict=True))
    return replace(
        recording,
        jobs=Jobs(**columns, reason=reason),
        rounds=tuple(one for one in recording.rounds if one.end_s <= middle_s),
        intervals=tuple(
            (client, from_s, to_s if to_s <= middle_s else math.inf)
            for client, from_s, to_s in recording.intervals
            if from_s < middle_s
        ),
        end_s=middle_s,
        resumed_s=tuple(at_s for at_s in recording.resumed_s if at_s <= middle_s),
    )


class _Halves:
    """Latencies of clients that replied in both halves of a recording."""

    def __init__(
        self, fitted: FittedFleet, recording: Recording, middle_s: float, deadline_s: float, num_replicates: int
    ) -> None:
        jobs = recording.jobs
        arrived = np.flatnonzero((jobs.asked_s >= middle_s) & (jobs.outcome == ARRIVED))
        jobs_of = dict(zip(recording.names, grouped(jobs.client[arrived], len(recording.names)), strict=True))
        self.later: dict[int, FloatArray] = {}
        """Latencies in the second half by client of the fitted fleet."""
        for client, name in enumerate(fitted.names):
            latency_s = jobs.latency_s[arrived[jobs_of[name]]]
            if len(latency_s) and not fitted.observed[client].is_lost.all():
                self.later[client] = latency_s
        self._clients = np.array(list(self.later), dtype=np.int64)
        self._names, self._deadline_s = fitted.names, deadline_s
        self._before_s = fitted.fleet().latency_s[self._clients]
        self._after_s = np.array([np.median(latency_s) for latency_s in self.later.values()])
        self._slot_s = assign_tiers(self._before_s, deadline_s) * deadline_s
        self._num_later = np.array([len(latency_s) for latency_s in self.later.values()], dtype=np.int64)
        self._num_kept = max(1, MAX_DRAWN // (num_replicates * max(1, len(self.later))))
        self._drawn_s: list[FloatArray] = []
        """Drawn latencies of these clients in each replicate, shape (num_clients, num_kept); NaN for failed ones."""
        self._late_shares: list[float] = []

    def add(self, trace: WorkTrace) -> None:
        """Add the local trainings drawn for a replicate."""
        shape = len(self._names), -1
        drawn_s = (trace.compute_s + trace.upload_s).reshape(shape)[self._clients]
        drawn_s = np.where(trace.is_lost.reshape(shape)[self._clients], np.nan, drawn_s)
        counts = np.arange(drawn_s.shape[1]) < self._num_later[:, None]  # as many as there are in the second half
        num_late = int(np.count_nonzero(counts & (drawn_s > self._slot_s[:, None])))
        num_replies = int(np.count_nonzero(counts & np.isfinite(drawn_s)))
        self._late_shares.append(num_late / max(1, num_replies))
        self._drawn_s.append(drawn_s[:, : self._num_kept].copy())

    def order(self) -> tuple[float, int]:
        """Return the share of pairs of clients in the same order by median latency in both halves, and their number."""
        before_s, after_s, count = self._before_s, self._after_s, len(self.later)
        same = ((before_s[one] < before_s[:one]) == (after_s[one] < after_s[:one]) for one in range(count))
        right = sum(int(np.count_nonzero(pairs)) for pairs in same)
        num_pairs = count * (count - 1) // 2
        return (right / num_pairs if num_pairs else math.nan), num_pairs

    def wrong_tiers(self) -> tuple[tuple[str, int, int], ...]:
        """Return the clients whose median latency is in another tier in the second half."""
        tiers = (assign_tiers(latency_s, self._deadline_s).tolist() for latency_s in (self._before_s, self._after_s))
        return tuple(
            (self._names[client], one, other)
            for client, one, other in zip(self._clients.tolist(), *tiers, strict=True)
            if one != other
        )

    def late_share(self) -> Prediction:
        """Return the share of replies that take longer than the slot of their client's tier."""
        late = np.concatenate([one > slot for one, slot in zip(self.later.values(), self._slot_s, strict=True)])
        return Prediction("share of late replies", "", Spread.of(np.array(self._late_shares)), float(late.mean()))

    def latency_coverage(self) -> float:
        """Return the share of latencies in the second half within the middle 95 % of those drawn for their client."""
        drawn_s, inside = np.stack(self._drawn_s), list[BoolArray]()
        for place, latency_s in enumerate(self.later.values()):
            low, high = np.nanquantile(drawn_s[:, place], [0.025, 0.975])
            inside.append((low <= latency_s) & (latency_s <= high))
        return float(np.concatenate(inside).mean())


def _recorded_candidate(
    recording: Recording, fitted: FittedFleet, options: Mapping[str, Mapping[str, Any]] | None
) -> Candidate:
    """Return the recorded strategy: the one that the header names, or FedAvg if the rounds were synchronous."""
    name = recorded_strategy(recording)
    if name not in STRATEGIES:
        if not is_synchronous(recording):
            raise InputError(
                f"{recording.name} line 1: strategy must name a built-in strategy, because rounds overlap, "
                f"got '{printable(recording.header.strategy, 60)}'; 'lesson strategies' lists them"
            )
        name = "fedavg"
    deadline_s = recording.header.deadline_s or propose_deadline_s(fitted.fleet())
    return Candidate(name, deadline_s, _observed_options(name, fitted) | options_of([name], {}, options)[name])


def _observed_options(name: str, fitted: FittedFleet) -> dict[str, Any]:
    """Return the option that determines how many clients train at the same time, as observed in a recording."""
    jobs, num_clients = fitted.recording.jobs, len(fitted.names)
    if name == "fedavg":
        rounds = len(np.unique(jobs.round[jobs.round > 0]))
        fraction = len(jobs) / rounds / num_clients if rounds else 1.0
        return {"fraction": fraction} if fraction < 0.9 else {}
    if "concurrency" in setting_names(find_strategy(name)):
        num_ended = np.searchsorted(np.sort(jobs.ended_s), jobs.asked_s, side="right")  # jobs are in order of asked_s
        num_busy = np.arange(1, len(jobs) + 1) - num_ended
        return {"concurrency": min(int(num_busy.max()), num_clients)}
    return {}
