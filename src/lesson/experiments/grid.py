"""The trials of a sweep: every combination of lists of settings with every seed, validated before any run starts."""

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError, unknown
from lesson.core.validation import plain
from lesson.learn.data.dataset import NAMES
from lesson.settings.loading import apply_changes, changed_keys, check_set_once, read_sections
from lesson.settings.migration import check_name
from lesson.settings.sections import COMMON, StrategySettings
from lesson.settings.settings import SECTIONS, Settings, section_of, without_none
from lesson.settings.toml_text import to_toml
from lesson.strategies import (
    STRATEGIES,
    find_strategy,
    make_strategy,
    options_of,
    setting_names,
    split_changes,
)

MAX_TRIALS, MAX_SEEDS = 100_000, 1000
MAX_NAME = 150
STRATEGY = "strategy.name"

Sections = Mapping[str, Any]
"""Tables of plain values by section, optionally with `preset`."""


@dataclass(frozen=True)
class Trial:
    """One run of a grid, and the name of its folder."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Grid:
    """The keys that vary, as section.key, and the trials; trials that differ only in the seed are adjacent."""

    keys: tuple[str, ...]
    trials: tuple[Trial, ...]
    toml: str


def load_grid(source: Path | str, changes: Sequence[str] = ()) -> Grid:
    """Load the grid of a settings file with a table [sweep]; `changes` are `section.key=value` for all trials."""
    path = Path(source)
    if path.suffix != ".toml":
        raise InputError(f"a sweep must be a FILE.toml, got '{source}'")
    sections = _read_tables(path)
    try:
        axes = _flat(sections.pop("sweep", {}))
        check_set_once(changes)
        for key in axes.keys() & set(changed_keys(changes)):
            raise InputError(f"{key} must be set once, got it by --set and in [sweep]")
        changes, own = split_changes(changes)
        apply_changes(sections, changes)
        for name, options in own.items():
            sections[name] = sections.get(name, {}) | options
        return make_grid(sections, axes, axes.pop("seeds", 1))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_axes(path: Path | str) -> dict[str, list[Any]]:
    """Return the lists of values of a sweep file by section.key, without validating the rest of the file."""
    return {key: values for key, values in _flat(_read_tables(Path(path)).get("sweep", {})).items() if key != "seeds"}


def _read_tables(path: Path) -> dict[str, dict[str, Any]]:
    return read_sections(path, "a sweep is a settings file with a table [sweep]", (*SECTIONS, "sweep"), also=STRATEGIES)


def make_grid(sections: Sections, axes: Mapping[str, Sequence[Any]], num_seeds: int = 1) -> Grid:
    """Return the grid over `axes`, lists of values by section.key; `sections` are the other settings.

    There are `num_seeds` seeds, from run.seed on. An option applies to the strategies that have it: the others get a
    single trial, not one per value. A section named after a strategy holds options of that strategy only.
    """
    axes, num_seeds = {key: plain(values) for key, values in axes.items()}, plain(num_seeds)
    tables = {section: _plain_table(values) for section, values in sections.items()}
    for key, values in axes.items():
        _check_axis(key, values)
    if not axes:
        raise InputError('[sweep] must hold lists of values, such as "data.beta" = [0.1, 1.0]')
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, int) or not 1 <= num_seeds <= MAX_SEEDS:
        raise InputError(f"seeds must be a whole number from 1 to {MAX_SEEDS}, got {num_seeds!r}")
    num_trials = num_seeds * math.prod(map(len, axes.values()))
    if num_trials > MAX_TRIALS:
        raise InputError(f"a sweep must have at most {MAX_TRIALS} trials, got {num_trials}; take fewer values")
    trials: dict[str, Trial] = {}
    for name, settings in _points(tables, axes).items():
        for seed in range(settings.run.seed, settings.run.seed + num_seeds):
            run = settings.run.model_copy(update={"seed": seed})
            trial = Trial(_cut(f"{name}-seed{seed}"), settings.model_copy(update={"run": run}))
            trials[trial.name] = trial
    table = {key: list(values) for key, values in axes.items()} | {"seeds": num_seeds}
    return Grid(tuple(axes), tuple(trials.values()), to_toml(tables | {"sweep": table}))


def _plain_table(values: Any) -> Any:
    return without_none(plain(dict(values))) if isinstance(values, Mapping) else plain(values)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name for each key: without its section, unless that would be ambiguous."""
    last = [key.partition(".")[2] for key in keys]
    return {
        key: "strategy" if key == STRATEGY else key if last.count(name) > 1 else name
        for key, name in zip(keys, last, strict=True)
    }


def in_words(value: Any) -> str:
    """Return a value as short text."""
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        return "none"
    if isinstance(value, list | tuple):
        return "_".join(map(in_words, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of [sweep] by section.key; keys may be quoted, and unique names need no section."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        full = key if "." in key or key == "seeds" or isinstance(value, dict) else f"{section_of(key)}.{key}"
        inner = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {full: value}
        if twice := flat.keys() & inner.keys():
            raise InputError(f"{min(twice)} must be in [sweep] once, got it in quotes and without")
        flat |= inner
    return flat


def _check_axis(key: str, values: Any) -> None:
    """Raise InputError unless this key may be in [sweep] and has distinct values."""
    section, _, name = key.partition(".")
    check_name(key)
    if section not in SECTIONS or not name:
        raise InputError(
            f"a key of [sweep] must be seeds or one of {', '.join(SECTIONS)}, a dot and a key, got '{key}'"
        )
    if key == "run.seed":
        raise InputError("run.seed must not be in [sweep]; seeds = N takes N of them from run.seed on")
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(f"{key} must be a list of values, got {values!r}")
    said = set[str]()
    for value in values:
        if value is None:
            raise InputError(f"{key} must be a list of values, got None among them")
        if in_words(value) in said:
            raise InputError(f"{key} must be different values, got {value!r} twice")
        said.add(in_words(value))


def _points(sections: Sections, axes: Mapping[str, Sequence[Any]]) -> dict[str, Settings]:
    """Return the settings of every combination of values by name, with the first seed."""
    given = sections.get("strategy", {})
    strategies = [StrategySettings(name=name).name for name in axes.get(STRATEGY, [given.get("name", "lesson")])]
    own = {name: values for name, values in sections.items() if name not in (*SECTIONS, "preset")}
    varying = dict.fromkeys(key.partition(".")[2] for key in axes if key.startswith("strategy."))
    options_of(strategies, {name: one for name, one in {**given, **varying}.items() if name not in COMMON}, own)
    points: dict[str, tuple[dict[str, Any], Settings]] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        strategy = values.get(STRATEGY, strategies[0])
        fixed = own.get(strategy, {})
        allowed = [*COMMON, *(name for name in setting_names(find_strategy(strategy)) if name not in fixed)]
        values = {key: one for key, one in values.items() if _belongs(key, allowed)}
        name = _name(values)
        if name in points and points[name][0] != values:
            raise InputError(f"two trials would be called {name}; write their values differently")
        if name not in points:
            points[name] = values, _settings(sections, values, allowed, fixed)
    return {name: settings for name, (_, settings) in points.items()}


def _belongs(key: str, options: Sequence[str]) -> bool:
    section, _, name = key.partition(".")
    return section != "strategy" or name in options


def _settings(
    sections: Sections, values: Mapping[str, Any], options: Sequence[str], own: Mapping[str, Any]
) -> Settings:
    """Return the settings of one combination, with the strategy's own options."""
    strategy = {name: value for name, value in sections.get("strategy", {}).items() if name in options}
    return checked_settings({**sections, "strategy": {**strategy, **own}}, values)


def checked_settings(sections: Sections, values: Mapping[str, Any]) -> Settings:
    """Return the settings of these tables, overridden by values by section.key, validated without loading data."""
    tables: dict[str, Any] = {section: dict(sections.get(section, {})) for section in SECTIONS}
    if "preset" in sections:
        tables["preset"] = sections["preset"]
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables[section][name] = value
    settings = Settings(**tables)
    make_strategy(settings.strategy.name, settings.strategy.deadline_s, settings.strategy.options)
    if settings.data.dataset not in NAMES:
        raise unknown("dataset", settings.data.dataset, NAMES)
    return settings


def _name(values: Mapping[str, Any]) -> str:
    """Return a name for a combination that is valid for folders, such as lesson-deadline_s=10-beta=0.1."""
    shorts = short_names(list(values))
    parts = [in_words(values[STRATEGY])] if STRATEGY in values else []
    parts += [f"{shorts[key]}={in_words(value)}" for key, value in values.items() if key != STRATEGY]
    return re.sub(r"[^\w.=+-]", ".", "-".join(parts))


def _cut(name: str) -> str:
    """Shorten a name to a length that file systems accept; it stays unique."""
    return name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
