"""Contests, read from a TOML file: the rules, the groups that are shown together, and the entries."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from lesson.core.errors import InputError, unknown
from lesson.core.toml import read_toml
from lesson.core.validation import Text
from lesson.experiments.contest.rules import MAX_POINTS, Rules, Several, Table
from lesson.experiments.grid import checked_settings, in_words
from lesson.experiments.naming import BARE, run_name
from lesson.settings.migration import new_name
from lesson.settings.settings import SECTIONS, Settings

FILE = Path(__file__).parent / "entries.toml"
FIXED = tuple(name for name in SECTIONS if name != "run")

T = TypeVar("T", bound=Table)
Values = dict[str, Any]
Point = Values
"""Settings by section.key."""


class Group(Table):
    """Entries that are shown together and compared with one of them."""

    wanted: ClassVar[dict[str, str]] = {
        "name": "letters, digits, - and _, as files are called by it",
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
        "name": "at most 60 letters, digits and signs, a letter or digit first, none of $|*`[] or a backslash",
        **dict.fromkeys(FIXED, "a table"),
        "grid": 'a table of lists, such as { "strategy.deadline_s" = [10.0, 20.0] }',
        "points": 'a list of tables, such as [{ "strategy.deadline_s" = 10.0 }]',
    }

    name: Annotated[str, Field(strict=True, pattern=r"^[^\W_][^$|*`\\\[\]\n]{0,59}$")]
    group: Text
    line: Text = ""
    level: Text = ""
    """If the group has levels: `line` is the name of the entry in the file, `level` that of this level."""
    preset: Text = "released"
    fleet: Values = Field(default_factory=dict)
    radio: Values = Field(default_factory=dict)
    training: Values = Field(default_factory=dict)
    data: Values = Field(default_factory=dict)
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
            raise ValueError(f"and grid must give 1 to {MAX_POINTS} settings, got {count}")
        combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        points = tuple(one | other for one in combinations for other in given)
        _check_keys(points, "and grid ")
        if any("data.beta" in point for point in points) or "beta" in info.data.get("data", {}):
            raise ValueError("and settings must leave beta to the rules")
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
class Contest:
    """The rules, groups and entries of a contest."""

    rules: Rules
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    toml: str
    """Text of the file."""

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"names of entries must differ, got '{min(twice)}' twice")
        groups = [group.name for group in self.groups]
        if both := set(names) & set(groups):
            raise InputError(f"an entry must not be called like a group, got '{min(both)}'")
        for entry in self.entries:
            if entry.group not in groups:
                raise unknown("group", entry.group, groups)
            self._check_points(entry)
        for group in self.groups:
            for name in group.references:
                if name not in names:
                    raise unknown("entry", name, names)

    def _check_points(self, entry: Entry) -> None:
        rules = self.rules
        for beta, seed in itertools.product(rules.betas, (rules.tuning_seed, rules.seeds[0])):
            names = [run_name(entry.settings(point, beta, seed, rules)) for point in entry.points]
            if twice := {name for name in names if names.count(name) > 1}:
                raise InputError(f"entry '{entry.name}': points must differ, got {min(twice)} twice")

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    def select(self, names: Iterable[str]) -> tuple[Entry, ...]:
        """Return the entries with these names or in these groups, in the order of the file; all if none are given."""
        chosen = set(names)
        known = [*self.by_name, *(group.name for group in self.groups)]
        for name in chosen:
            if name not in known:
                raise unknown("entry", name, known)
        return tuple(entry for entry in self.entries if not chosen or chosen & {entry.name, entry.group})


class _File(Table):
    """Schema of the file."""

    wanted: ClassVar[dict[str, str]] = {
        "rules": "a table, [rules]",
        "groups": "tables, [groups.NAME]",
        "entries": "tables, [[entries]]",
    }

    rules: Values
    groups: Annotated[dict[str, Values], Field(min_length=1)]
    entries: Annotated[list[Values], Field(min_length=1)]


def load_contest(path: Path | str = FILE) -> Contest:
    """Load and validate the contest of a file."""
    path = Path(path)
    text, values = read_toml(path, "a contest must be a file with [rules], [groups] and [[entries]]")
    try:
        file = _File(**values)
        rules = _made(Rules, file.rules, "rules")
        groups = [_made(Group, {"name": name} | one, f"group '{name}'") for name, one in file.groups.items()]
        levels = {group.name: group.levels for group in groups}
        at_levels = [each for one in file.entries for each in _at_levels(one, levels)]
        entries = [_made(Entry, one, f"entry '{one.get('name', '')}'") for one in at_levels]
        return Contest(rules, tuple(groups), tuple(entries), text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _at_levels(entry: Values, levels: Mapping[str, Mapping[str, Values]]) -> Iterator[Values]:
    """Yield the entry for each of its groups and, where a group has levels, for each level."""
    groups = entry.get("group")
    for group in groups if isinstance(groups, list) and groups else [groups]:
        alone = {**entry, "group": group}
        if not (known := levels.get(group) if isinstance(group, str) else None):
            yield alone
            continue
        for level, settings in known.items():
            changed = {**alone, "name": f"{entry.get('name', '')}, {level}", "line": entry.get("name"), "level": level}
            for key, value in settings.items():
                section, _, name = key.partition(".")
                if isinstance(before := changed.get(section, {}), dict):  # otherwise Entry reports it
                    changed[section] = {**before, name: value}
            yield changed


def _made(kind: type[T], values: Values, said: str) -> T:
    """Return a validated table of the file; errors name it."""
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{said}: {error}") from None


def _check_keys(points: Iterable[Point], also: str = "") -> None:
    """Raise ValueError if a key is not a setting that an entry may fix."""
    for key in (key for point in points for key in point):
        section, _, name = key.partition(".")
        if renamed := new_name(section, name):
            raise ValueError(f"{also}must have today's names, got '{key}', which is now {renamed}")
        if section not in FIXED or not name:
            allowed = f"one of {', '.join(FIXED)}, a dot and a setting, in quotes"
            raise ValueError(f"{also}must have keys of {allowed}, got '{key}'")


def point_words(point: Point) -> str:
    """Return a point as readable text."""
    names = {key: key.partition(".")[2] if key.partition(".")[0] in BARE else key for key in point}
    return ", ".join(f"{names[key]} = {in_words(value)}" for key, value in point.items()) or "–"
