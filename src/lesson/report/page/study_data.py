"""The data of a study's report page. The page draws it and computes nothing but the effects of other deadlines."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from lesson.experiments.measures import MIN_SEEDS, half_interval
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.bands import Points, mean_band
from lesson.report.page.contender import Contender, contenders
from lesson.report.page.explorer import Origin, explorer_data
from lesson.report.page.study_words import verdict, what_was_run
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.report.study.groups import is_on_wall_clock, kind_of_time

_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_COSTS = {"seconds": "time_s", "uploads": "uploads", "bytes": "bytes_up", "joules": "energy_j"}
MAX_GROUPS = 24
"""Most lines in a chart. Of a larger study, the best groups are drawn; the table lists all of them."""


def study_data(study: Study, command: str) -> dict[str, Any]:
    """Return all data of a study's page; `command` is the command that repeats the study."""
    groups, table, metric = contenders(study), study.means(), study.metric
    drawn = _best(groups, table, metric) if len(groups) > MAX_GROUPS else groups
    known = next((group for group in drawn if group.clients[0]), None)
    times_vary = any(group.settings.varies for group in drawn)
    return {
        "what": what_was_run(groups),
        **_metric(metric),
        "time": kind_of_time(study.runs),
        "times_vary": times_vary,
        "counts_merges": [group.label for group in drawn if group.counts_merges],
        "varies": [key.rpartition(".")[2] for key in study.by],
        "groups": [
            {"label": group.label, "color": group.color, "dash": _DASHES[group.style], "seeds": len(group.runs)}
            for group in drawn
        ],
        "hidden": len(groups) - len(drawn),
        "verdict": verdict(groups, table, drawn, metric),
        "curves": [_curves(group, metric) for group in drawn],
        "fleet": None if times_vary else known and _fleet(known),  # other deadlines need constant times
        "latencies": known and latencies(known.clients[0]),
        "schedule": [schedule(group.courses[0], group.clients[0]) for group in drawn],
        "participation": [participation(group.courses, group.clients, group.settings) for group in drawn],
        "fairness": [fairness(group.clients, group.settings) for group in drawn],
        "costs": [_costs(group, metric) for group in drawn],
        "notes": _notes(study),
        "failures": dict(study.failures),
        "settings": tomli_w.dumps(drawn[0].first.settings.to_sections()),
        "command": command,
    }


def _metric(metric: Metric) -> dict[str, Any]:
    """Return what the page needs to know about the metric; nothing for accuracy."""
    told = {"name": metric.name, "higher_is_better": metric.higher_is_better}
    return {} if metric.is_share else {"metric": told}


def _notes(study: Study) -> list[str]:
    """Return the notes of all runs without duplicates, each after the name of the first run that has it."""
    first: dict[str, str] = {}
    for run in study.runs:
        for note in run.summary["notes"]:
            first.setdefault(note, run.name)
    return [f"{name}: {note}" for note, name in first.items()]


def _curves(group: Contender, metric: Metric) -> dict[str, Any]:
    """Return the metric over time and over rounds: the mean over seeds with its 95 % interval.

    If each arrival ends a round, aggregations are counted instead of rounds.
    """

    def points(over: str) -> list[Points]:
        return [
            (np.array([score[over] for score in course.scores]), np.array([one[metric.name] for one in course.scores]))
            for course in group.courses
        ]

    columns = {"time_s": "time_s", "round": "merges" if group.counts_merges else "round"}
    return {over: mean_band(points(column), metric).to_dict(metric) for over, column in columns.items()}


def _costs(group: Contender, metric: Metric) -> list[dict[str, Any]]:
    """Return the seconds, uploads, bytes and joules to each target.

    They are means over seeds with half their 95 % intervals; None unless all seeds reach the target at a known cost.
    """
    found = []
    for target in metric.targets:
        row: dict[str, Any] = {"target": target}
        for name, column in _COSTS.items():
            values = [course.cost_of(target, column) for course in group.courses]
            there = [value for value in values if value is not None and not math.isnan(value)]
            row["seeds"] = sum(value is not None for value in values)
            row[name] = float(np.mean(there)) if len(there) == len(values) else None
            enough = row[name] is not None and len(there) >= MIN_SEEDS
            row[f"{name}_half"] = half_interval(np.array(there)) if enough else None
        found.append(row)
    return found


def _fleet(group: Contender) -> dict[str, Any]:
    """Return the clients of the first run for the deadline explorer."""
    kept, chosen, run = group.clients[0], group.settings.strategy, group.first
    file = Path(group.settings.fleet.latencies).name
    source = "measured" if is_on_wall_clock(run) else file or f"seed {run.summary['seed']}"
    clients, ensure = kept["clients"], chosen.ensure_first_tier
    return explorer_data(clients, kept["num_clients"], chosen.deadline_s, Origin(source), ensure_first_tier=ensure)


def _best(groups: Sequence[Contender], table: pd.DataFrame, metric: Metric) -> list[Contender]:
    order = metric.order(table[metric.last10])[:MAX_GROUPS]
    return [groups[place] for place in sorted(order.tolist())]
