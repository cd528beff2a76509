"""Measures of schedules: what strategies do with a fleet in simulated time, without training."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from lesson.clock.records import RoundRecord
from lesson.clock.simulate import make_loop
from lesson.core.errors import ArgumentError, InputError, UnfitFleetError
from lesson.core.validation import Count, check_value
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.settings.settings import Settings
from lesson.strategies import fleet_for, make_strategy, options_of
from lesson.strategies.base import Strategy, Updates

NumSeeds = Annotated[int, Field(ge=1, le=1000, strict=True)]
TIME_IS_UP = "time limit reached"
MAX_ROUNDS_UNCHANGED = 100_000
_SHOWN = ("updates_per_h", "staleness", "staleness_sd", "staleness_max", "energy_j")


@dataclass(frozen=True)
class Schedule:
    """Measures of one strategy with one seed; staleness is NaN if nothing was aggregated.

    Attributes:
        strategy: Name of the strategy.
        seed: Random seed of the fleet, of the strategy's choices and of varying times.
        time_s: When the last round closed, in seconds.
        rounds: Number of rounds.
        versions: Number of aggregations, each of which creates a version of the model.
        updates: Number of aggregated updates.
        updates_per_h: Aggregated updates per hour.
        staleness: Mean staleness of aggregated updates, in versions.
        staleness_sd: Standard deviation of their staleness.
        staleness_max: Largest staleness.
        concurrency: Number of clients that train or transfer, averaged over time.
        energy_j: Energy of all updates that ended, in joules; NaN if it is unknown, or if no round closed.
        ended_early: Why the run ended before its limit; empty if it did not.
    """

    strategy: str
    seed: int
    time_s: float
    rounds: int
    versions: int
    updates: int
    updates_per_h: float
    staleness: float
    staleness_sd: float
    staleness_max: float
    concurrency: float
    energy_j: float
    ended_early: str


def compare_schedules(
    strategies: Sequence[str],
    *,
    versions: int | None = None,
    num_seeds: int = 1,
    settings: Settings | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **changes: Any,
) -> list[Schedule]:
    """Simulate the timing of several strategies without training, and return the measures of each with each seed.

    Args:
        strategies: Names of strategies, or `module:Class`.
        versions: Number of aggregations after which a simulation ends. By default, only the settings limit it; with
            it, `time_budget_s` has no default.
        num_seeds: Number of seeds, from 1 to 1000, starting with the settings' `seed`.
        settings: Settings of all simulations; by default, `Settings()`.
        options: Options of individual strategies, such as `{"fedbuff": {"concurrency": 5}}`.
        progress: Called with a line of text before each simulation.
        **changes: Settings by name, such as `latencies="fleet.csv"`, which override those in `settings`.

    Raises:
        InputError: An argument or a setting is invalid.
    """
    names = list(strategies)
    if isinstance(strategies, str) or not names or len(set(names)) != len(names):
        raise ArgumentError("strategies", f"must be one or more different names, got {strategies!r}")
    check_value("versions", versions, Count | None)
    check_value("num_seeds", num_seeds, NumSeeds)
    settings = settings or Settings()
    settings = settings.with_changes(**changes) if changes else settings
    own = options_of(names, settings.strategy.options, options)
    deadline_s = settings.strategy.deadline_s
    made = {name: make_strategy(name, deadline_s, own[name]) for name in names}
    schedules = []
    for seed in range(settings.run.seed, settings.run.seed + num_seeds):
        fleet = draw_fleet(settings, seed=seed)
        for name, strategy in made.items():
            progress(f"Simulating {name}, seed {seed}")
            schedules.append(_simulate(name, strategy, fleet_for(name, fleet, deadline_s), settings, seed, versions))
    return schedules


def _simulate(
    name: str, strategy: Strategy, fleet: Fleet, settings: Settings, seed: int, versions: int | None
) -> Schedule:
    """Simulate one strategy until one of its limits is reached, or until nothing is aggregated anymore."""
    limits = settings.run
    until_s, max_rounds = limits.time_budget_s or math.inf, limits.rounds or math.inf
    if versions is not None and not settings.is_given("run.time_budget_s"):
        until_s = math.inf
    loop, records = make_loop(strategy, fleet, seed=seed, settings=settings), list[RoundRecord]()
    last_change, stuck = 0, ""  # the round that created the newest version
    ended_s = busy_s = 0.0  # the sum of end times minus that of start times, without and with updates in flight
    try:
        while loop.version < (versions or math.inf) and loop.round < max_rounds:
            if (current := loop.begin(until_s)) is None:
                break
            record = loop.close(current)
            records.append(record)
            ended = Updates.join(current.collected.arrived, current.collected.lost)
            ended_s += float(ended.arrived_s.sum()) + (len(current.plan.drops) - len(record.started)) * record.start_s
            busy_s = ended_s + loop.ledger.num_in_flight * record.end_s
            last_change = loop.round if current.aggregates else last_change
            if loop.round - last_change >= MAX_ROUNDS_UNCHANGED:
                stuck = f"nothing was aggregated in {MAX_ROUNDS_UNCHANGED:,} rounds"
                break
    except UnfitFleetError as error:
        raise InputError(str(error)) from None
    found, end_s = measures_of(records), records[-1].end_s if records else 0.0
    return Schedule(
        strategy=name,
        seed=seed,
        time_s=end_s,
        rounds=len(records),
        versions=loop.version,
        updates=int(found["updates"]),
        concurrency=busy_s / end_s if end_s else 0.0,
        **{name: found[name] for name in _SHOWN},
        ended_early=stuck or ("" if loop.stop_reason == TIME_IS_UP else loop.stop_reason),
    )


def measures_of(records: Iterable[RoundRecord]) -> dict[str, float]:
    """Return the measures of simulated rounds by name; those that need an update are NaN if there is none."""
    rounds, updates, uploads, lost, misses, end_s, energy_j = 0, 0, 0, 0, 0, math.inf, 0.0
    ages = [np.zeros(0, dtype=np.int64)]
    for record in records:
        rounds, end_s, updates = rounds + 1, record.end_s, updates + len(record.merged)
        uploads, lost, misses = uploads + record.uploads, lost + (record.lost or 0), misses + (record.misses or 0)
        joules = record.compute_j, record.transmit_j
        energy_j += math.fsum(math.nan if one is None else one for one in joules)
        ages.append(record.staleness)
    staleness = np.concatenate(ages)
    return {
        "rounds": rounds,
        "time_s": end_s,
        "round_s": end_s / rounds if rounds else math.nan,
        "updates": updates,
        "updates_per_h": updates / end_s * 3600 if end_s else 0.0,
        "staleness": float(staleness.mean()) if updates else math.nan,
        "staleness_sd": float(staleness.std()) if updates else math.nan,
        "staleness_max": float(staleness.max()) if updates else math.nan,
        "on_time": 1 - misses / uploads if uploads else math.nan,
        "wasted": 1 - updates / (uploads + lost) if uploads + lost else math.nan,
        "energy_j": energy_j if rounds else math.nan,
    }
