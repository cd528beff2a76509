"""What the page of a study says in words: what was run, and the verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lesson.arrays import IntArray
from lesson.report.compare_text import cell, reached_targets, surprises
from lesson.report.page.contender import Contender
from lesson.report.page.work_data import tiers_of
from lesson.report.words import count
from lesson.tiers import UNREACHABLE

Costs = Sequence[Mapping[str, Any]]
"""What each target cost a contender."""
TARGETS_SHOWN = 3
"""The highest that somebody reached, in the verdict's table; what every target costs has a section of its own."""


def what_was_run(groups: Sequence[Contender]) -> str:
    """The study in two sentences; what varies among its runs is not told as everybody's."""
    runs = [run for group in groups for run in group.runs]
    limits, scenarios = [run.settings.run for run in runs], [group.scenario for group in groups]
    names = "; ".join(group.label for group in groups[:6]) + ("; …" if len(groups) > 6 else "")
    who = names if len(groups) == 1 else f"{len(groups)} contenders ({names})"
    lengths = _different(" or ".join(_limits(one)) for one in limits)
    num_clients = sorted({scenario.num_clients for scenario in scenarios})
    many = " or ".join(f"{count:,}" for count in num_clients)
    first = (
        f"{who} trained a model on {_different(one.dataset for one in limits)} for {lengths}, from "
        f"{count(len({one.seed for one in limits}), 'seed')}, with the data of {many} clients{_split(groups)}."
    )
    return " ".join(filter(None, [first, _latencies(groups) if len(num_clients) == 1 else ""]))


def _limits(limits: Any) -> list[str]:
    """How long a run lasts."""
    seconds = limits.time_budget_s
    told = [f"{seconds:,.0f} simulated {'second' if seconds == 1 else 'seconds'}"] if math.isfinite(seconds) else []
    return told + ([count(limits.rounds, "round")] if limits.rounds else [])


def _split(groups: Sequence[Contender]) -> str:
    """How unequally the data is shared, where that is the same for all."""
    splits = {(group.scenario.split, group.scenario.beta) for group in groups}
    if len(splits) > 1:
        return ""
    ((split, beta),) = splits
    return " that share it evenly" if split == "iid" else f" that share it unequally (β = {beta:g})"


def _latencies(groups: Sequence[Contender]) -> str:
    """How long clients take, over all runs, and what the deadline makes of them if all runs have the same."""
    kept = [(clients, group.scenario) for group in groups for clients in group.clients if clients]
    known = [value for clients, _ in kept for value in clients["clients"]["latency_s"] if value is not None]
    if not known:
        return ""
    seconds = np.array(known)
    deadlines = {group.scenario.deadline_s for group in groups}
    told = f"One piece of local work and its upload takes the fastest of them {seconds.min():.1f} s and the slowest "
    told += f"{seconds.max():.1f} s"
    if len(deadlines) > 1:
        return f"{told}."
    (deadline_s,) = deadlines
    if not math.isfinite(deadline_s):
        return f"{told}; there is no deadline."
    found = [np.unique(tiers_of(clients, scenario)) for clients, scenario in kept]
    return (
        f"{told}; a deadline of {deadline_s:g} s sorts them into {_tiers([one[one != UNREACHABLE] for one in found])}."
    )


def _tiers(found: Sequence[IntArray]) -> str:
    """How many tiers runs have, each given those in which there is somebody; not all need be in use."""
    counts = [int(np.count_nonzero(tiers != UNREACHABLE)) for tiers in found]
    fewest, most = min(counts), max(counts)
    slowest = max(int(tiers.max(initial=0)) for tiers in found)
    many = count(most, "tier") if fewest == most else f"{fewest}–{most} tiers, depending on the seed"
    return many if slowest <= most else f"{many}, up to tier {slowest:,}"


def verdict(groups: Sequence[Contender], table: pd.DataFrame, costs: Mapping[str, Costs]) -> dict[str, Any]:
    """Who reached what when: cards for the best of those with known costs, and a table of all."""
    reached = reached_targets(table)
    columns: list[tuple[str, str, float, int]] = [("accuracy (%)", "accuracy_last10", 100, 1)]
    columns += [(f"to {target:.0%} (s)", f"time_to_{target:g}", 1, 0) for target in reached[-TARGETS_SHOWN:]]
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
        "cards": [_best_card(labels, table), *_target_cards(table, reached, costs)],
    }


def _best_card(labels: Sequence[str], table: pd.DataFrame) -> dict[str, str]:
    """The best model, and how far the others are behind."""
    order = np.argsort(-table["accuracy_last10"].to_numpy(float), kind="stable").tolist()
    shown = [cell(table.iloc[place], "accuracy_last10", 100, 1) for place in order]
    behind = "; ".join(f"{labels[place]}: {value} %" for place, value in zip(order[1:4], shown[1:4], strict=True))
    return _card("Highest accuracy", f"{shown[0]} %", labels[order[0]], behind)


def _target_cards(table: pd.DataFrame, reached: Sequence[float], costs: Mapping[str, Costs]) -> list[dict[str, str]]:
    """Who is first at the highest target that somebody reaches from every seed, and who gets there for least."""
    certain = [target for target in reached if table[f"time_to_{target:g}"].notna().any()]
    if not certain:
        return []
    rows = {label: next(row for row in known if row["target"] == certain[-1]) for label, known in costs.items()}
    cards = []
    for name, heading, scale, unit in (
        ("seconds", "First at", 1, " s"),
        ("joules", "Least energy to", 1e-3, " kJ"),
        ("uploads", "Fewest uploads to", 1, ""),
    ):
        values = {label: scale * row[name] for label, row in rows.items() if row[name] is not None}
        if values:
            first, *others = sorted(values, key=lambda label: values[label])
            later = "; ".join(f"{label}: {values[label] / values[first]:.2f} ×" for label in others[:3])
            nobody = "nobody else from every seed" if len(rows) > 1 else ""
            digits = 1 if unit == " kJ" and values[first] < 10 else 0
            value = f"{values[first]:,.{digits}f}{unit}"
            cards.append(_card(f"{heading} {certain[-1]:.0%}", value, first, later or nobody))
    return cards


def _card(label: str, value: str, who: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "who": who, "note": note}


def _different(words: Any) -> str:
    return " or ".join(dict.fromkeys(words))
