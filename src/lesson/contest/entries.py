"""Who takes part in a contest, from a TOML file: the rules, the groups that are shown together, and the entries."""

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lesson.contest.rules import MAX_POINTS, Rules
from lesson.errors import InputError, unknown
from lesson.grid import checked_settings, in_words
from lesson.paper.items import run_name
from lesson.settings import SECTIONS, Settings

FILE = Path(__file__).parent / "entries.toml"
FIXED = tuple(name for name in SECTIONS if name != "run")
KEYS = ("name", "group", *FIXED, "grid", "points")

Point = Mapping[str, Any]
"""Settings by section.key."""


@dataclass(frozen=True)
class Group:
    """Entries that are shown together, and compared with one of them."""

    name: str
    title: str
    references: tuple[str, ...]
    """Entries of which the one that is fastest to the last target is what the others are compared with."""


@dataclass(frozen=True)
class Entry:
    """A strategy with what is fixed, and the points it is tuned over: a single one is not tuned."""

    name: str
    group: str
    sections: Mapping[str, Mapping[str, Any]]
    points: tuple[Point, ...]

    @classmethod
    def of_table(cls, values: Mapping[str, Any]) -> "Entry":
        """The entry of a TOML table. Its points are every combination of `grid`, lists of values, with `points`."""
        for key in values.keys() - set(KEYS):
            raise unknown("key of an entry", key, KEYS)
        grid, name = values.get("grid", {}), values.get("name", "")
        if not name or "group" not in values:
            raise InputError(f"an entry must have a name and a group, got {dict(values)}")
        combinations = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
        points = tuple(one | other for one in combinations for other in values.get("points", [{}]))
        if not 1 <= len(points) <= MAX_POINTS:
            raise InputError(f"entry '{name}' must have 1 to {MAX_POINTS} points, got {len(points)}")
        for key in {key for point in points for key in point}:
            if key.partition(".")[0] not in FIXED or not key.partition(".")[2]:
                raise InputError(
                    f"entry '{name}': a point's key must be one of {', '.join(FIXED)}, a dot and a key, got '{key}'"
                )
        return cls(name, values["group"], {section: values.get(section, {}) for section in FIXED}, points)

    def settings(self, point: Point, beta: float, seed: int, rules: Rules) -> Settings:
        """Those of a run."""
        try:
            return checked_settings({**self.sections, "run": rules.limits(seed)}, {**point, "scenario.beta": beta})
        except InputError as error:
            raise InputError(f"entry '{self.name}': {error}") from None


@dataclass(frozen=True)
class Contest:
    """All of it."""

    rules: Rules
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    toml: str
    """The file that says all this."""

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"names of entries must differ, got '{min(twice)}' twice")
        groups = [group.name for group in self.groups]
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
        runs = [run_name(entry.settings(point, rules.betas[0], rules.tuning_seed, rules)) for point in entry.points]
        if len(set(runs)) < len(runs):
            raise InputError(
                f"entry '{entry.name}' must have points that differ, got {len(runs) - len(set(runs))} twice"
            )

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    def select(self, names: Iterable[str]) -> tuple[Entry, ...]:
        """Entries by their names or their group's, in the order of the file; all of them for nothing."""
        chosen = set(names)
        known = [*self.by_name, *(group.name for group in self.groups)]
        for name in chosen:
            if name not in known:
                raise unknown("entry", name, known)
        return tuple(entry for entry in self.entries if not chosen or chosen & {entry.name, entry.group})


def load_contest(path: Path = FILE) -> Contest:
    """The contest of a file."""
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        tables = values["groups"].items()
        groups = tuple(Group(name, table["title"], tuple(table["references"])) for name, table in tables)
        return Contest(Rules.of_table(values["rules"]), groups, tuple(map(Entry.of_table, values["entries"])), text)
    except KeyError as error:
        raise InputError(f"{path} must have {error}") from None
    except (InputError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from None


def point_words(point: Point) -> str:
    """A point as people read it."""
    names = {key: key.removeprefix("scenario.").removeprefix("strategy.") for key in point}
    return ", ".join(f"{names[key]} = {in_words(value)}" for key, value in point.items()) or "–"
