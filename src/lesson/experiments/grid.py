"""The runs of sweeps and comparisons: every combination of the listed settings with every seed, validated."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from lesson.core.errors import ArgumentError, InputError, unknown
from lesson.core.toml import read_toml
from lesson.core.validation import plain
from lesson.experiments.folder import StudyPlan
from lesson.experiments.naming import STRATEGY, in_words, run_name
from lesson.fleet.allocation import find_allocation
from lesson.learn.tasks import BUILT_IN
from lesson.radio.channel import load_custom
from lesson.settings.loading import apply_changes, changed_keys, check_set_once, read_sections
from lesson.settings.sections import COMMON, StrategySettings
from lesson.settings.settings import DERIVED, SECTIONS, Settings, section_of, without_none
from lesson.strategies import STRATEGIES, find_strategy, make_strategy, options_of, setting_names, split_changes

COMPARISON = "comparison"
MAX_TRIALS, MAX_SEEDS = 100_000, 1000

Sections = Mapping[str, Any]
"""Tables of plain values by section, optionally with `preset`."""


def load_grid(source: Path | str, changes: Sequence[str] = ()) -> StudyPlan:
    """Return the runs of a settings file with a table [sweep]; `changes` are `section.key=value` for all runs.

    The study.toml of a sweep or a comparison is such a file.
    """
    path = Path(source)
    if path.suffix != ".toml":
        raise InputError(f"a sweep must be a .toml file, got '{source}'")
    wanted = "a sweep is a settings file with a table [sweep]"
    if {"rules", "entries"} & read_toml(path, wanted).keys():
        raise InputError(f"{path} defines a tuned comparison; use 'lesson sweep --tune' or lesson.tune")
    sections = read_sections(path, wanted, (*SECTIONS, "sweep", "study"), also=STRATEGIES)
    sections.pop("study", None)
    try:
        axes = flat_axes(sections.pop("sweep", {}))
        check_set_once(changes)
        for key in axes.keys() & set(changed_keys(changes)):
            raise InputError(f"{key} must be set only once, got it in [sweep] and as a change for all runs")
        changes, own = split_changes(changes)
        apply_changes(sections, changes)
        for name, options in own.items():
            sections[name] = sections.get(name, {}) | options
        return make_grid(sections, axes, axes.pop("seeds", 1))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def make_grid(
    sections: Sections, axes: Mapping[str, Sequence[Any]], num_seeds: int = 1, *, own_task: bool = False
) -> StudyPlan:
    """Return the runs of the grid over `axes`, lists of values by section.key; `sections` are the other settings.

    Seeds start with run.seed. An option applies only to the strategies that have it; the others get a single run, not
    one per value. A section named after a strategy holds options of that strategy only. With `own_task`, runs get a
    task object, whose name need not be that of a built-in task.
    """
    axes, num_seeds = {key: plain(values) for key, values in axes.items()}, plain(num_seeds)
    tables = {section: _plain_table(values) for section, values in sections.items()}
    for key, values in axes.items():
        _check_axis(key, values)
    if not axes:
        raise InputError('[sweep] must hold lists of values, such as "data.beta" = [0.1, 1.0]')
    check_num_seeds(num_seeds)
    num_trials = num_seeds * math.prod(map(len, axes.values()))
    if num_trials > MAX_TRIALS:
        raise InputError(f"a sweep must have at most {MAX_TRIALS} runs, got {num_trials}; use fewer values")
    trials: dict[str, Settings] = {}
    for settings in _points(tables, axes, own_task):
        for seed in range(settings.run.seed, settings.run.seed + num_seeds):
            trial = settings.model_copy(update={"run": settings.run.model_copy(update={"seed": seed})})
            trials[run_name(trial, axes)] = trial
    table = {key: list(values) for key, values in axes.items()} | {"seeds": num_seeds}
    by, kind = (("strategy",), COMPARISON) if list(axes) == [STRATEGY] else (tuple(axes), "sweep")
    return StudyPlan(kind, trials, by, toml=tomli_w.dumps(tables | {"sweep": table}))


def check_num_seeds(num_seeds: object) -> None:
    """Raise InputError unless this is a number of seeds."""
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, int) or not 1 <= num_seeds <= MAX_SEEDS:
        raise ArgumentError("seeds", f"must be a whole number from 1 to {MAX_SEEDS}, got {num_seeds!r}")


def compare_strategies(
    settings: Settings,
    strategies: Sequence[str],
    num_seeds: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    own_task: bool = False,
) -> StudyPlan:
    """Return the runs of a comparison: these strategies under the same settings, with `num_seeds` seeds.

    The settings' options apply to the strategies that have them; `options` holds options of single strategies, by name.
    """
    if isinstance(strategies, str) or not strategies or len(set(strategies)) < len(strategies):
        raise ArgumentError("strategies", f"must be a list of distinct names, got {strategies!r}")
    for name, one in (options or {}).items():
        if not isinstance(one, Mapping):
            raise InputError(f"options of {name} must be a mapping, such as {{'fraction': 0.5}}, got {one!r}")
    sections = {**settings.given_sections(), **(options or {})}
    return make_grid(sections, {STRATEGY: strategies}, num_seeds, own_task=own_task)


def _plain_table(values: Any) -> Any:
    return without_none(plain(dict(values))) if isinstance(values, Mapping) else plain(values)


def flat_axes(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of [sweep] by section.key; keys may be quoted, and unique names need no section."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        full = STRATEGY if key == "strategy" else key
        full = full if "." in full or key == "seeds" or isinstance(value, dict) else f"{section_of(key)}.{key}"
        inner = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {full: value}
        if twice := flat.keys() & inner.keys():
            raise InputError(f"{min(twice)} must be in [sweep] only once, got it with and without quotes")
        flat |= inner
    return flat


def _check_axis(key: str, values: Any) -> None:
    """Raise InputError unless this key may be in [sweep] and has distinct values."""
    section, _, name = key.partition(".")
    if section not in SECTIONS or not name:
        hint = f"; write strategy.{name}" if name and section in STRATEGIES else ""
        raise InputError(
            f"a key of [sweep] must be seeds or section.key, with one of {', '.join(SECTIONS)}, got '{key}'{hint}"
        )
    if key == "run.seed":
        raise InputError("run.seed must not be in [sweep]; use seeds = N for N seeds that count from run.seed")
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(f"{key} must be a list of values, got {values!r}")
    said = set[str]()
    for value in values:
        if value is None:
            raise InputError(f"{key} must be a list of values without None")
        if value == "auto" and key in DERIVED:
            raise InputError(f"{key} must not contain 'auto', which every run replaces by a value; list the values")
        if in_words(value) in said:
            raise InputError(f"{key} must have distinct values, got {value!r} twice")
        said.add(in_words(value))


def _points(sections: Sections, axes: Mapping[str, Sequence[Any]], own_task: bool) -> Iterable[Settings]:
    """Return the settings of every combination of values, with the first seed."""
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
        known = {f"strategy.{name}" for name in allowed}
        values = {key: one for key, one in values.items() if key in known or not key.startswith("strategy.")}
        options = {name: value for name, value in given.items() if name in allowed}
        settings = checked_settings({**sections, "strategy": {**options, **fixed}}, values, own_task=own_task)
        name = run_name(settings, values)
        if points.setdefault(name, (values, settings))[0] != values:
            raise InputError(f"two runs would have the same name, {name}; write their values differently")
    return [settings for _, settings in points.values()]


def checked_settings(sections: Sections, values: Mapping[str, Any], *, own_task: bool = False) -> Settings:
    """Return the settings of these tables, overridden by values by section.key, validated without loading data."""
    tables: dict[str, Any] = {section: dict(sections.get(section, {})) for section in SECTIONS}
    if "preset" in sections:
        tables["preset"] = sections["preset"]
    for key, value in values.items():
        section, _, name = key.partition(".")
        tables[section][name] = value
    settings = Settings(**tables)
    make_strategy(settings.strategy.name, settings.strategy.deadline_s, settings.strategy.options)
    if settings.data.dataset not in BUILT_IN and ":" not in settings.data.dataset and not own_task:
        raise unknown("dataset", settings.data.dataset, BUILT_IN)
    find_allocation(settings.radio.allocation)
    load_custom(settings.radio)
    if settings.upload.compression != "none":
        from lesson.learn.compression import level_of, make_compressor  # torch takes a second to import

        if (compressor := make_compressor(settings.upload)) is not None:
            level_of(compressor, settings.upload)
    return settings
