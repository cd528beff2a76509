"""What the page of a study shows, as plain numbers and words: pages draw, they work nothing out."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from lesson.report.bands import Points, mean_band
from lesson.report.compare_text import cell
from lesson.report.groups import Group, groups_of
from lesson.report.page.course import Course, course_of
from lesson.report.page.work_data import fairness, latencies, participation, schedule
from lesson.run_folder import RunFolder, read_kept
from lesson.settings import to_toml
from lesson.study import Run, Study, half_interval
from lesson.summary import TARGETS, each_line, time_to
from lesson.tiers import assign_tiers

_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
MAX_GROUPS = 24
"""Lines in a chart; of a larger study the best are drawn, the table has them all."""


TARGETS_SHOWN = 3
"""The highest that somebody reached, in the verdict's table; what every target costs has a section of its own."""


class Contender:
    """The runs that differ in their seed only, with what was written down of each."""

    def __init__(self, group: Group) -> None:
        self.label, self.look = group.name, group.look
        self.runs = sorted(group.runs, key=lambda run: int(run.summary["seed"]))

    @cached_property
    def courses(self) -> list[Course]:
        """How its runs went."""
        return [course_of(each_line(RunFolder(run.path).metrics)) for run in self.runs]

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """Who took part in each; nothing of a folder that does not say."""
        return [read_kept(RunFolder(run.path).clients, {}, "run it again") for run in self.runs]

    @property
    def deadline_s(self) -> float:
        """By which its clients are sorted into tiers, also where the strategy itself has none."""
        return self.first.settings.scenario.deadline_s

    @property
    def colour(self) -> str:
        """That of its figures; grey for black, which a dark page would swallow."""
        return "#7f7f7f" if self.look[0] == "#000000" else self.look[0]

    @property
    def first(self) -> Run:
        """The run of the lowest seed, which stands for the others where one has to be shown."""
        return self.runs[0]


def study_data(study: Study, command: str) -> dict[str, Any]:
    """Everything on the page of a study; `command` repeats it."""
    groups, table = [Contender(group) for group in groups_of(study)], study.table()
    drawn = _best(groups, table) if len(groups) > MAX_GROUPS else groups
    fleet_of = drawn[0]
    return {
        "what": what_was_run(groups),
        "varies": list(study.by),
        "groups": [
            {"label": group.label, "colour": group.colour, "dash": _DASHES[group.look[1]], "seeds": len(group.runs)}
            for group in drawn
        ],
        "hidden": len(groups) - len(drawn),
        "verdict": verdict(groups, table),
        "curves": [_curves(group) for group in drawn],
        "fleet": _fleet(fleet_of),
        "latencies": latencies(fleet_of.clients[0]),
        "schedule": [schedule(group.courses[0].first, group.clients[0]) for group in drawn],
        "participation": [participation(group.courses, group.clients, group.deadline_s) for group in drawn],
        "fairness": [fairness(group.clients, group.deadline_s) for group in drawn],
        "costs": [_costs(group) for group in drawn],
        "notes": sorted({note for group in groups for run in group.runs for note in run.summary["notes"]}),
        "failures": dict(study.failures),
        "settings": to_toml(fleet_of.first.settings.to_sections()),
        "command": command,
    }


def what_was_run(groups: Sequence[Contender]) -> str:
    """The study in two sentences."""
    settings, runs = groups[0].first.settings, [run for group in groups for run in group.runs]
    seeds = {run.summary["seed"] for run in runs}
    limits, scenario = settings.run, settings.scenario
    length = f"{limits.time_budget_s:,.0f} simulated seconds" if math.isfinite(limits.time_budget_s) else ""
    length = " or ".join(filter(None, [length, f"{limits.rounds:,} rounds" if limits.rounds else ""]))
    names = ", ".join(group.label for group in groups[:6]) + (", …" if len(groups) > 6 else "")
    who = names if len(groups) == 1 else f"{len(groups)} contenders ({names})"
    first = (
        f"{who} trained a model on {limits.dataset} for {length}, from {_count(len(seeds), 'seed')}, with the data of "
        f"{scenario.num_clients:,} clients that share it unequally (β = {scenario.beta:g})."
    )
    known = groups[0].clients[0].get("clients")
    if not known:
        return first
    seconds = np.array([value for value in known["latency_s"] if value is not None])
    num_tiers = len(np.unique(assign_tiers(seconds, scenario.deadline_s)))
    deadline = (
        f"a deadline of {scenario.deadline_s:g} s sorts them into {_count(num_tiers, 'tier')}"
        if math.isfinite(scenario.deadline_s)
        else "there is no deadline"
    )
    return (
        f"{first} One piece of local work and its upload takes the fastest of them {seconds.min():.1f} s and the "
        f"slowest {seconds.max():.1f} s; {deadline}."
    )


def verdict(groups: Sequence[Contender], table: pd.DataFrame) -> dict[str, Any]:
    """Who reached what when: cards for the best, and a table of all."""
    reached = [target for target in TARGETS if (table[f"time_to_{target:g}_seeds"] > 0).any()]
    columns: list[tuple[str, str, float, int]] = [("accuracy (%)", "accuracy_last10", 100, 1)]
    columns += [(f"to {target:.0%} (s)", f"time_to_{target:g}", 1, 0) for target in reached[-TARGETS_SHOWN:]]
    columns += [
        ("uploads", "uploads", 1, 0),
        ("uploaded (MB)", "bytes_up", 1e-6, 1),
        ("energy (kJ)", "energy_j", 1e-3, 1),
    ]
    rows = [figures for _, figures in table.iterrows()]
    labels = [group.label for group in groups]
    return {
        "columns": [heading for heading, *_ in columns],
        "rows": [
            [label, *(cell(figures, name, scale, digits) for _, name, scale, digits in columns)]
            for label, figures in zip(labels, rows, strict=True)
        ],
        "cards": _cards(labels, table, reached),
    }


def _cards(labels: Sequence[str], table: pd.DataFrame, reached: Sequence[float]) -> list[dict[str, Any]]:
    """What comes first to mind: the best model, the fastest way to a target, what it costs."""
    accuracies = table["accuracy_last10"].to_numpy(float)
    best = int(accuracies.argmax())
    behind = [f"{labels[place]}: {accuracies[place]:.1%}" for place in np.argsort(-accuracies) if place != best]
    cards = [
        {
            "label": "Highest accuracy at the end",
            "value": f"{accuracies[best]:.1%}",
            "who": labels[best],
            "note": "; ".join(behind[:3]),
        }
    ]
    for target in reversed(reached):
        times = table[f"time_to_{target:g}"].to_numpy(float)
        if np.isfinite(times).any():
            first = int(np.nanargmin(times))
            others = [
                f"{labels[place]}: {seconds / times[first]:.2f} ×"
                for place, seconds in enumerate(times)
                if place != first and math.isfinite(seconds)
            ]
            cards.append(
                {
                    "label": f"First at {target:.0%}",
                    "value": f"{times[first]:,.0f} s",
                    "who": labels[first],
                    "note": "; ".join(others[:3]) or ("nobody else from every seed" if len(labels) > 1 else ""),
                }
            )
            break
    for name, label, scale, unit in (("energy_j", "Least energy", 1e-3, "kJ"), ("uploads", "Fewest uploads", 1, "")):
        values = table[name].to_numpy(float)
        if len(labels) > 1 and np.isfinite(values).any():
            least = int(np.nanargmin(values))
            cards.append(
                {
                    "label": label,
                    "value": f"{scale * values[least]:,.0f} {unit}".strip(),
                    "who": labels[least],
                    "note": "in the whole run",
                }
            )
    return cards


def _curves(group: Contender) -> dict[str, Any]:
    """Accuracy over time and over rounds: the mean of all seeds with its interval."""

    def points(over: str) -> list[Points]:
        return [
            (np.array([score[over] for score in course.scores]), np.array([one["accuracy"] for one in course.scores]))
            for course in group.courses
        ]

    return {over: mean_band(points(over)).to_dict() for over in ("time_s", "round")}


def _costs(group: Contender) -> list[dict[str, Any]]:
    """Bytes, joules, uploads and seconds to each target: means over seeds, where every seed reaches it."""
    found = []
    for target in TARGETS:
        row: dict[str, Any] = {"target": target}
        for name, column in (
            ("seconds", "time_s"),
            ("uploads", "uploads"),
            ("bytes", "bytes_up"),
            ("joules", "energy_j"),
        ):
            values = [time_to(target, course.scores, column) for course in group.courses]
            there = [value for value in values if value is not None and not math.isnan(value)]
            row["seeds"] = sum(value is not None for value in values)
            row[name] = float(np.mean(there)) if len(there) == len(values) else None
            row[f"{name}_half"] = half_interval(np.array(there)) if row[name] is not None else None
        found.append(row)
    return found


def _fleet(group: Contender) -> dict[str, Any] | None:
    """The clients as the deadline explorer takes them: with the latencies they really have."""
    kept, scenario = group.clients[0], group.first.settings.scenario
    if not kept:
        return None
    columns: dict[str, Any] = {name: values and list(values) for name, values in kept["clients"].items()}
    promoted = kept["promoted"]
    if promoted is not None and promoted["client"] in columns["number"]:
        place, real_s = columns["number"].index(promoted["client"]), promoted["latency_s"]
        factor = real_s / columns["latency_s"][place]
        for name in ("compute_s", "upload_s", "latency_s"):
            if columns[name][place] is not None:
                columns[name][place] *= factor
    seed = group.first.summary["seed"]
    return {
        "clients": columns,
        "num_clients": kept["num_clients"],
        "deadline_s": scenario.deadline_s,
        "ensure_first_tier": scenario.ensure_first_tier,
        "source": f"the clients of seed {seed}",
    }


def _best(groups: Sequence[Contender], table: pd.DataFrame) -> list[Contender]:
    order = np.argsort(-table["accuracy_last10"].to_numpy(float), kind="stable")[:MAX_GROUPS]
    return [groups[place] for place in sorted(order.tolist())]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
