"""Statistics of latencies, tiers and rounds over many random fleets, without training.

Functions that return a table give one row per draw, so that draws can be paired.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import pandas as pd

from lesson.clock.records import RoundRecord
from lesson.clock.simulate import simulate
from lesson.core.arrays import BoolArray, FloatArray
from lesson.fleet.fleet import Fleet, draw_fleet
from lesson.fleet.tiers import assign_tiers
from lesson.paper.items import base_settings
from lesson.planning.plan import evaluate_deadline
from lesson.settings.settings import Settings
from lesson.strategies import fleet_for, make_strategy
from lesson.strategies.lesson import Lesson

SCENARIOS = ("printed", "released")
NUM_DRAWS = 200
PAPER_ROUND_S = {"fedavg": 68.0, "fedcs": 20.0, "lesson": 20.0}
"""Table II: round length of each strategy, in seconds."""
TABLE_2: dict[str, dict[str, dict[str, bool]]] = {
    "printed": {"fedavg": {}, "fedcs": {}, "lesson": {}, "lesson, close_early = false": {"close_early": False}},
    "released": {"fedavg": {}, "fedcs": {}, "lesson": {}},
}
"""Rows of Table II with the options of their strategies. With `printed`, where mostly all clients are in tier 1, LESSON
also waits for the deadline, as in the paper."""
ROUNDS_TIMED = 4
PAPER_MEDIAN_S = 10.0
"""Median latency according to the paper's text, which also uses it as its first deadline."""


@cache  # both Table II and the claims about it need these simulations, which take seconds
def round_lengths(deadline_s: float = 20.0, num_draws: int = NUM_DRAWS) -> pd.DataFrame:
    """Return Table II: the simulated round length by scenario, row and draw, next to the paper's, in seconds.

    Callers share the table and must not change it.
    """
    return pd.DataFrame(
        {
            "scenario": preset,
            "strategy": label,
            "paper_s": PAPER_ROUND_S[strategy],
            "draw": draw,
            "round_s": mean_round_s(strategy, fleet, deadline_s, **options),
        }
        for preset, rows in TABLE_2.items()
        for label, options in rows.items()
        for strategy in [label.partition(", ")[0]]
        for draw, fleet in _draw_fleets(base_settings(preset), num_draws)
    )


def mean_round_s(strategy: str, fleet: Fleet, deadline_s: float, **options: bool) -> float:
    """Return the mean length of a strategy's first ROUNDS_TIMED rounds in seconds."""
    made = make_strategy(strategy, deadline_s, options)
    rounds = simulate(made, fleet_for(strategy, fleet, deadline_s), rounds=ROUNDS_TIMED)
    return float(np.mean([record.end_s - record.start_s for record in rounds]))


def latency_summary(settings: Settings, num_draws: int = NUM_DRAWS) -> pd.DataFrame:
    """Return a summary of latencies by draw, and whether all of them exceed the paper's first deadline."""
    return pd.DataFrame(
        {
            "draw": draw,
            "slowest_s": fleet.latency_s.max(),
            "median_s": np.median(fleet.latency_s),
            "compute_share": np.mean(fleet.compute_s / fleet.latency_s),
            "tier_1_share": np.mean(tiers == 1),
            "tier_2_share": np.mean(tiers == 2),
            "updates_per_round": np.sum(1 / tiers),
            "nobody_within_10s": np.all(fleet.latency_s > PAPER_MEDIAN_S),
        }
        for draw, fleet in _draw_fleets(settings, num_draws)
        for tiers in [assign_tiers(fleet.latency_s, settings.strategy.deadline_s)]
    )


def deadline_effects(deadlines_s: Sequence[float] = (10.0, 20.0, 60.0), num_draws: int = NUM_DRAWS) -> pd.DataFrame:
    """Return LESSON's long-run tiers, updates, staleness and round length under `released`, by deadline and draw."""
    settings = base_settings()
    return pd.DataFrame(
        {
            "deadline_s": deadline_s,
            "draw": draw,
            "num_tiers": row.num_tiers,
            "updates_per_round": row.updates_per_1000s * row.round_s / 1000,
            "staleness": row.staleness,
            "round_s": row.round_s,
        }
        for deadline_s in deadlines_s
        for draw, fleet in _draw_fleets(settings, num_draws)
        for row in [evaluate_deadline(fleet, deadline_s)]
    )


def broadcast_shares(settings: Settings, num_draws: int = NUM_DRAWS) -> FloatArray:
    """Return the mean share of the download in the latency of a client, by draw; `settings` have downloads."""
    return np.array([np.mean(fleet.download_s / fleet.latency_s) for _, fleet in _draw_fleets(settings, num_draws)])


def all_in_time(preset: str, deadline_s: float = 20.0, num_draws: int = NUM_DRAWS) -> BoolArray:
    """Return, by draw, whether all clients meet the deadline; LESSON's models and times are then those of FedAvg."""
    draws = _draw_fleets(base_settings(preset), num_draws)
    return np.array([bool(np.all(assign_tiers(fleet.latency_s, deadline_s) == 1)) for _, fleet in draws])


def towards_zero(
    deadlines_s: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 60.0), num_draws: int = 5, until_s: float = 480.0
) -> pd.DataFrame:
    """Return how close LESSON under `released` is to asynchronous FL, by deadline and draw.

    No client is promoted to tier 1. The columns are described in `look_at_merges`.
    """
    return pd.DataFrame(
        {"deadline_s": deadline_s, "draw": draw} | look_at_merges(fleet, deadline_s, until_s)
        for deadline_s in deadlines_s
        for draw, fleet in _draw_fleets(Settings(), num_draws)
    )


def look_at_merges(fleet: Fleet, deadline_s: float, until_s: float) -> dict[str, float]:
    """Measure LESSON's aggregations in the second half of a simulation of `until_s` seconds.

    The first half is ignored because it may still show that all clients started at the same time. `single_share` is
    the fraction of aggregations with a single update, `wait_s` the mean time that an update waits at the server, and
    `updates_of_async` the number of updates over that of asynchronous FL, which aggregates Σ 1 / t_i per second.
    """
    sizes, waits_s = [], []
    for record, arrived_s in merged_arrivals(simulate(Lesson(deadline_s), fleet, until_s=until_s), fleet):
        if len(record.merged) and record.end_s > until_s / 2:
            sizes.append(len(record.merged))
            waits_s.append(record.end_s - arrived_s)
    async_updates = until_s / 2 * np.sum(1 / fleet.latency_s)
    return {
        "single_share": float(np.mean(np.array(sizes) == 1)),
        "wait_s": float(np.mean(np.concatenate(waits_s))),
        "updates_of_async": float(sum(sizes) / async_updates),
    }


def merged_arrivals(rounds: Iterable[RoundRecord], fleet: Fleet) -> Iterator[tuple[RoundRecord, FloatArray]]:
    """Yield each round with the arrival times of its aggregated updates in seconds, shape (num_merged,).

    `rounds` are rounds of LESSON and must begin with the first one.
    """
    started_s = np.zeros(len(fleet))
    for record in rounds:
        started_s[record.started] = record.start_s
        yield record, started_s[record.merged] + fleet.latency_s[record.merged]


def _draw_fleets(settings: Settings, num_draws: int) -> Iterator[tuple[int, Fleet]]:
    return ((seed, draw_fleet(settings, seed=seed)) for seed in range(num_draws))
