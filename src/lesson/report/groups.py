"""Groups of runs that differ only in their seed, with their names and the colors and styles of their lines."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lesson.experiments.naming import STRATEGY, in_words, series_name, short_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.palette import Look, line_looks
from lesson.runs.summary import WALL
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES

MAX_LABELS = 4
"""Maximum number of labels in the name of a group; a group with more labels is named after its runs."""
_NAMED = {"strategy": "{}", "entry": "{}", STRATEGY: "{}", "data.beta": "β = {}", "strategy.deadline_s": "τ = {} s"}


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        name: Its name, such as "lesson, β = 0.1".
        labels: The values of the settings in which groups differ, by setting.
        runs: The runs ordered by seed; seeds that all groups share come first.
        look: Color and style of its line.
    """

    name: str
    labels: dict[str, Any]
    runs: Sequence[Run]
    look: Look

    @property
    def settings(self) -> Settings:
        """The settings of the first run; the other runs differ only in their seed."""
        return self.runs[0].settings


def groups_of(study: Study) -> list[Group]:
    """Return the groups of a study; the strategy or, if all groups share it, the first label determines the color.

    Labels that all groups share are omitted from names, unless there are no others.
    """
    groups = study.groups()
    varying = [place for place in range(len(study.by)) if len({labels[place] for labels in groups}) > 1] or [0]
    if any(study.by[place] == "entry" for place in varying):  # entries of different groups have different names
        varying = [place for place in varying if study.by[place] != "group"]
    labels = [{study.by[place]: values[place] for place in varying} for values in groups]
    seeds = [{run.seed for run in runs} for runs in groups.values()]
    common = set[int]().union(*seeds).intersection(*seeds)
    found = []
    for shown, runs, look in zip(labels, groups.values(), looks_of(labels), strict=True):
        name = name_of(shown) if len(shown) <= MAX_LABELS else series_name(runs[0].settings)
        found.append(Group(name, shown, sorted(runs, key=lambda run: (run.seed not in common, run.seed)), look))
    return found


def looks_of(labels: Sequence[dict[str, Any]]) -> list[Look]:
    """Return the looks of lines with these labels: the strategy, or else the first label, decides the color."""
    keys = sorted(labels[0] if labels else [], key=lambda key: key not in ("strategy", STRATEGY))
    return line_looks([[values[key] for key in keys] for values in labels])


def label_in_words(value: Any) -> str:
    """Return the value of a label as short text; a dash if the strategy does not have the option."""
    return "–" if value is None else in_words(value)


def title_of(*runs: Settings) -> str:
    """Return a title with the task, β, deadline and length that all runs share."""
    return ", ".join(parts[0] for parts in zip(*map(_title_parts, runs), strict=True) if len(set(parts)) == 1)


def _title_parts(settings: Settings) -> list[str]:
    limits = settings.run
    length = f"{limits.time_budget_s:,g} s" if math.isfinite(limits.time_budget_s) else f"{limits.rounds} rounds"
    deadline = f"τ = {settings.strategy.deadline_s:g} s"
    split = f"β = {settings.data.beta:g}" if settings.data.uses_beta else f"{settings.data.split} split"
    return [settings.data.dataset, split, deadline, length]


def name_of(labels: dict[str, Any]) -> str:
    """Return labels as text, such as "lesson, β = 0.1"."""
    named = {key: _NAMED.get(key, f"{short_name(key)} = {{}}") for key in labels}
    return ", ".join(named[key].format(in_words(value)) for key, value in labels.items() if value is not None)


def kind_of_time(runs: Iterable[Run]) -> str:
    """Return "simulated time", "elapsed time" for runs on the wall clock, or "time" if there are runs of both kinds."""
    kinds = {"elapsed time" if is_on_wall_clock(run) else "simulated time" for run in runs}
    return kinds.pop() if len(kinds) == 1 else "time"


def rounds_are_arrivals(settings: Settings) -> bool:
    """Return whether each arrival ends a round, so that the number of rounds says nothing about the model."""
    kind = STRATEGIES.get(settings.strategy.name)  # the module of a custom strategy may not be available here
    return getattr(kind, "rounds_are_arrivals", False)


def is_on_wall_clock(run: Run) -> bool:
    """Return whether the times of a run are measured on real clients, rather than simulated."""
    return bool(run.summary.get("clock") == WALL)
