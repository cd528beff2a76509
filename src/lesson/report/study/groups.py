"""Groups of runs that differ only in their seed, with their names and the looks of their lines."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lesson.experiments.naming import STRATEGY, in_words, series_name, short_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.report.palette import STYLES, Look, line_looks, strategy_looks
from lesson.runs.summary import WALL
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedbuff import Buffered
from lesson.strategies.malenia import Malenia
from lesson.strategies.rennala import Rennala

MAX_LABELS = 4
"""Most labels in the name of a group; with more, it has the name of its series of runs."""
_SAID = {"strategy": "{}", "entry": "{}", STRATEGY: "{}", "data.beta": "β = {}", "strategy.deadline_s": "τ = {} s"}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    runs: Sequence[Run]
    look: Look


def groups_of(study: Study) -> list[Group]:
    """Return the groups of a study, each with its own name and look."""
    groups = study.groups()
    varying = [place for place in range(len(study.by)) if len({labels[place] for labels in groups}) > 1]
    shown = [place for place in varying if study.by[place] != "group"] or [0]  # entries of all groups have other names
    names = [_name([study.by[place] for place in shown], [labels[place] for place in shown]) for labels in groups]
    if len(shown) > MAX_LABELS:
        names = [series_name(runs[0].settings) for runs in groups.values()]
    looks = _looks([runs[0].summary["strategy"] for runs in groups.values()], names)
    return [Group(*parts) for parts in zip(names, groups.values(), looks, strict=True)]


def labels_in_words(labels: Sequence[Any]) -> list[str]:
    """Return the values of varied settings as short text; a dash if a strategy does not have the option."""
    return ["–" if is_unknown(value) else in_words(value) for value in labels]


def is_unknown(value: object) -> bool:
    """Return whether a value is missing because the strategy does not have the option."""
    return value is None or value != value  # pandas turns None among numbers into NaN


def title_of(*runs: Settings) -> str:
    """Return a title with task, β, deadline and length of runs, as far as these are the same for all runs."""
    return ", ".join(parts[0] for parts in zip(*map(_title_parts, runs), strict=True) if len(set(parts)) == 1)


def _title_parts(settings: Settings) -> list[str]:
    limits = settings.run
    length = f"{limits.time_budget_s:,g} s" if math.isfinite(limits.time_budget_s) else f"{limits.rounds} rounds"
    deadline = f"τ = {settings.strategy.deadline_s:g} s"
    split = f"β = {settings.data.beta:g}" if settings.data.uses_beta else f"{settings.data.split} split"
    return [settings.data.dataset, split, deadline, length]


def _name(by: Sequence[str], labels: Sequence[Any]) -> str:
    """Return the name of a group from its varied settings, such as "lesson, β = 0.1"."""
    said = {key: f"{short_name(key)} = {{}}" for key in by} | _SAID
    known = [(key, value) for key, value in zip(by, labels, strict=True) if not is_unknown(value)]
    return ", ".join(said[key].format(in_words(value)) for key, value in known)


def _looks(strategies: Sequence[str], names: Sequence[str]) -> list[Look]:
    """Return a look for each group: that of its strategy, if every strategy has only one group.

    Otherwise the groups of a strategy share its color and differ in style. If the styles do not suffice, or there is
    only one strategy, groups differ in color first.
    """
    different = list(dict.fromkeys(strategies))
    own = dict(zip(different, strategy_looks(different), strict=True))
    if len(different) == len(names):
        return list(own.values())
    seen = [strategies[:place].count(name) for place, name in enumerate(strategies)]
    looks = [(own[name][0], STYLES[turn % len(STYLES)]) for name, turn in zip(strategies, seen, strict=True)]
    return looks if len(different) > 1 and len(set(looks)) == len(looks) else line_looks(names)


def kind_of_time(runs: Iterable[Run]) -> str:
    """Return "simulated time", "elapsed time" for runs on the wall clock, or "time" if there are runs of both kinds."""
    kinds = {"elapsed time" if is_on_wall_clock(run) else "simulated time" for run in runs}
    return kinds.pop() if len(kinds) == 1 else "time"


def rounds_are_arrivals(settings: Settings) -> bool:
    """Return whether each arrival ends a round, so that the number of rounds says nothing about the model."""
    kind = STRATEGIES.get(settings.strategy.name)  # the module of a custom strategy may not be available here
    return kind is not None and issubclass(kind, Buffered | FedAsync | Malenia | Rennala)


def is_on_wall_clock(run: Run) -> bool:
    """Return whether the times of a run are measured on real clients, rather than simulated."""
    return bool(run.summary.get("clock") == WALL)
