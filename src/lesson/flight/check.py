"""Check of how far a replay can be trusted: predict the second half of a recording from the first, and compare."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lesson.core.arrays import FloatArray
from lesson.core.errors import InputError, printable
from lesson.fleet.tiers import assign_tiers
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.recording import ARRIVED, OPEN, Jobs, Recording
from lesson.flight.replay import NUM_REPLICATES, Candidate, Spread, measure, simulate_replicate
from lesson.flight.timeline import is_synchronous, round_lengths_s, rounds_of
from lesson.planning.plan import propose_deadline_s
from lesson.strategies import STRATEGIES

MIN_ROUNDS = 6
"""Number of rounds that a recording needs, three in each half."""


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
        strategy: Strategy that was simulated.
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
    num_replicates: int = NUM_REPLICATES,
    seed: int = 0,
    tell: Callable[[int], None] = lambda _: None,
) -> Check:
    """Predict the second half of a recording from the first.

    Raises:
        InputError: The recording is too short, or its strategy can neither be named nor inferred.
    """
    lengths = round_lengths_s(recording)
    if len(lengths) < MIN_ROUNDS:
        got = f"got {len(lengths)}; record more rounds"
        raise InputError(f"{recording.name} must have at least {MIN_ROUNDS} complete rounds to be checked, {got}")
    starts = {int(number): _start_s(recording, number) for number, _ in lengths}
    middle_s = starts[lengths[len(lengths) // 2][0]]
    fitted = fit(first_half(recording, middle_s))
    later = [seconds for number, seconds in lengths if starts[number] >= middle_s]
    candidate = _recorded_candidate(recording, fitted)
    strategy, until_s = candidate.make(), sum(later)
    values: dict[str, list[float]] = {"round_s": [], "updates_per_h": []}
    single_s: list[float] = []
    for replicate in range(num_replicates):
        records = simulate_replicate(fitted, fitted.draw_trace(seed, replicate), strategy, replicate, until_s)
        row = measure(records, fitted.energy_j)
        begins = [record.start_s for record in records]
        periods = np.diff(begins)
        values["round_s"].append(float(periods.mean()) if len(periods) else row["round_s"] + fitted.overhead_s)
        values["updates_per_h"].append(row["updates_per_h"])
        single_s += periods.tolist()
        tell(replicate + 1)
    deadline_s = recording.header.deadline_s or propose_deadline_s(fitted.fleet())
    comparison = _Halves(fitted, recording, middle_s, deadline_s, num_replicates, seed)
    merged = [one.merged for one in rounds_of(recording) if one.end_s > middle_s and one.merged is not None]
    last_s = max((one.end_s for one in rounds_of(recording)), default=math.nan)
    updates = sum(map(len, merged)) / (last_s - middle_s) * 3600 if merged else math.nan
    predictions = [
        Prediction("round length", "s", Spread.of(np.array(values["round_s"])), float(np.mean(later))),
        Prediction("updates per hour", "", Spread.of(np.array(values["updates_per_h"])), updates),
        comparison.late_share(),
    ]
    band = Spread.of(np.array(single_s))
    order, num_pairs = comparison.order()
    return Check(
        strategy=candidate.label,
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
    for name in ("ended_s", "download_s", "compute_s", "energy_j"):
        columns[name] = np.where(ended, columns[name], np.nan)
    return replace(
        recording,
        jobs=Jobs(**columns, reason=tuple(jobs.reason[place] for place in before)),
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
        self, fitted: FittedFleet, recording: Recording, middle_s: float, deadline_s: float, replicates: int, seed: int
    ) -> None:
        jobs = recording.jobs
        arrived = (jobs.asked_s >= middle_s) & (jobs.outcome == ARRIVED)
        names = {name: place for place, name in enumerate(recording.names)}
        self.later: dict[int, FloatArray] = {}
        """Latencies in the second half by client of the fitted fleet."""
        for client, name in enumerate(fitted.names):
            latency_s = jobs.latency_s[arrived & (jobs.client == names[name])]
            if len(latency_s) and not fitted.observed[client].is_lost.all():
                self.later[client] = latency_s
        self._fitted, self._deadline_s = fitted, deadline_s
        self._median_s = fitted.fleet().latency_s
        drawn = [fitted.draw_trace(seed, replicate) for replicate in range(replicates)]
        shape = replicates, len(fitted.names), -1
        latency_s = np.stack([one.compute_s + one.upload_s for one in drawn]).reshape(shape)
        lost = [np.zeros(len(one.compute_s), np.bool_) if one.is_lost is None else one.is_lost for one in drawn]
        self._drawn_s = np.where(np.stack(lost).reshape(shape), np.nan, latency_s)

    def order(self) -> tuple[float, int]:
        """Return the share of pairs of clients in the same order by median latency in both halves, and their number."""
        clients = list(self.later)
        right = [
            (self._median_s[one] < self._median_s[other]) == (np.median(self.later[one]) < np.median(self.later[other]))
            for place, one in enumerate(clients)
            for other in clients[:place]
        ]
        return (float(np.mean(right)) if right else math.nan), len(right)

    def wrong_tiers(self) -> tuple[tuple[str, int, int], ...]:
        """Return the clients whose median latency is in another tier in the second half."""
        clients = list(self.later)
        before = assign_tiers(self._median_s[clients], self._deadline_s)
        after = assign_tiers(np.array([np.median(self.later[client]) for client in clients]), self._deadline_s)
        return tuple(
            (self._fitted.names[client], int(one), int(other))
            for client, one, other in zip(clients, before, after, strict=True)
            if one != other
        )

    def late_share(self) -> Prediction:
        """Return the share of replies that take longer than the slot of their client's tier."""
        clients = list(self.later)
        slot_s = assign_tiers(self._median_s[clients], self._deadline_s) * self._deadline_s
        late, known = 0.0, 0.0
        for client, slot in zip(clients, slot_s.tolist(), strict=True):
            drawn_s = self._drawn_s[:, client, : len(self.later[client])]  # as many as there are in the second half
            late += np.count_nonzero(drawn_s > slot, axis=1)
            known += np.count_nonzero(np.isfinite(drawn_s), axis=1)
        measured = [self.later[client] > slot for client, slot in zip(clients, slot_s, strict=True)]
        return Prediction(
            "share of late replies", "", Spread.of(late / np.maximum(known, 1)), float(np.concatenate(measured).mean())
        )

    def latency_coverage(self) -> float:
        """Return the share of latencies in the second half within the middle 95 % of those drawn for their client."""
        inside = []
        for client, latency_s in self.later.items():
            low, high = np.nanquantile(self._drawn_s[:, client], [0.025, 0.975])
            inside.append((low <= latency_s) & (latency_s <= high))
        return float(np.concatenate(inside).mean()) if inside else math.nan


def _recorded_candidate(recording: Recording, fitted: FittedFleet) -> Candidate:
    """Return the recorded strategy: the one that the header names, or FedAvg if the rounds were synchronous."""
    header = recording.header
    deadline_s = header.deadline_s or propose_deadline_s(fitted.fleet())
    if header.strategy in STRATEGIES and header.strategy != "fedavg":
        return Candidate(header.strategy, deadline_s)
    if header.strategy != "fedavg" and not is_synchronous(recording):
        raise InputError(
            f"{recording.name} line 1: strategy must name a built-in strategy, because rounds overlap, "
            f"got '{printable(header.strategy, 60)}'; 'lesson strategies' lists them"
        )
    jobs = recording.jobs
    rounds = len(np.unique(jobs.round[jobs.round > 0]))
    fraction = len(jobs) / rounds / len(fitted.names) if rounds else 1.0
    return Candidate("fedavg", deadline_s, {"fraction": fraction} if fraction < 0.9 else {})


def _start_s(recording: Recording, number: int) -> float:
    return float(recording.jobs.asked_s[recording.jobs.round == number].min())
