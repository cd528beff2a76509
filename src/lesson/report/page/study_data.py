"""The data of a study's report page, which only draws it."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from lesson.experiments.measures import spent_until
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.bands import Points, mean_band
from lesson.report.clients import stored_clients
from lesson.report.groups import Group, groups_of, is_on_wall_clock, kind_of_time, rounds_are_arrivals
from lesson.report.page.course import Course, course_of
from lesson.report.page.explorer import Origin, explorer_data
from lesson.report.page.study_words import cards, what_was_run
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.report.results import best_groups, results_table
from lesson.runs.folder import RunFolder
from lesson.settings.settings import SECTIONS, Settings

_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_COSTS = {"seconds": "time_s", "uploads": "uploads", "bytes": "bytes_up", "joules": "energy_j"}
MAX_GROUPS = 24
"""Maximum number of lines in a chart. In larger studies, the best groups are drawn, and the table lists all."""


def study_data(study: Study) -> dict[str, Any]:
    """Return all data of a study's page."""
    groups, metric = groups_of(study), study.metric
    drawn = best_groups(groups, metric, MAX_GROUPS)
    courses = [[course_of(run.each_line()) for run in group.runs] for group in drawn]
    clients = [[stored_clients(run) for run in group.runs] for group in drawn]
    merges = [_counts_merges(group, runs) for group, runs in zip(drawn, courses, strict=True)]
    there = [place for place, (stored, *_) in enumerate(clients) if stored and any(stored["clients"]["latency_s"])]
    known = there[0] if there else None
    times_vary = any(group.settings.varies for group in drawn)
    colors = {group.name: group.look[0] for group in drawn}
    parts = list(zip(drawn, courses, clients, strict=True))
    tasks = {run.settings.data.dataset for run in study.runs}
    return {
        "what": what_was_run(groups, [(one, group.settings) for group, _, stored in parts for one in stored if one]),
        **_metric(metric),
        "time": kind_of_time(study.runs),
        "times_vary": times_vary,
        "counts_merges": [group.name for group, counted in zip(drawn, merges, strict=True) if counted],
        "varies": [key.rpartition(".")[2] for key in study.by],
        "groups": [
            {"label": group.name, "color": group.look[0], "dash": _DASHES[group.look[1]], "seeds": len(group.runs)}
            for group in drawn
        ],
        "hidden": len(groups) - len(drawn),
        "cards": cards(study, groups) if len(tasks) == 1 else [],  # of other tasks, results cannot be compared
        "table": results_table(study).to_data(),
        "rows": [_row(group, colors.get(group.name)) for group in groups],
        "curves": [_curves(*three, metric) for three in zip(drawn, courses, merges, strict=True)],
        # The explorer assumes constant times.
        "fleet": None if times_vary or known is None else _fleet(drawn[known], clients[known][0]),
        "latencies": None if known is None else latencies(clients[known][0]),
        "schedule": [schedule(runs[0], stored[0]) for _, runs, stored in parts],
        "participation": [participation(runs, stored, group.settings) for group, runs, stored in parts],
        "fairness": [fairness(stored, group.settings) for group, _, stored in parts],
        "costs": [_costs(group, metric) for group in drawn],
        "notes": _notes(study),
        "failures": dict(study.failures),
    }


def _metric(metric: Metric) -> dict[str, Any]:
    """Return the name and direction of the metric; empty for accuracy."""
    named = {"name": metric.name, "higher_is_better": metric.higher_is_better}
    return {} if metric.is_share else {"metric": named}


def _notes(study: Study) -> list[str]:
    """Return the notes of all runs without duplicates, each after the name of the first run that has it."""
    first: dict[str, str] = {}
    for run in study.runs:
        for note in run.summary["notes"]:
            first.setdefault(note, run.name)
    return [f"{name}: {note}" for note, name in first.items()]


def _row(group: Group, color: str | None) -> dict[str, Any]:
    """Return what a row of the table shows when it is opened, and the color of the group's line; None without one."""
    return {
        "color": color,
        "command": _command(group),
        "settings": tomli_w.dumps(_changed(group.settings)),
        "seed": group.runs[0].seed,
    }


def _command(group: Group) -> str:
    """Return the commands that repeat the runs of a group; for archived runs, they read the settings from config.toml.

    Empty for runs on real clients, which cannot be repeated.
    """
    if any(is_on_wall_clock(run) for run in group.runs):
        return ""
    paths = [run.path for run in group.runs if run.path is not None]
    if len(paths) < len(group.runs):
        seeds, name = [run.seed for run in group.runs], shlex.quote(group.settings.strategy.name)
        given = f"--scenario config.toml --strategies {name} --seed {min(seeds)} --seeds {max(seeds) - min(seeds) + 1}"
        return f"lesson compare {given} --out runs/again"
    configs = [(shlex.quote(str(RunFolder(path).config)), shlex.quote(path.name)) for path in paths]
    return "\n".join(f"lesson run --scenario {config} --out runs/again/{name}" for config, name in configs)


def _changed(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the preset, as sections of a settings file."""
    usual = Settings(preset=settings.preset).to_sections()
    tables = {
        section: {name: value for name, value in table.items() if usual[section].get(name) != value}
        for section, table in settings.to_sections().items()
        if section in SECTIONS
    }
    return {"preset": settings.preset} | {section: table for section, table in tables.items() if table}


def _counts_merges(group: Group, courses: Sequence[Course]) -> bool:
    """Return whether aggregations are counted instead of rounds, because each arrival ends a round."""
    return rounds_are_arrivals(group.settings) and all(course.num_merges for course in courses)


def _curves(group: Group, courses: Sequence[Course], counts_merges: bool, metric: Metric) -> dict[str, Any]:
    """Return the metric over time and over rounds: the mean over seeds with its 95 % interval."""
    over_time: list[Points] = []
    over_rounds: list[Points] = []
    for run, course in zip(group.runs, courses, strict=True):
        rounds, values = run.curve["round"].to_numpy(), run.curve[metric.name].to_numpy(float)
        over_time.append((run.curve["time_s"].to_numpy(float), values))
        counted = np.array([course.num_merges[one] for one in rounds]) if counts_merges else rounds
        over_rounds.append((counted.astype(float), values))
    points = {"time_s": over_time, "round": over_rounds}
    return {over: mean_band(runs, metric).to_dict(metric) for over, runs in points.items()}


def _costs(group: Group, metric: Metric) -> list[dict[str, Any]]:
    """Return the seconds, uploads, bytes and joules to each target.

    Costs are means over seeds, with half their 95 % intervals; None unless all seeds reach the target at a known cost.
    """
    found = []
    for target in metric.targets:
        spent = {name: spent_until(group.runs, target, column) for name, column in _COSTS.items()}
        row: dict[str, Any] = {"target": target, "seeds": int((~spent["seconds"].is_bound).sum())}
        for name, values in spent.items():
            row[name] = None if math.isnan(values.mean) else values.mean
            row[f"{name}_half"] = None if math.isnan(values.half) else values.half
        found.append(row)
    return found


def _fleet(group: Group, clients: dict[str, Any]) -> dict[str, Any]:
    """Return the clients of the first run for the deadline explorer."""
    chosen, run = group.settings.strategy, group.runs[0]
    file = Path(group.settings.fleet.latencies).name
    origin = Origin("measured" if is_on_wall_clock(run) else file or f"seed {run.seed}")
    columns, ensure = clients["clients"], chosen.ensure_first_tier
    return explorer_data(columns, clients["num_clients"], chosen.deadline_s, origin, ensure_first_tier=ensure)
