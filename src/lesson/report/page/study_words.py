"""The text of a study's report page: what was run, and cards that name the best."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lesson.experiments.measures import Estimate, difference
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.fleet.tiers import UNREACHABLE
from lesson.learn.metric import Metric
from lesson.report.clients import tiers_of
from lesson.report.groups import Group, is_on_wall_clock
from lesson.report.results import score_cell
from lesson.report.words import count, target_text
from lesson.runs.summary import OWN_APP
from lesson.settings.settings import Settings


def what_was_run(groups: Sequence[Group], stored: Sequence[tuple[dict[str, Any], Settings]]) -> str:
    """Describe the study in one or two sentences; values that differ between runs are listed or omitted.

    `stored` are the stored clients of runs, with the settings of the runs.
    """
    runs = [run for group in groups for run in group.runs]
    limits, several = [run.settings.run for run in runs], [group.settings for group in groups]
    names = "; ".join(group.name for group in groups[:6]) + ("; …" if len(groups) > 6 else "")
    who = f"{names} was" if len(groups) == 1 else f"{len(groups)} configurations ({names}) were"
    lengths = _different(_length(run) for run in runs)
    num_clients = sorted({settings.fleet.num_clients for settings in several})
    clients = " or ".join(f"{number:,}" for number in num_clients)
    data = _different(run.settings.data.dataset for run in runs)
    first = (
        f"{who} trained {'in a Flower app' if data == OWN_APP else f'on {data}'} for {lengths}, with "
        f"{count(len({one.seed for one in limits}), 'seed')} and {clients} clients{_split(groups)}."
    )
    return " ".join(filter(None, [first, _latencies(groups, stored) if len(num_clients) == 1 else ""]))


def _length(run: Run) -> str:
    """Return the length of a run on the wall clock, or the limits of a simulated run: seconds, rounds or both."""
    if is_on_wall_clock(run):
        return f"{count(run.summary['rounds'], 'round')} in {run.summary['time_s']:,.0f} seconds of elapsed time"
    limits = run.settings.run
    seconds = limits.time_budget_s
    parts = [f"{seconds:,.0f} simulated {'second' if seconds == 1 else 'seconds'}"] if math.isfinite(seconds) else []
    return " or ".join(parts + ([count(limits.rounds, "round")] if limits.rounds else []))


def _split(groups: Sequence[Group]) -> str:
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


def _latencies(groups: Sequence[Group], stored: Sequence[tuple[dict[str, Any], Settings]]) -> str:
    """Describe the latencies of stored clients and, if all groups have the same deadline, the tiers that result."""
    known = [value for clients, _ in stored for value in clients["clients"]["latency_s"] if value is not None]
    if not known:
        return ""
    seconds = np.array(known)
    deadlines = {group.settings.strategy.deadline_s for group in groups}
    varies = any(settings.varies for _, settings in stored)
    text = "According to first estimates, local" if varies else "Local"
    text += f" training and upload take the fastest client {seconds.min():.1f} s and the slowest "
    text += f"{seconds.max():.1f} s"
    if len(deadlines) > 1:
        return f"{text}."
    (deadline_s,) = deadlines
    if not math.isfinite(deadline_s):
        return f"{text}; there is no deadline."
    numbers = {int(np.count_nonzero(np.unique(tiers_of(*one)) != UNREACHABLE)) for one in stored}
    fewest, most = min(numbers), max(numbers)
    tiers = count(most, "tier") if fewest == most else f"{fewest}–{most} tiers, depending on the seed"
    return f"{text}; a deadline of {deadline_s:g} s sorts the clients into {tiers}."


def cards(study: Study, groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return cards that name the group with the best metric, and those with the lowest costs of the hardest target.

    This is the hardest target that some group reaches with every seed. Without one, there is only the first card.
    """
    metric = study.metric

    def is_certain(target: float) -> bool:
        return any(not study.spent(group.runs, "time_s", target).is_bound.any() for group in groups)

    certain = list(filter(is_certain, metric.targets))
    target_cards = [_target_card(study, groups, certain[-1], *words) for words in _COSTS] if certain else []
    return [_best_card(study, groups, metric), *filter(None, target_cards)]


_COSTS = (
    ("time_s", "Shortest time to", 1.0, " s"),
    ("energy_j", "Least energy to", 1e-3, " kJ"),
    ("uploads", "Fewest uploads to", 1.0, ""),
)


def _best_card(study: Study, groups: Sequence[Group], metric: Metric) -> dict[str, str]:
    """Return the card for the best value of the metric, with those of the next three groups."""

    def cost(runs: Sequence[Run]) -> Estimate:
        values = study.final(runs)
        return Estimate(-values.high, -values.low) if metric.higher_is_better else values

    order = [groups[place] for place in metric.order([study.final(group.runs).mean for group in groups])]
    sign = " %" if metric.is_share else ""
    shown = [f"{score_cell(study.final(group.runs), metric)}{sign}" for group in order]
    behind = [f"{group.name}: {value}" for group, value in zip(order[1:4], shown[1:4], strict=True)]
    superlative = "Highest" if metric.higher_is_better else "Lowest"
    return _card(f"{superlative} {metric.name}", shown[0], leader(order, cost), behind)


def _target_card(
    study: Study, groups: Sequence[Group], target: float, column: str, heading: str, scale: float, unit: str
) -> dict[str, str] | None:
    """Return the card for the lowest cost of a target; None unless a group always reaches it at a known cost."""

    def cost(runs: Sequence[Run]) -> Estimate:
        return study.spent(runs, column, target)

    means = {group: scale * cost(group.runs).mean for group in groups}
    order = sorted(groups, key=lambda group: (math.isnan(means[group]), means[group]))
    least = means[order[0]]
    if math.isnan(least):
        return None
    later = [f"{group.name}: {means[group] / least:.2f} ×" for group in order[1:4] if not math.isnan(means[group])]
    missed = {group: study.spent(group.runs, "time_s", target).is_bound for group in groups}
    for group, misses in [(group, misses) for group, misses in missed.items() if misses.any()][:3]:
        number = np.count_nonzero(~misses)
        later.append(f"{group.name} reaches it with {number or 'none'} of {count(len(misses), 'seed')}")
    value = f"{least:,.{1 if unit == ' kJ' and least < 10 else 0}f}{unit}"
    return _card(f"{heading} {target_text(study.metric, target, ' ')}", value, leader(order, cost), later)


def leader(groups: Sequence[Group], cost: Callable[[Sequence[Run]], Estimate]) -> str:
    """Return the name of the first group, and of the groups whose cost is not distinguishable over common seeds."""
    first, *others = groups
    tied = [group.name for group in others if _difference(first, group, cost).verdict(0) != "lower"]
    if not tied:
        return first.name
    names = f"{', '.join([first.name, *tied[:-1]])} or {tied[-1]}"
    names = names if len(tied) < 3 else f"{first.name} and {len(tied)} others"
    return f"{names}: not distinguishable with {count(len(first.runs), 'seed')}"


def _difference(ours: Group, theirs: Group, cost: Callable[[Sequence[Run]], Estimate]) -> Estimate:
    """Return the differences of pairs of runs with the same seed."""
    pairs = [(run, other) for run in ours.runs for other in theirs.runs if run.seed == other.seed]
    return difference(cost([run for run, _ in pairs]), cost([run for _, run in pairs]))


def _card(label: str, value: str, who: str, note: Sequence[str]) -> dict[str, str]:
    return {"label": label, "value": value, "who": who, "note": "; ".join(note)}


def _different(words: Any) -> str:
    return " or ".join(dict.fromkeys(words))
