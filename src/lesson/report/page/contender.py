"""Runs that differ only in their seed, with all that a report page shows of them, read from their folders."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lesson.core.errors import InputError
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.metric import ACCURACY, Metric
from lesson.report.study.groups import Group, groups_of, rounds_are_arrivals
from lesson.settings.settings import Settings

WHOLE = {"merged", "merged_staleness", "merged_started_s", "merged_arrived_s"}
"""Fields of a line with the details of each aggregated update."""
MAX_FIRST = 20_000
"""Number of aggregated updates after which the lines of further rounds are not kept."""


@dataclass
class Course:
    """Evaluations and aggregated updates of a run."""

    scores: list[dict[str, float]] = field(default_factory=list)
    """Its evaluations: round, time_s, the metric, and uploads, bytes_up and energy_j summed up to that round; also
    `merges`, the number of aggregations, unless the run is archived."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """The lines of its first rounds; empty if lines lack the fields in `WHOLE`."""
    merges: Counter[int] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    """Per client: how many of its updates were aggregated, and the sum of their staleness in model versions."""
    end_s: float = 0.0
    diverged: bool = False
    metric: Metric = ACCURACY

    def cost_of(self, target: float, column: str) -> float | None:
        """Return what was spent until a target was reached; None if it never was, or if training diverged."""
        if self.diverged:
            return None
        values = [one[self.metric.name] for one in self.scores]
        return self.metric.time_to(target, values, [one[column] for one in self.scores])


def course_of(lines: Iterable[dict[str, Any]], metric: Metric = ACCURACY) -> Course:
    """Collect the course of a run from its lines."""
    course, totals, num_first = Course(metric=metric), {"uploads": 0.0, "bytes_up": 0.0, "energy_j": 0.0}, 0
    num_merges = 0
    for line in lines:
        num_merges += line.get("staleness") is not None
        course.end_s = line["time_s"]
        for name in totals:
            totals[name] += float("nan") if line[name] is None else line[name]
        if metric.name in line:
            over = {name: line[name] for name in ("round", "time_s", metric.name)}
            course.scores.append(over | totals | ({"merges": num_merges} if "staleness" in line else {}))
        if line.keys() >= WHOLE:
            for client, late in zip(line["merged"], line["merged_staleness"], strict=True):
                course.merges[client] += 1
                course.staleness[client] += late
            if num_first < MAX_FIRST:
                course.first.append(line)
            num_first += max(1, len(line["merged"]))
    return course


BLACK, GREY = "#000000", "#7f7f7f"


class Contender:
    """A group of runs that differ only in their seed, with its label, color, courses and clients."""

    def __init__(self, group: Group, seed: int) -> None:
        self.label, (color, self.style) = group.name, group.look
        self.color = GREY if color == BLACK else color  # black is invisible on a dark page
        self.runs = sorted(group.runs, key=lambda run: (run.summary["seed"] != seed, run.summary["seed"]))

    @property
    def first(self) -> Run:
        """The run shown where there is room for only one; if possible, its seed is one that all contenders have."""
        return self.runs[0]

    @property
    def settings(self) -> Settings:
        """The settings of the first run; the other runs differ only in their seed."""
        return self.first.settings

    @property
    def counts_merges(self) -> bool:
        """Whether aggregations are counted as its rounds, because each arrival ends a round."""
        known = all("merges" in score for course in self.courses for score in course.scores)
        return known and rounds_are_arrivals(self.settings)

    @cached_property
    def courses(self) -> list[Course]:
        """The course of each run."""
        return [replace(course_of(run.lines(), run.metric), diverged=bool(run.diverged)) for run in self.runs]

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """The stored clients of each run, with their real latencies; empty for a folder that has none."""
        kept = [run.read_clients() for run in self.runs]
        there = [(run, clients) for run, clients in zip(self.runs, kept, strict=True) if clients]
        for run, clients in there:
            count, wanted = (len(one.get("class_accuracy", [])) for one in (clients, there[0][1]))
            if count != wanted:
                raise InputError(
                    f"{run.path}/clients.json: class_accuracy must have {wanted} values like "
                    f"{there[0][0].path}/clients.json, got {count}"
                )
        return [_real(clients) for clients in kept]


def contenders(study: Study) -> list[Contender]:
    """Return the groups of a study as contenders."""
    groups = groups_of(study)
    seeds = [{int(run.summary["seed"]) for run in group.runs} for group in groups]
    common = set.intersection(*seeds) or set.union(*seeds)
    return [Contender(group, min(common)) for group in groups]


def _real(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the clients with the real latency of a promoted client in place of its assumed latency."""
    promoted = kept.get("promoted")
    if promoted is None or promoted["client"] not in kept["clients"]["number"]:
        return kept
    place, columns = kept["clients"]["number"].index(promoted["client"]), dict(kept["clients"])
    if not columns["latency_s"][place]:
        return kept
    factor = promoted["latency_s"] / columns["latency_s"][place]
    for name in ("compute_s", "upload_s", "latency_s"):
        values = list(columns[name])
        values[place] = values[place] and values[place] * factor
        columns[name] = values
    return kept | {"clients": columns}
