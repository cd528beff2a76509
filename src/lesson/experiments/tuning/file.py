"""The file of a tuned comparison: rules, groups, and entries with the settings that each is tuned over."""

import itertools
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import tomli_w
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from lesson.core.errors import InputError, unknown
from lesson.core.toml import read_toml
from lesson.core.validation import Checked, Positive, Text
from lesson.experiments.grid import checked_settings
from lesson.experiments.naming import in_words, short_name
from lesson.experiments.run import Run
from lesson.learn.metric import ACCURACY, Metric
from lesson.settings.settings import SECTIONS, Settings

STRATEGIES = Path(__file__).parent / "strategies.toml"
"""The default comparison."""
MAX_POINTS = 20
"""Maximum number of points an entry may be tuned over."""
FIXED = tuple(name for name in SECTIONS if name != "run")

T = TypeVar("T")
Values = dict[str, Any]


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("must have at least one value")
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must be distinct, got {value!r} twice")
    return values


def _setting_key(key: str) -> str:
    section, _, name = key.partition(".")
    if section not in FIXED or not name:
        raise ValueError(f"must have keys \"section.key\" with one of {', '.join(FIXED)}, got '{key}'")
    if key == "data.beta":
        raise ValueError("must not include data.beta, which the rules set")
    return key


Seed = Annotated[int, Field(ge=0, strict=True)]
Target = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Several = Annotated[tuple[T, ...], AfterValidator(_distinct)]
Key = Annotated[str, AfterValidator(_setting_key)]
Point = dict[Key, Any]
"""Settings by section.key."""


class Rules(Checked):
    """Data, seeds, length of runs, and what is measured."""

    dataset: Text
    betas: Several[Positive]
    tuning_seeds: Several[Seed]
    """Seeds of the tuning runs."""
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
            raise ValueError(f"targets must be a list of accuracies between 0 and 1, got {outside[0]}")
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

    def seeds_of(self, group: "Group") -> tuple[int, ...]:
        """Return the seeds of the final runs of a group."""
        return self.seeds if group.seeds is None else group.seeds

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


class Group(Checked):
    """Entries that are shown together and compared with one of them."""

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    title: Annotated[Text, Field(min_length=1)]
    references: Several[Text]
    """Candidates for the reference, which is the one that is fastest to the last target."""
    seeds: Several[Seed] | None = None
    """Seeds of the final runs; None for those of the rules."""
    levels: dict[str, Point] = Field(default_factory=dict)
    """Settings by the name of the level; every entry of the group runs at each level."""


class Entry(Checked):
    """A strategy with its fixed settings and the points it is tuned over; with a single point, it is not tuned."""

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
    grid: dict[Key, list[Any]] = Field(default_factory=dict)
    points: tuple[Point, ...] = Field(({},), validate_default=True)
    """Every combination of the lists in `grid` with the given points."""

    @field_validator("points")
    @classmethod
    def _combined(cls, given: tuple[Point, ...], info: ValidationInfo) -> tuple[Point, ...]:
        grid: dict[str, list[Any]] = info.data.get("grid", {})
        if not 1 <= (count := len(given) * math.prod(map(len, grid.values()))) <= MAX_POINTS:
            raise ValueError(f"and grid must give from 1 to {MAX_POINTS} combinations, got {count}")
        if "beta" in info.data.get("data", {}):
            raise ValueError("and settings must not include beta, which the rules set")
        combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        return _distinct(tuple(one | other for one in combinations for other in given))

    def at_level(self, level: str, settings: Point) -> "Entry":
        """Return the entry with the settings of a level of its group."""
        changes: dict[str, Any] = {"name": f"{self.name}, {level}"}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            changes[section] = changes.get(section, getattr(self, section)) | {name: value}
        return self.model_copy(update=changes)

    def settings(self, point: Point, beta: float, seed: int, rules: Rules) -> Settings:
        """Return the settings of one run."""
        values = point | rules.limits(seed) | {"data.beta": beta}
        try:
            return checked_settings(self.model_dump(include={"preset", *FIXED}), values)
        except InputError as error:
            raise InputError(f"entry '{self.name}': {error}") from None


@dataclass(frozen=True)
class Tuning:
    """The content of the file of a tuned comparison."""

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
        for group in self.groups:
            if seen := set(self.rules.tuning_seeds) & set(self.rules.seeds_of(group)):
                raise InputError(f"group '{group.name}': seeds must not include any of tuning_seeds, got {min(seen)}")
            for name in group.references:
                if name not in names:
                    raise unknown("entry", name, names)

    @classmethod
    def load(cls, path: Path | str = STRATEGIES) -> "Tuning":
        """Load and validate a file, which may be the study.toml of a tuned comparison."""
        tuning = cls.read(Path(path))
        try:
            for entry in tuning.entries:
                for point in entry.points:
                    entry.settings(point, tuning.rules.betas[0], tuning.rules.seeds[0], tuning.rules)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return tuning

    @classmethod
    def read(cls, path: Path) -> "Tuning":
        """Load a file whose strategies need not be importable."""
        values = read_toml(path, "a tuned comparison is a file with [rules], [groups] and [[entries]]")
        text = path.read_text(encoding="utf-8-sig")
        if values.pop("study", None) is not None:
            before = re.split(r"(?m)^\[study\]", text)[0]
            # Users may have added tables after [study].
            text = before if tomllib.loads(before) == values else tomli_w.dumps(values)
        try:
            if "sweep" in values:
                raise InputError(
                    "a file with a table [sweep] is not a tuned comparison; use lesson.sweep, or no --tune"
                )
            tables = _File(**values)
            rules = _made(Rules, tables.rules, "rules")
            groups = {
                name: _made(Group, {"name": name} | one, f"group '{name}'") for name, one in tables.groups.items()
            }
            entries = tuple(entry for one in tables.entries for entry in _at_levels(one, groups))
            return cls(rules, tuple(groups.values()), entries, text.rstrip() + "\n")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


class _File(Checked):
    """Schema of a file."""

    rules: Values
    groups: dict[str, Values]
    entries: list[Values]


def _at_levels(values: Values, groups: dict[str, Group]) -> Iterator[Entry]:
    """Yield an entry for each of its groups and, where a group has levels, for each level."""
    names = values.get("group")
    for name in names if isinstance(names, list) else [names]:
        entry = _made(Entry, values | {"group": name}, f"entry '{values.get('name', '')}'")
        if entry.group not in groups:
            raise unknown("group", entry.group, groups)
        levels = groups[entry.group].levels
        yield from [entry.at_level(*one) for one in levels.items()] or [entry]


def _made(kind: type[T], values: Values, what: str) -> T:
    """Return a validated table of the file; errors name it."""
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def point_words(point: Point) -> str:
    """Return a point as readable text."""
    return ", ".join(f"{short_name(key)} = {in_words(value)}" for key, value in point.items()) or "–"
