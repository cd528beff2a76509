"""The file of a tuned comparison: rules, groups, and entries with the settings that each is tuned over."""

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import tomli_w
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from lesson.core.errors import InputError, unknown
from lesson.core.toml import read_toml
from lesson.core.validation import Checked, Positive, Text
from lesson.experiments.grid import checked_settings
from lesson.experiments.naming import in_words, run_name, short_name
from lesson.experiments.run import Run
from lesson.learn.metric import ACCURACY, Metric
from lesson.settings.settings import SECTIONS, Settings

STRATEGIES = Path(__file__).parent / "strategies.toml"
"""The default comparison."""
MAX_POINTS = 12
"""Maximum number of points an entry may be tuned over."""
FIXED = tuple(name for name in SECTIONS if name != "run")

T = TypeVar("T")
Values = dict[str, Any]
Point = Values
"""Settings by section.key."""


def _differ(values: tuple[T, ...]) -> tuple[T, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must be distinct, got {value!r} twice")
    return values


Seed = Annotated[int, Field(ge=0, strict=True)]
Target = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Several = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_differ)]


class Table(Checked):
    """A table of the file. A missing required field is validated as None, so that the error names the field."""

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**{name: None for name, one in type(self).model_fields.items() if one.is_required()} | values)


class Rules(Table):
    """Data, seeds, length of runs, and what is measured."""

    wanted: ClassVar[dict[str, str]] = {
        "betas": "a list of numbers > 0",
        "tuning_seeds": "a list of whole numbers >= 0",
        "seeds": "a list of whole numbers >= 0",
        "looks_s": "a list of times > 0",
        "targets": "a list of accuracies between 0 and 1",
        "higher_is_better": "true or false",
        "client_scores_every_s": "a number > 0",
    }

    dataset: Text
    betas: Several[Positive]
    tuning_seeds: Several[Seed]
    """Seeds of the tuning runs. A file may have `tuning_seed` instead, a single number."""
    seeds: Several[Seed]
    tuning_s: Positive
    """Simulated seconds of a tuning run."""
    final_s: Positive
    """Simulated seconds of a final run."""
    eval_every_s: Positive
    looks_s: Several[Positive]
    """Times at which the metric is reported."""
    targets: Several[Target]
    """Accuracies, or values of another metric, for which the time is reported, from the easiest to the hardest; for the
    last one also uploads, energy and the ratio of times."""
    metric: Text = ACCURACY.name
    """The metric of the task that `dataset` names."""
    higher_is_better: Annotated[bool, Field(strict=True)] = True
    client_scores_every_s: Positive | None = None
    """Simulated seconds between evaluations on the clients' own data, see `Run.clients`; None for none."""

    def __init__(self, /, **values: Any) -> None:
        if "tuning_seed" in values and "tuning_seeds" not in values:
            values["tuning_seeds"] = [values.pop("tuning_seed")]
        super().__init__(**values)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if both := set(self.tuning_seeds) & set(self.seeds):
            raise ValueError(f"tuning_seeds must not include any of seeds, got {min(both)}")
        if self.eval_every_s > min(self.tuning_s, self.final_s):
            raise ValueError(f"eval_every_s must be <= tuning_s and final_s, got {self.eval_every_s:g}")
        if list(self.looks_s) != sorted(self.looks_s) or self.looks_s[-1] != self.final_s:
            raise ValueError(f"looks_s must increase up to final_s, {self.final_s:g}, got {list(self.looks_s)}")
        if self.targets != self.measured.targets:
            order = "increase" if self.higher_is_better else "decrease"
            raise ValueError(f"targets must {order}, got {list(self.targets)}")
        shares = self.targets if self.measured.is_share else ()
        if outside := [one for one in shares if not 0 < one < 1]:
            raise ValueError(f"targets must be {self.wanted['targets']}, got {outside[0]}")
        if any(look_s % 1 for look_s in self.looks_s) or any(round(100 * one, 9) % 1 for one in shares):
            raise ValueError("looks_s must be whole seconds and targets whole percentages")
        return self

    @cached_property
    def measured(self) -> Metric:
        """The metric with its targets."""
        return Metric(self.metric, self.higher_is_better, self.targets)

    def checked(self, run: Run) -> Run:
        """Return the run; raise InputError if it has another metric than these rules."""
        found = run.metric
        if (found.name, found.higher_is_better) != (self.metric, self.higher_is_better):
            better = "true" if found.higher_is_better else "false"
            problem = f"the metric of the task is {found.name} (higher_is_better = {better}), not {self.metric}"
            raise InputError(f"{run.name}: {problem}; set metric and higher_is_better in [rules]")
        return run

    def limits(self, seed: int) -> dict[str, Any]:
        """Return task, seed and length of a run by section.key; tuning runs and final runs may differ in length."""
        time_s = self.tuning_s if seed in self.tuning_seeds else self.final_s
        scores = {"run.client_scores_every_s": self.client_scores_every_s} if self.client_scores_every_s else {}
        return scores | {
            "data.dataset": self.dataset,
            "run.seed": seed,
            "run.time_budget_s": time_s,
            "run.eval_every_s": self.eval_every_s,
        }


class Group(Table):
    """Entries that are shown together and compared with one of them."""

    wanted: ClassVar[dict[str, str]] = {
        "name": "letters, digits, - and _",
        "references": "a list of entries",
        "levels": 'a table of tables, such as { "4 dB" = { "radio.shadowing_db" = 4.0 } }',
    }

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    title: Annotated[Text, Field(min_length=1)]
    references: Several[Text]
    """Candidates for the reference: the others are compared with the one that reaches the last target first."""
    levels: dict[str, Values] = Field(default_factory=dict)
    """Settings by section.key, by the name of the level; every entry of the group takes part once per level."""

    @field_validator("levels")
    @classmethod
    def _known_sections(cls, levels: dict[str, Values]) -> dict[str, Values]:
        _check_keys(levels.values())
        return levels


class Entry(Table):
    """A strategy with its fixed settings and the points it is tuned over; with a single point, it is not tuned."""

    wanted: ClassVar[dict[str, str]] = {
        "name": "at most 60 characters, the first a letter or digit, without $|*`[] and backslashes",
        **dict.fromkeys(FIXED, "a table"),
        "grid": 'a table of lists, such as { "strategy.deadline_s" = [10.0, 20.0] }',
        "points": 'a list of tables, such as [{ "strategy.deadline_s" = 10.0 }]',
    }

    name: Annotated[str, Field(strict=True, pattern=r"^[^\W_][^$|*`\\\[\]\n]{0,59}$")]
    group: Text
    preset: Text = "released"
    fleet: Values = Field(default_factory=dict)
    radio: Values = Field(default_factory=dict)
    training: Values = Field(default_factory=dict)
    data: Values = Field(default_factory=dict)
    task: Values = Field(default_factory=dict)
    upload: Values = Field(default_factory=dict)
    strategy: Values = Field(default_factory=dict)
    server: Values = Field(default_factory=dict)
    faults: Values = Field(default_factory=dict)
    guards: Values = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    points: tuple[Point, ...] = Field(({},), validate_default=True)
    """Every combination of the lists in `grid` with the given points."""

    @field_validator("points")
    @classmethod
    def _combined(cls, given: tuple[Point, ...], info: ValidationInfo) -> tuple[Point, ...]:
        grid: dict[str, list[Any]] = info.data.get("grid", {})
        if not 1 <= (count := len(given) * math.prod(map(len, grid.values()))) <= MAX_POINTS:
            raise ValueError(f"and grid must give from 1 to {MAX_POINTS} combinations, got {count}")
        combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        points = tuple(one | other for one in combinations for other in given)
        _check_keys(points, "and grid ")
        if any("data.beta" in point for point in points) or "beta" in info.data.get("data", {}):
            raise ValueError("and settings must not include beta, which the rules set")
        return points

    def settings(self, point: Point, beta: float, seed: int, rules: Rules) -> Settings:
        """Return the settings of one run."""
        fixed = {section: getattr(self, section) for section in FIXED}
        values = point | rules.limits(seed) | {"data.beta": beta}
        try:
            return checked_settings({"preset": self.preset, **fixed}, values)
        except InputError as error:
            raise InputError(f"entry '{self.name}': {error}") from None


@dataclass(frozen=True)
class Tuning:
    """What a file asks for."""

    rules: Rules
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    toml: str
    """Text of the file, without the table [study] of a study.toml."""

    def __post_init__(self) -> None:
        names, groups = [entry.name for entry in self.entries], [group.name for group in self.groups]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"entries must have distinct names, got '{min(twice)}' twice")
        if both := set(names) & set(groups):
            raise InputError(f"an entry must not have the name of a group, got '{min(both)}'")
        for entry in self.entries:
            if entry.group not in groups:
                raise unknown("group", entry.group, groups)
            for beta, seed in itertools.product(self.rules.betas, (self.rules.tuning_seeds[0], self.rules.seeds[0])):
                points = [run_name(entry.settings(point, beta, seed, self.rules)) for point in entry.points]
                if twice := {name for name in points if points.count(name) > 1}:
                    raise InputError(f"entry '{entry.name}': points must be distinct, got {min(twice)} twice")
        for group in self.groups:
            for name in group.references:
                if name not in names:
                    raise unknown("entry", name, names)

    @classmethod
    def load(cls, path: Path | str = STRATEGIES) -> "Tuning":
        """Load and validate a file, which may be the study.toml of a tuned comparison."""
        path = Path(path)
        tables, text = _read(path)
        try:
            rules, groups = _made(Rules, tables.rules, "rules"), _groups(tables)
            levels = {group.name: group.levels for group in groups}
            at_levels = [each for one in tables.entries for each in _at_levels(one, levels)]
            entries = tuple(_made(Entry, one, f"entry '{one.get('name', '')}'") for one in at_levels)
            return cls(rules, groups, entries, text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def read_rules(path: Path) -> tuple[Rules, tuple[Group, ...]]:
    """Return the rules and the groups of a file, whose strategies need not be importable."""
    tables, _ = _read(path)
    return _made(Rules, tables.rules, "rules"), _groups(tables)


class _File(Table):
    """Schema of a file."""

    wanted: ClassVar[dict[str, str]] = {
        "rules": "a table, [rules]",
        "groups": "tables, [groups.NAME]",
        "entries": "tables, [[entries]]",
    }

    rules: Values
    groups: Annotated[dict[str, Values], Field(min_length=1)]
    entries: Annotated[list[Values], Field(min_length=1)]


def _read(path: Path) -> tuple[_File, str]:
    """Return the tables of a file and its text, without the table [study] of a study.toml."""
    values = read_toml(path, "a tuned comparison is a file with [rules], [groups] and [[entries]]")
    text = path.read_text(encoding="utf-8-sig")
    if values.pop("study", None) is not None:
        before = re.split(r"(?m)^\[study\]", text)[0]
        # Somebody may have added to the end of the file.
        text = before if tomllib.loads(before) == values else tomli_w.dumps(values)
    if "sweep" in values:
        raise InputError(f"{path} has a table [sweep] and is not a tuned comparison; do not set tune")
    try:
        return _File(**values), text.rstrip() + "\n"
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _groups(tables: _File) -> tuple[Group, ...]:
    return tuple(_made(Group, {"name": name} | one, f"group '{name}'") for name, one in tables.groups.items())


def point_words(point: Point) -> str:
    """Return a point as readable text."""
    return ", ".join(f"{short_name(key)} = {in_words(value)}" for key, value in point.items()) or "–"


def _at_levels(entry: Values, levels: Mapping[str, Mapping[str, Values]]) -> Iterator[Values]:
    """Yield the entry for each of its groups and, where a group has levels, for each level."""
    groups = entry.get("group")
    for group in groups if isinstance(groups, list) and groups else [groups]:
        alone = {**entry, "group": group}
        if not (known := levels.get(group) if isinstance(group, str) else None):
            yield alone
            continue
        for level, settings in known.items():
            changed = {**alone, "name": f"{entry.get('name', '')}, {level}"}
            for key, value in settings.items():
                section, _, name = key.partition(".")
                if isinstance(before := changed.get(section, {}), dict):  # otherwise Entry reports it
                    changed[section] = {**before, name: value}
            yield changed


def _made(kind: type[T], values: Values, what: str) -> T:
    """Return a validated table of the file; errors name it."""
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _check_keys(points: Iterable[Point], also: str = "") -> None:
    """Raise ValueError if a key is not a setting that an entry may fix."""
    for key in (key for point in points for key in point):
        section, _, name = key.partition(".")
        if section not in FIXED or not name:
            allowed = f'"section.key" with one of {", ".join(FIXED)}'
            raise ValueError(f"{also}must have keys {allowed}, got '{key}'")
