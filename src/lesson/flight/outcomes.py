"""Outcomes of strategies with the clients of a recording: simulated in many replicates, and recorded.

Each replicate draws the clients' future local trainings. All strategies see the same draws, so differences
between them are paired. Intervals are the middle 95 % of the replicates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from lesson.clock.loop import RoundLoop
from lesson.clock.records import RoundRecord
from lesson.clock.worlds import VaryingWorld
from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError, UnfitFleetError
from lesson.fleet.traces import WorkTrace
from lesson.flight.fit import FittedFleet
from lesson.flight.recording import Recording
from lesson.flight.timeline import is_synchronous, recorded_strategy, rounds_of
from lesson.planning.plan import round_up
from lesson.planning.schedules import measures_of
from lesson.settings.settings import Settings
from lesson.strategies import has_deadline, make_strategy
from lesson.strategies.base import Strategy

NUM_REPLICATES = 100
NumReplicates = Annotated[int, Field(ge=2, le=10_000, strict=True)]
MIN_LATENCIES, MAX_LATENCIES = 10, 200
"""A simulation lasts as long as the recording, within these multiples of the latency of slow clients. Traces repeat
after a few hundred local trainings, so a longer simulation would not show more."""
MAX_JOBS = 20_000
"""A simulation has at most about this many local trainings, unless MIN_LATENCIES requires more."""
MAX_ROUNDS = 200_000
MAX_DEADLINES = 20_000
"""Largest number of deadlines in a simulation; more rounds would take minutes."""
MIN_SERVED = 0.95
"""A client counts as served if its updates are aggregated in at least this share of the replicates."""
MEASURES = ("round_s", "updates_per_h", "staleness", "on_time", "wasted", "joules")


@dataclass(frozen=True)
class Candidate:
    """A strategy to simulate, with its deadline and options."""

    strategy: str
    deadline_s: float
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def has_deadline(self) -> bool:
        """Whether the strategy has a deadline."""
        return has_deadline(self.strategy)

    @property
    def label(self) -> str:
        """Name for tables, such as "lesson, 30 s"."""
        return f"{self.strategy}, {self.deadline_s:g} s" if self.has_deadline else self.strategy

    def make(self) -> Strategy:
        """Return the strategy; raise InputError if it cannot be simulated without training."""
        strategy = make_strategy(self.strategy, self.deadline_s, dict(self.options))
        if strategy.needs:
            raise InputError(
                f"{self.strategy} cannot be replayed: it needs {', '.join(sorted(strategy.needs))}, which a recording "
                "does not show; leave it out"
            )
        return strategy


@dataclass(frozen=True)
class Spread:
    """Mean of a measure over the replicates, and the interval that holds the middle 95 % of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: FloatArray) -> "Spread":
        """Return the spread of values, without those that are NaN."""
        known = values[np.isfinite(values)]
        if not len(known):
            return cls(math.nan, math.nan, math.nan)
        low, high = np.quantile(known, [0.025, 0.975]).tolist()
        return cls(float(known.mean()), low, high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __float__(self) -> float:
        """Return the mean, by which tables are sorted."""
        return self.mean


@dataclass(frozen=True, eq=False)
class Outcome:
    """The simulated outcome of a strategy: one value of each measure per replicate, or why it cannot run."""

    candidate: Candidate
    values: dict[str, FloatArray] = field(default_factory=dict)
    """Values of each of the MEASURES, shape (num_replicates,)."""
    num_merged: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """Number of aggregated updates of each client in each replicate, shape (num_replicates, num_clients)."""
    problem: str = ""
    note: str = ""
    """A remark, such as why the strategy cannot run in some replicates; may be empty."""

    def spread(self, measure: str) -> Spread:
        """Return mean and interval of a measure."""
        return Spread.of(self.values[measure])

    @property
    def spreads(self) -> dict[str, Spread]:
        """Mean and interval of each measure."""
        return {name: self.spread(name) for name in MEASURES}

    @property
    def not_served(self) -> IntArray:
        """Clients whose updates are aggregated in a smaller share of the replicates than MIN_SERVED."""
        return np.flatnonzero((self.num_merged > 0).mean(axis=0) < MIN_SERVED)


@dataclass(frozen=True, eq=False)
class Reality:
    """The recorded run; measures that the recording does not show are NaN."""

    strategy: str
    values: dict[str, float]
    not_served: IntArray
    """Clients without an aggregated update."""
    num_rounds: int
    warm_per_h: float
    """Updates per hour after the first round, in which processes start; gains are relative to it."""


def simulate_candidates(
    fitted: FittedFleet,
    candidates: Sequence[Candidate],
    *,
    num_replicates: int,
    horizon_s: float,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Outcome, ...]:
    """Return the outcome of each candidate; `progress` is called with the number of finished replicates."""
    strategies = [candidate.make() for candidate in candidates]
    rows: list[list[dict[str, float]]] = [[] for _ in candidates]
    problems: list[list[str]] = [[] for _ in candidates]
    merged = np.zeros((len(candidates), num_replicates, len(fitted.names)), dtype=np.int64)
    for replicate in range(num_replicates):
        trace = fitted.draw_trace(seed, replicate)
        for index, strategy in enumerate(strategies):
            records = list[RoundRecord]()
            try:
                records = simulate_replicate(fitted, trace, strategy, replicate, horizon_s)
            except (
                InputError,
                UnfitFleetError,
            ) as error:  # FedCS has no clients if none meets the deadline in this draw
                problems[index].append(str(error))
            rows[index].append(measure(records, fitted.energy_j))
            for record in records:
                np.add.at(merged[index, replicate], record.merged, 1)
        progress(replicate + 1)
    return tuple(map(_outcome, candidates, rows, merged, problems))


def _outcome(
    candidate: Candidate, rows: Sequence[dict[str, float]], num_merged: IntArray, problems: Sequence[str]
) -> Outcome:
    """Return the outcome of a candidate from its measures in each replicate and its problems."""
    if len(problems) == len(rows):
        return Outcome(candidate, problem=problems[0])
    values = {name: np.array([row[name] for row in rows]) for name in MEASURES}
    if not candidate.has_deadline:
        values["on_time"][:] = math.nan  # without a deadline, there are no slots
    note = f"it cannot run in {len(problems)} of {len(rows)} simulations: {problems[0]}" if problems else ""
    return Outcome(candidate, values, num_merged, note=note)


def is_recorded(candidate: Candidate, recording: Recording) -> bool:
    """Return whether a candidate is the recorded strategy, with the same deadline if both have one."""
    recorded_s = recording.header.deadline_s
    same_deadline = not candidate.has_deadline or recorded_s is None or candidate.deadline_s == recorded_s
    return candidate.strategy.lower() == recorded_strategy(recording) and same_deadline


def horizon_of(fitted: FittedFleet) -> float:
    """Return the simulated time: that of the recording, within multiples of the 90 % quantile of median latencies.

    With a quantile, a single client that takes days does not determine the time.
    """
    medians_s = fitted.median_s + fitted.overhead_s
    slow_s = float(np.quantile(medians_s, 0.9, method="inverted_cdf"))
    enough_s = min(MAX_LATENCIES * slow_s, MAX_JOBS / float(np.sum(1 / medians_s)))
    return max(min(fitted.duration_s, enough_s), MIN_LATENCIES * slow_s)


def simulate_replicate(
    fitted: FittedFleet, trace: WorkTrace, strategy: Strategy, replicate: int, until_s: float
) -> list[RoundRecord]:
    """Return the rounds of a strategy up to a time, with the local trainings of a replicate.

    Raises InputError if the strategy cannot run, or if its deadline is so short that it would have too many rounds.
    """
    deadline_s = getattr(strategy, "deadline_s", math.inf)
    if until_s > MAX_DEADLINES * deadline_s:
        least_s = round_up(until_s / MAX_DEADLINES)
        raise InputError(f"deadline_s must be >= {least_s:g} in simulations of {until_s:.0f} s, got {deadline_s:g}")
    settings = replay_settings(fitted)
    fleet = fitted.first_estimates(trace, settings)
    world = VaryingWorld(fleet, settings, replicate, None, trace, fitted.presence())
    loop, records = RoundLoop(strategy, world, seed=replicate), list[RoundRecord]()
    while not loop.stop_reason and loop.round < MAX_ROUNDS:
        record = loop.step(until_s)
        if record is not None:
            records.append(record)
    return records


def replay_settings(fitted: FittedFleet) -> Settings:
    """Return the settings of simulations: the server estimates latencies as it does with real clients."""
    estimate = {"estimate": "quantile", "estimate_window": 5, "estimate_quantile": 2 / 3}
    return Settings(overhead_s=fitted.overhead_s, **estimate)


def measure(records: Sequence[RoundRecord], energy_j: FloatArray) -> dict[str, float]:
    """Return the MEASURES of simulated rounds; if there are none, no update was aggregated."""
    merged = np.concatenate([np.zeros(0, dtype=np.int64), *(record.merged for record in records)])
    found = measures_of(records) | {"joules": float(energy_j[merged].mean()) if len(merged) else math.nan}
    return {name: found[name] for name in MEASURES}


def reality_of(fitted: FittedFleet) -> Reality:
    """Return the measures of the recorded run."""
    recording = fitted.recording
    rounds, jobs = [one for one in rounds_of(recording) if one.end_s > recording.begin_s], recording.jobs
    known = [one for one in rounds if one.merged is not None]
    names = {name: place for place, name in enumerate(fitted.names)}
    merged = [recording.names[client] for one in known for client in one.merged or ()]
    clients = np.array([names[name] for name in merged if name in names], dtype=np.int64)
    span_s = (rounds[-1].end_s - recording.begin_s) if rounds else math.nan
    synchronous = is_synchronous(recording)
    ages = [one.staleness if one.staleness is not None else (0,) * len(one.merged or ()) for one in known]
    staleness = np.concatenate([np.zeros(0), *(np.array(age, dtype=np.float64) for age in ages)])
    ages_are_known = synchronous or all(one.staleness is not None for one in known)
    ended = int(np.count_nonzero(np.isfinite(jobs.ended_s)))
    values = {
        "round_s": span_s / len(rounds) if rounds else math.nan,
        "updates_per_h": len(merged) / span_s * 3600 if known else math.nan,
        "staleness": float(staleness.mean()) if len(staleness) and ages_are_known else math.nan,
        "on_time": math.nan,
        "wasted": 1 - len(merged) / ended if known and ended else math.nan,
        "joules": float(np.mean(fitted.energy_j[clients])) if len(clients) else math.nan,
    }
    not_served = np.setdiff1d(np.arange(len(fitted.names)), clients) if known else np.zeros(0, dtype=np.int64)
    warm_per_h = values["updates_per_h"]
    if known and rounds[-1].end_s > rounds[0].end_s:
        later = sum(len(one.merged or ()) for one in known if one is not rounds[0])
        warm_per_h = later / (rounds[-1].end_s - rounds[0].end_s) * 3600
    title = recording.header.strategy or ("synchronous rounds" if synchronous else "recorded strategy")
    return Reality(title, values, not_served, len(rounds), warm_per_h)
