"""What the page of a study says in words: what was run, and the verdict."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lesson.report.compare_text import cell
from lesson.report.page.contender import Contender
from lesson.summary import TARGETS
from lesson.tiers import assign_tiers

TARGETS_SHOWN = 3
"""The highest that somebody reached, in the verdict's table; what every target costs has a section of its own."""


def what_was_run(groups: Sequence[Contender]) -> str:
    """The study in two sentences; what varies among its runs is not told as everybody's."""
    runs = [run for group in groups for run in group.runs]
    limits, scenarios = [run.settings.run for run in runs], [group.scenario for group in groups]
    names = ", ".join(group.label for group in groups[:6]) + (", …" if len(groups) > 6 else "")
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
    """How long the clients of the first run take, and what the deadline makes of them if all have the same."""
    known: list[float | None] = next((one.clients[0]["clients"]["latency_s"] for one in groups if one.clients[0]), [])
    seconds = np.array([value for value in known if value is not None])
    if not len(seconds):
        return ""
    deadlines = {group.scenario.deadline_s for group in groups}
    told = f"One piece of local work and its upload takes the fastest of them {seconds.min():.1f} s and the slowest "
    told += f"{seconds.max():.1f} s"
    if len(deadlines) > 1:
        return f"{told}."
    (deadline_s,) = deadlines
    tiers = count(len(np.unique(assign_tiers(seconds, deadline_s))), "tier")
    sorts = f"a deadline of {deadline_s:g} s sorts them into {tiers}"
    return f"{told}; {sorts if math.isfinite(deadline_s) else 'there is no deadline'}."


def verdict(groups: Sequence[Contender], table: pd.DataFrame) -> dict[str, Any]:
    """Who reached what when: cards for the best, and a table of all."""
    reached = [target for target in TARGETS if (table[f"time_to_{target:g}_seeds"] > 0).any()]
    columns: list[tuple[str, str, float, int]] = [("accuracy (%)", "accuracy_last10", 100, 1)]
    columns += [(f"to {target:.0%} (s)", f"time_to_{target:g}", 1, 0) for target in reached[-TARGETS_SHOWN:]]
    columns += [("uploads", "uploads", 1, 0), ("uploaded (MB)", "bytes_up", 1e-6, 1)]
    columns += [("energy (kJ)", "energy_j", 1e-3, 1)]
    labels = [group.label for group in groups]
    return {
        "columns": [heading for heading, *_ in columns],
        "rows": [
            [label, *(cell(figures, name, scale, digits) for _, name, scale, digits in columns)]
            for label, (_, figures) in zip(labels, table.iterrows(), strict=True)
        ],
        "cards": [*_best_cards(labels, table, reached), *_least_cards(labels, table)],
    }


def _best_cards(labels: Sequence[str], table: pd.DataFrame, reached: Sequence[float]) -> list[dict[str, str]]:
    """The best model, and the fastest way to the highest target that somebody reaches from every seed."""
    accuracies = table["accuracy_last10"].to_numpy(float)
    order = np.argsort(-accuracies, kind="stable").tolist()
    behind = "; ".join(f"{labels[place]}: {accuracies[place]:.1%}" for place in order[1:4])
    cards = [_card("Highest accuracy at the end", f"{accuracies[order[0]]:.1%}", labels[order[0]], behind)]
    for target in reversed(reached):
        times = table[f"time_to_{target:g}"].to_numpy(float)
        if np.isfinite(times).any():
            first, *others = [place for place in np.argsort(times).tolist() if math.isfinite(times[place])]
            later = "; ".join(f"{labels[place]}: {times[place] / times[first]:.2f} ×" for place in others[:3])
            nobody = "nobody else from every seed" if len(labels) > 1 else ""
            cards.append(_card(f"First at {target:.0%}", f"{times[first]:,.0f} s", labels[first], later or nobody))
            break
    return cards


def _least_cards(labels: Sequence[str], table: pd.DataFrame) -> list[dict[str, str]]:
    """What costs least, among several."""
    cards = []
    for name, label, scale, unit in (("energy_j", "Least energy", 1e-3, " kJ"), ("uploads", "Fewest uploads", 1, "")):
        values = scale * table[name].to_numpy(float)
        if len(labels) > 1 and np.isfinite(values).any():
            least = int(np.nanargmin(values))
            digits = 1 if unit and values[least] < 10 else 0
            cards.append(_card(label, f"{values[least]:,.{digits}f}{unit}", labels[least], "in the whole run"))
    return cards


def _card(label: str, value: str, who: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "who": who, "note": note}


def _different(words: Any) -> str:
    return " or ".join(dict.fromkeys(words))


def count(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
