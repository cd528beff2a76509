"""Groups of runs that differ only in their seed, with their names and the looks of their lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lesson.experiments.grid import STRATEGY, in_words, short_names
from lesson.experiments.study import Run, Study
from lesson.report.palette import STYLES, Look, line_looks, strategy_looks
from lesson.settings.settings import Settings

_SAID = {"strategy": "{}", STRATEGY: "{}", "data.beta": "β = {}", "strategy.deadline_s": "τ = {} s"}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    runs: Sequence[Run]
    look: Look


def groups_of(study: Study) -> list[Group]:
    """Return the groups of a study, each with its own name and look."""
    groups = study.groups()
    names = [_name(study.by, labels) for labels in groups]
    looks = _looks([runs[0].summary["strategy"] for runs in groups.values()], names)
    return [Group(*parts) for parts in zip(names, groups.values(), looks, strict=True)]


def labels_in_words(labels: Sequence[Any]) -> list[str]:
    """Return the values of varied settings as short text; a dash if a strategy does not have the option."""
    return ["–" if is_unknown(value) else in_words(value) for value in labels]


def is_unknown(value: object) -> bool:
    """Return whether a value is missing because the strategy does not have the option."""
    return value is None or value != value  # pandas turns None among numbers into NaN


def title_of(settings: Settings, varied: Sequence[str] = ()) -> str:
    """Return a title with data set, β, deadline and length of runs, without the settings in `varied`."""
    limits = settings.run
    length = f"{limits.time_budget_s:g} s" if math.isfinite(limits.time_budget_s) else f"{limits.rounds} rounds"
    parts = {
        "data.dataset": settings.data.dataset,
        "data.beta": f"β = {settings.data.beta:g}",
        "strategy.deadline_s": f"τ = {settings.strategy.deadline_s:g} s",
        "run.time_budget_s": length,
    }
    return ", ".join(part for key, part in parts.items() if key not in varied)


def _name(by: Sequence[str], labels: Sequence[Any]) -> str:
    """Return the name of a group from its varied settings, such as "lesson, β = 0.1"."""
    said = {key: f"{short} = {{}}" for key, short in short_names(by).items()} | _SAID
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
