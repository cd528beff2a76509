"""The entries of a tuned comparison, and the groups that are shown together."""

import itertools
import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from lesson.core.errors import InputError
from lesson.core.validation import Text
from lesson.experiments.grid import checked_settings
from lesson.experiments.naming import in_words, short_name
from lesson.experiments.tuned.rules import MAX_POINTS, Rules, Several, Table
from lesson.settings.settings import SECTIONS, Settings

FIXED = tuple(name for name in SECTIONS if name != "run")

Values = dict[str, Any]
Point = Values
"""Settings by section.key."""


class Group(Table):
    """Entries that are shown together and compared with one of them."""

    wanted: ClassVar[dict[str, str]] = {
        "name": "letters, digits, - and _, as it is part of file names",
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
    line: Text = ""
    level: Text = ""
    """If the group has levels: `line` is the name of the entry in the file, `level` that of this level."""
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


def _check_keys(points: Iterable[Point], also: str = "") -> None:
    """Raise ValueError if a key is not a setting that an entry may fix."""
    for key in (key for point in points for key in point):
        section, _, name = key.partition(".")
        if section not in FIXED or not name:
            allowed = f'"section.key" with one of {", ".join(FIXED)}'
            raise ValueError(f"{also}must have keys {allowed}, got '{key}'")


def point_words(point: Point) -> str:
    """Return a point as readable text."""
    return ", ".join(f"{short_name(key)} = {in_words(value)}" for key, value in point.items()) or "–"
