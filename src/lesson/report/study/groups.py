"""The runs of a study that differ in their seed only: what they are called and how their lines look."""

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
    """Runs that differ in their seed only."""

    name: str
    runs: Sequence[Run]
    look: Look


def groups_of(study: Study) -> list[Group]:
    """The groups of a study, each with a name and a look of its own."""
    groups = study.groups()
    names = [_name(study.by, labels) for labels in groups]
    looks = _looks([runs[0].summary["strategy"] for runs in groups.values()], names)
    return [Group(*parts) for parts in zip(names, groups.values(), looks, strict=True)]


def labels_in_words(labels: Sequence[Any]) -> list[str]:
    """The values of what varies as short as they can be said; a dash where a strategy has no such option."""
    return ["–" if is_unknown(value) else in_words(value) for value in labels]


def is_unknown(value: object) -> bool:
    """Whether a strategy has no such option."""
    return value is None or value != value  # pandas makes NaN of None among numbers


def title_of(settings: Settings, varied: Sequence[str] = ()) -> str:
    """The data set, split, deadline and length of runs, but for what varies among them."""
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
    """What varies in words: lesson, β = 0.1."""
    said = {key: f"{short} = {{}}" for key, short in short_names(by).items()} | _SAID
    known = [(key, value) for key, value in zip(by, labels, strict=True) if not is_unknown(value)]
    return ", ".join(said[key].format(in_words(value)) for key, value in known)


def _looks(strategies: Sequence[str], names: Sequence[str]) -> list[Look]:
    """The look of its strategy for each group; where one has several, its color in several styles if these suffice."""
    different = list(dict.fromkeys(strategies))
    own = dict(zip(different, strategy_looks(different), strict=True))
    if len(different) == len(names):
        return list(own.values())
    seen = [strategies[:place].count(name) for place, name in enumerate(strategies)]
    looks = [(own[name][0], STYLES[turn % len(STYLES)]) for name, turn in zip(strategies, seen, strict=True)]
    return looks if len(different) > 1 and len(set(looks)) == len(looks) else line_looks(names)
