"""Checks a replay: predicts the second half of a recording from the first, and compares."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, printable
from lesson.core.validation import CountFromZero, check_value
from lesson.fleet.tiers import assign_tiers
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.outcomes import (
    NUM_REPLICATES,
    Candidate,
    NumReplicates,
    Spread,
    measure,
    simulate_replicate,
)
from lesson.flight.recording import ARRIVED, OPEN, Recording
from lesson.flight.timeline import is_synchronous, recorded_strategy, round_lengths_s, rounds_of
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
    progress: Callable[[str], None] = lambda _: None,
) -> Check:
    """Predict the second half of a recording from the first.

    A recording does not contain the options of its strategy. `options`, such as `{"fedbuff": {"concurrency": 5}}`, sets
    them; by default, the number of clients that train at the same time is estimated from the first half. `progress` is
    called with a line of text before each step.

    Raises:
        InputError: The recording is too short, no client replied in both halves, its strategy can neither be named nor
            inferred, or an argument is invalid.
    """
    check_value("num_replicates", num_replicates, NumReplicates)
    check_value("seed", seed, CountFromZero)
    lengths = round_lengths_s(recording)
    if len(lengths) < MIN_ROUNDS:
        got = f"got {len(lengths)}; record more rounds"
        raise InputError(f"{recording.name} must have at least {MIN_ROUNDS} complete rounds to be checked, {got}")
    middle_s = lengths[len(lengths) // 2][0]
    lengths_s = [length_s for begin_s, length_s in lengths if begin_s >= middle_s]
    fitted = fit(first_half(recording, middle_s))
    candidate = _recorded_candidate(recording, fitted, options)
    both = _clients_of_both_halves(recording, fitted, middle_s, candidate.deadline_s)
    num_kept = max(1, MAX_DRAWN // (num_replicates * len(both.clients)))
    values: dict[str, list[float]] = {"round_s": [], "updates_per_h": [], "late": []}
    single_s, kept_s = list[float](), list[FloatArray]()
    strategy = candidate.make()
    for replicate in range(num_replicates):
        progress(f"Predicting the second half: {replicate}/{num_replicates}")
        trace = fitted.draw_trace(seed, replicate)
        records = simulate_replicate(fitted, trace, strategy, replicate, sum(lengths_s))
        row, periods_s = measure(records, fitted.energy_j), np.diff([record.start_s for record in records])
        drawn_s = np.where(trace.is_lost, np.nan, trace.compute_s + trace.upload_s)
        drawn_s = drawn_s.reshape(len(fitted.names), -1)[both.clients]
        values["round_s"].append(float(periods_s.mean()) if len(periods_s) else row["round_s"] + fitted.overhead_s)
        values["updates_per_h"].append(row["updates_per_h"])
        values["late"].append(both.late_share(drawn_s))
        single_s += periods_s.tolist()
        kept_s.append(drawn_s[:, :num_kept].copy())
    length, rate, late = (Spread.of(np.array(predicted)) for predicted in values.values())
    predictions = (
        Prediction("round length", "s", length, float(np.mean(lengths_s))),
        Prediction("updates per hour", "", rate, _updates_per_h(recording, middle_s)),
        Prediction("share of late replies", "", late, both.late_share(both.later_s)),
    )
    band = Spread.of(np.array(single_s))
    low_s, high_s = np.nanquantile(np.stack(kept_s), [0.025, 0.975], axis=(0, 2))
    is_known = np.isfinite(both.later_s)
    is_inside = (low_s[:, None] <= both.later_s) & (both.later_s <= high_s[:, None])
    before_s, after_s = both.medians_s
    num_pairs = len(before_s) * (len(before_s) - 1) // 2
    num_ordered = sum(
        np.count_nonzero((before_s[i] < before_s[:i]) == (after_s[i] < after_s[:i])) for i in range(len(before_s))
    )
    return Check(
        strategy=", ".join([candidate.label, *(f"{name} = {value}" for name, value in candidate.options.items())]),
        deadline_s=candidate.deadline_s,
        predictions=tuple(prediction for prediction in predictions if math.isfinite(prediction.measured)),
        order=num_ordered / num_pairs if num_pairs else math.nan,
        num_pairs=num_pairs,
        wrong_tiers=tuple(
            (fitted.names[client], first, second)
            for client, first, second in zip(both.clients.tolist(), *both.tiers.tolist(), strict=True)
            if first != second
        ),
        num_clients=len(both.clients),
        round_coverage=float(np.mean([length_s in band for length_s in lengths_s])) if single_s else math.nan,
        latency_coverage=float(is_inside[is_known].mean()),
    )


def first_half(recording: Recording, middle_s: float) -> Recording:
    """Return the recording up to a moment; jobs that had not ended are open."""
    jobs = recording.jobs.where(recording.jobs.asked_s < middle_s)
    known = jobs.ended_s <= middle_s
    times = {name: np.where(known, getattr(jobs, name), np.nan) for name in ("ended_s", "compute_s", "energy_j")}
    jobs = replace(
        jobs,
        outcome=np.where(known, jobs.outcome, OPEN),
        num_samples=np.where(known, jobs.num_samples, 0),
        reason=np.where(known, jobs.reason, ""),
        **times,
    )
    return replace(
        recording,
        jobs=jobs,
        rounds=tuple(one for one in recording.rounds if one.end_s <= middle_s),
        intervals=tuple(
            (client, from_s, to_s if to_s <= middle_s else math.inf)
            for client, from_s, to_s in recording.intervals
            if from_s < middle_s
        ),
        end_s=middle_s,
        resumed_s=tuple(at_s for at_s in recording.resumed_s if at_s <= middle_s),
    )


@dataclass(frozen=True, eq=False)
class _Clients:
    """Clients that replied in both halves of a recording.

    Attributes:
        clients: Their indices in the fitted fleet, shape (num_clients,).
        later_s: Their latencies in the second half, shape (num_clients, num_jobs), padded with NaN.
        medians_s: Their median latencies in the first and in the second half, shape (2, num_clients).
        tiers: The tiers of these medians.
        slot_s: Latency above which a reply is late, given the tier in the first half.
    """

    clients: IntArray
    later_s: FloatArray
    medians_s: FloatArray
    tiers: IntArray
    slot_s: FloatArray

    def late_share(self, latency_s: FloatArray) -> float:
        """Return the share of late replies among as many replies of each client as there are in the second half."""
        num_later = np.isfinite(self.later_s).sum(axis=1)
        counts = np.isfinite(latency_s) & (np.arange(latency_s.shape[1]) < num_later[:, None])
        num_late = (counts & (latency_s > self.slot_s[:, None])).sum()
        return float(num_late / max(1, counts.sum()))


def _clients_of_both_halves(recording: Recording, fitted: FittedFleet, middle_s: float, deadline_s: float) -> _Clients:
    jobs = recording.jobs
    arrived = (jobs.asked_s >= middle_s) & (jobs.outcome == ARRIVED)
    later_s = {
        client: jobs.latency_s[arrived & (jobs.client == recording.names.index(name))]
        for client, name in enumerate(fitted.names)
        if not fitted.observed[client].is_lost.all()
    }
    clients = np.array([client for client, latency_s in later_s.items() if len(latency_s)], dtype=np.int64)
    if not len(clients):
        raise InputError(f"{recording.name} has no client that replied in both halves; record the same clients longer")
    rows = np.full((len(clients), max(map(len, later_s.values()))), np.nan)
    for row, client in zip(rows, clients.tolist(), strict=True):
        row[: len(later_s[client])] = later_s[client]
    medians_s = np.stack([fitted.fleet().latency_s[clients], np.nanmedian(rows, axis=1)])
    tiers = assign_tiers(medians_s, deadline_s)
    return _Clients(clients, rows, medians_s, tiers, tiers[0] * deadline_s)


def _updates_per_h(recording: Recording, middle_s: float) -> float:
    """Return the updates per hour in the second half; NaN if the recording does not show them."""
    rounds = rounds_of(recording)
    merged = [one.merged for one in rounds if one.end_s > middle_s and one.merged is not None]
    return sum(map(len, merged)) / (rounds[-1].end_s - middle_s) * 3600 if merged else math.nan


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
