"""Names of runs, which are also the names of their folders: strategy, what else distinguishes the run, and its seed."""

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from lesson.settings.sections import COMMON
from lesson.settings.settings import NAMES, Settings

STRATEGY, DATASET = "strategy.name", "data.dataset"
MAX_NAME = 150
_ORDER = ("fleet", "radio", "upload", "strategy", "training", "data", "task", "server", "faults", "guards")
"""Sections in the order in which names list their settings; [run] does not distinguish runs."""


def run_name(settings: Settings, keys: Iterable[str] | None = None, usual: Settings | None = None) -> str:
    """Return the name of a run, such as lesson-mnist-beta=0.1-seed0.

    `keys` are the settings, as section.key, that the name lists: by default the task and all that differ from `usual`
    or, without it, from the preset. A strategy that does not have an option is named without it. Characters that some
    file systems do not accept are replaced, and a long name is shortened.
    """
    name = re.sub(r"[^\w.=+-]", ".", f"{series_name(settings, keys, usual)}-seed{settings.run.seed}")
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def short_name(key: str) -> str:
    """Return a setting's name, after its section if another section has the same name; those of [training] stay short.

    The setting strategy.name is called "strategy".
    """
    section, _, name = key.partition(".")
    if key == STRATEGY or not name:
        return section
    of_others = [one for one in NAMES.get(name, ()) if one != section]
    is_option = section == "strategy" and name not in COMMON
    return key if of_others and (is_option or section != "training") else name


def in_words(value: Any) -> str:
    """Return a value as short text."""
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        return "none"
    if isinstance(value, list | tuple):
        return "_".join(map(in_words, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def series_name(settings: Settings, keys: Iterable[str] | None = None, usual: Settings | None = None) -> str:
    """Return the name that all seeds of a run share: `run_name` without the seed."""
    tables = settings.to_sections()
    parts = [settings.strategy.name]
    if keys is None:
        parts += [settings.data.dataset, *([settings.preset] if settings.preset != "released" else [])]
        keys = _changed(settings, usual.to_sections() if usual else _defaults(settings.preset))
    for key in keys:
        section, _, name = key.partition(".")
        if key != STRATEGY and name in tables[section]:
            said = in_words(tables[section][name])
            parts.append(said if key == DATASET else f"{short_name(key)}={said}")
    return "-".join(parts)


def _changed(settings: Settings, usual: dict[str, Any]) -> list[str]:
    """Return the given settings that differ from `usual`; strategy options follow [data], the step size is last."""
    ours = settings.to_sections()
    options = [f"strategy.{name}" for name in settings.strategy.options]
    keys: list[str] = []
    for section in _ORDER:
        changed = [f"{section}.{name}" for name, one in ours[section].items() if usual[section].get(name) != one]
        keys += [key for key in changed if key not in (STRATEGY, DATASET, *options, *settings.derived)]
        keys += options if section == "data" else []
    return sorted(keys, key="training.learning_rate".__eq__)


@cache
def _defaults(preset: str) -> dict[str, Any]:
    return Settings(preset=preset).to_sections()
