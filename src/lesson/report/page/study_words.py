"""The text of a study's report page: what was run, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lesson.core.arrays import IntArray
from lesson.experiments.measures import MIN_SEEDS, half_interval, sign_test_rank
from lesson.experiments.run import Run
from lesson.fleet.tiers import UNREACHABLE
from lesson.learn.metric import Metric
from lesson.report.metric_words import metric_column, target_text, unit_of
from lesson.report.page.contender import Contender
from lesson.report.page.work_data import tiers_of
from lesson.report.study.compare_text import cell, reached_targets, surprises
from lesson.report.study.groups import is_on_wall_clock
from lesson.report.words import count

TARGETS_SHOWN = 3
"""Number of targets in the verdict's table: the highest that were reached. Another section shows all targets."""


def what_was_run(groups: Sequence[Contender]) -> str:
    """Describe the study in one or two sentences; values that differ among runs are listed or left out."""
    runs = [run for group in groups for run in group.runs]
    limits, several = [run.settings.run for run in runs], [group.settings for group in groups]
    names = "; ".join(group.label for group in groups[:6]) + ("; …" if len(groups) > 6 else "")
    who = f"{names} was" if len(groups) == 1 else f"{len(groups)} configurations ({names}) were"
    lengths = _different(_length(run) for run in runs)
    num_clients = sorted({settings.fleet.num_clients for settings in several})
    many = " or ".join(f"{count:,}" for count in num_clients)
    first = (
        f"{who} trained on {_different(run.settings.data.dataset for run in runs)} for {lengths}, with "
        f"{count(len({one.seed for one in limits}), 'seed')} and {many} clients{_split(groups)}."
    )
    return " ".join(filter(None, [first, _latencies(groups) if len(num_clients) == 1 else ""]))


def _length(run: Run) -> str:
    """Return the length of a run on the wall clock, or the limits of a simulated run: seconds, rounds or both."""
    if is_on_wall_clock(run):
        return f"{count(run.summary['rounds'], 'round')} in {run.summary['time_s']:,.0f} seconds of elapsed time"
    limits = run.settings.run
    seconds = limits.time_budget_s
    told = [f"{seconds:,.0f} simulated {'second' if seconds == 1 else 'seconds'}"] if math.isfinite(seconds) else []
    return " or ".join(told + ([count(limits.rounds, "round")] if limits.rounds else []))


def _split(groups: Sequence[Contender]) -> str:
    """Describe how the data is split among clients; empty if the groups differ in this."""
    splits = {(group.settings.data.split, group.settings.data.beta) for group in groups}
    if len(splits) > 1:
        return ""
    ((split, beta),) = splits
    if split == "natural":
        return " with the natural split of the task"
    if split == "quantity-skew":
        return f" that hold different amounts of IID data (β = {beta:g})"
    return " that hold IID data" if split == "iid" else f" that hold non-IID data (β = {beta:g})"


def _latencies(groups: Sequence[Contender]) -> str:
    """Describe the latencies over all runs and, if all runs have the same deadline, the tiers that result from it."""
    kept = [(clients, group.settings) for group in groups for clients in group.clients if clients]
    known = [value for clients, _ in kept for value in clients["clients"]["latency_s"] if value is not None]
    if not known:
        return ""
    seconds = np.array(known)
    deadlines = {group.settings.strategy.deadline_s for group in groups}
    varies = any(settings.varies for _, settings in kept)
    told = "According to first estimates, local" if varies else "Local"
    told += f" training and upload take the fastest client {seconds.min():.1f} s and the slowest "
    told += f"{seconds.max():.1f} s"
    if len(deadlines) > 1:
        return f"{told}."
    (deadline_s,) = deadlines
    if not math.isfinite(deadline_s):
        return f"{told}; there is no deadline."
    found = [np.unique(tiers_of(clients, settings)) for clients, settings in kept]
    tiers = _tiers([one[one != UNREACHABLE] for one in found])
    return f"{told}; a deadline of {deadline_s:g} s sorts the clients into {tiers}."


def _tiers(found: Sequence[IntArray]) -> str:
    """Describe the number of tiers; `found` has the non-empty tiers of each run, whose numbers may have gaps."""
    counts = [int(np.count_nonzero(tiers != UNREACHABLE)) for tiers in found]
    fewest, most = min(counts), max(counts)
    slowest = max(int(tiers.max(initial=0)) for tiers in found)
    many = count(most, "tier") if fewest == most else f"{fewest}–{most} tiers, depending on the seed"
    return many if slowest <= most else f"{many}, up to tier {slowest:,}"


def verdict(
    groups: Sequence[Contender], table: pd.DataFrame, drawn: Sequence[Contender], metric: Metric
) -> dict[str, Any]:
    """Return the verdict: cards that name the best contenders, and a table of all of them.

    Only the drawn contenders are ranked by their costs to a target.
    """
    reached = reached_targets(table, metric)
    columns: list[tuple[str, str, float, int | None]] = [
        (f"{metric.name}{unit_of(metric)}", *metric_column(metric, metric.last10))
    ]
    columns += [
        (f"to {target_text(metric, target, ' ')} (s)", f"time_to_{target:g}", 1, 0)
        for target in reached[-TARGETS_SHOWN:]
    ]
    columns += [("uploads", "uploads", 1, 0), ("uploaded (MB)", "bytes_up", 1e-6, 1)]
    columns += [("energy (kJ)", "energy_j", 1e-3, 1)]
    columns += [(label, name, 1, 0) for label, name in surprises(table).items()]
    labels = [group.label for group in groups]
    return {
        "columns": ["seeds", *(heading for heading, *_ in columns)],
        "rows": [
            [label, f"{figures['seeds']:.0f}", *(cell(figures, *column[1:]) for column in columns)]
            for label, (_, figures) in zip(labels, table.iterrows(), strict=True)
        ],
        "cards": [_best_card(groups, table, metric), *_target_cards(table, metric, drawn)],
    }


def _best_card(groups: Sequence[Contender], table: pd.DataFrame, metric: Metric) -> dict[str, str]:
    """Return the card for the best value of the metric, with those of the next three contenders."""
    labels = [group.label for group in groups]
    order = metric.order(table[metric.last10]).tolist()
    column, sign = metric_column(metric, metric.last10), " %" if metric.is_share else ""
    shown = [f"{cell(table.iloc[place], *column)}{sign}" for place in order]
    behind = "; ".join(f"{labels[place]}: {value}" for place, value in zip(order[1:4], shown[1:4], strict=True))
    costs = {
        groups[place].label: {
            run.summary["seed"]: metric.cost(run.summary[metric.last10]) for run in groups[place].runs
        }
        for place in order
    }
    superlative = "Highest" if metric.higher_is_better else "Lowest"
    return _card(f"{superlative} {metric.name}", shown[0], _leader(costs), behind)


def _target_cards(table: pd.DataFrame, metric: Metric, drawn: Sequence[Contender]) -> list[dict[str, str]]:
    """Return cards for the lowest time, energy and uploads to the hardest target that some contender always reaches.

    "Always" means with every seed. If there is no such target, there are no cards.
    """
    certain = [target for target in reached_targets(table, metric) if table[f"time_to_{target:g}"].notna().any()]
    if not certain:
        return []
    costs_of = {
        column: {group.label: _costs_by_seed(group, certain[-1], column) for group in drawn}
        for column in ("time_s", "energy_j", "uploads")
    }
    reaching = {label: sum(map(math.isfinite, by_seed.values())) for label, by_seed in costs_of["time_s"].items()}
    cards = []
    for column, heading, scale, unit in (
        ("time_s", "Shortest time to", 1, " s"),
        ("energy_j", "Least energy to", 1e-3, " kJ"),
        ("uploads", "Fewest uploads to", 1, ""),
    ):
        costs = costs_of[column]
        means = {
            label: scale * float(np.mean(list(values)))
            for label, by_seed in costs.items()
            if np.isfinite(values := list(by_seed.values())).all()
        }
        if means:
            first, *others = sorted(means, key=lambda label: means[label])
            later = [f"{label}: {means[label] / means[first]:.2f} ×" for label in others[:3]]
            later += [
                f"{label} reaches it with {number or 'none'} of {count(len(costs[label]), 'seed')}"
                for label, number in reaching.items()
                if number < len(costs[label])
            ][:3]
            digits = 1 if unit == " kJ" and means[first] < 10 else 0
            leader = _leader({first: costs[first]} | costs)
            cards.append(
                _card(
                    f"{heading} {target_text(metric, certain[-1], ' ')}",
                    f"{means[first]:,.{digits}f}{unit}",
                    leader,
                    "; ".join(later),
                )
            )
    return cards


def _costs_by_seed(group: Contender, target: float, column: str) -> dict[int, float]:
    """Return the cost of a target by seed; infinity if the run never reaches it or the cost is not known."""
    found = (course.cost_of(target, column) for course in group.courses)
    costs = [math.inf if cost is None or math.isnan(cost) else cost for cost in found]
    return {int(run.summary["seed"]): cost for run, cost in zip(group.runs, costs, strict=True)}


def _leader(costs: Mapping[str, Mapping[int, float]]) -> str:
    """Name the contender with the lowest cost, which must be the first, and those that do not clearly cost more."""
    first, *others = costs
    tied = [label for label in others if not _is_clearly_less(costs[first], costs[label])]
    if not tied:
        return first
    names = " or ".join([first, *tied]) if len(tied) < 3 else f"{first} and {len(tied)} others"
    return f"{names}: not distinguishable with {count(len(costs[first]), 'seed')}"


def _is_clearly_less(ours: Mapping[int, float], theirs: Mapping[int, float]) -> bool:
    """Return whether the 95 % interval of paired differences over at least MIN_SEEDS seeds is below zero.

    A target that is never reached has infinite cost. If any cost is infinite, there is no such interval; ours must then
    be lower by a two-sided sign test at the 5 % level, in which ties count against it. This takes at least six seeds.
    """
    pairs = np.array([(ours[seed], theirs[seed]) for seed in ours if seed in theirs]).reshape(-1, 2)
    if len(pairs) < MIN_SEEDS:
        return False
    if not np.isfinite(pairs).all():
        return int(np.count_nonzero(~(pairs[:, 0] < pairs[:, 1]))) < sign_test_rank(len(pairs))
    differences = pairs[:, 0] - pairs[:, 1]
    return bool(differences.mean() + half_interval(differences) < 0)


def _card(label: str, value: str, who: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "who": who, "note": note}


def _different(words: Any) -> str:
    return " or ".join(dict.fromkeys(words))
