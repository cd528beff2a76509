"""The design of a tuned comparison, read from a TOML file: rules, groups and entries."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

import tomli_w
from pydantic import Field

from lesson.core.errors import InputError, unknown
from lesson.core.toml import read_toml
from lesson.experiments.design import Named, combined
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.tuned.cases import Case
from lesson.experiments.tuned.entries import Entry, Group, Values
from lesson.experiments.tuned.rules import Rules, Table
from lesson.experiments.tuned.study import TunedStudy

FILE = Path(__file__).parent / "strategies.toml"
"""The default comparison."""

T = TypeVar("T", bound=Table)


@dataclass(frozen=True)
class TunedComparison:
    """Tunes every entry at every β, then runs the best settings of each with the final seeds."""

    kind: ClassVar[str] = "tuned comparison"
    archived: ClassVar[bool] = True

    rules: Rules
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    toml: str
    """Text of the file."""
    chosen: tuple[str, ...] = ()
    """Names of the entries or groups to run; all if there are none."""

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"entries must have distinct names, got '{min(twice)}' twice")
        groups = [group.name for group in self.groups]
        if both := set(names) & set(groups):
            raise InputError(f"an entry must not have the name of a group, got '{min(both)}'")
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
        for beta, seed in itertools.product(rules.betas, (rules.tuning_seeds[0], rules.seeds[0])):
            names = [run_name(entry.settings(point, beta, seed, rules)) for point in entry.points]
            if twice := {name for name in names if names.count(name) > 1}:
                raise InputError(f"entry '{entry.name}': points must be distinct, got {min(twice)} twice")

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @classmethod
    def load(cls, path: Path | str = FILE) -> "TunedComparison":
        """Load and validate a file, which may be the study.toml of a tuned comparison."""
        path = Path(path)
        values = read_toml(path, "a tuned comparison is a file with [rules], [groups] and [[entries]]")
        text = path.read_text(encoding="utf-8-sig")
        if values.pop("study", None) is not None:
            before = re.split(r"(?m)^\[study\]", text)[0]
            # Somebody may have added to the end of the file.
            text = before if tomllib.loads(before) == values else tomli_w.dumps(values)
        if "sweep" in values:
            raise InputError(f"{path} has a table [sweep] and is not a tuned comparison; do not set tune")
        try:
            file = _File(**values)
            rules = _made(Rules, file.rules, "rules")
            groups = [_made(Group, {"name": name} | one, f"group '{name}'") for name, one in file.groups.items()]
            levels = {group.name: group.levels for group in groups}
            at_levels = [each for one in file.entries for each in _at_levels(one, levels)]
            entries = [_made(Entry, one, f"entry '{one.get('name', '')}'") for one in at_levels]
            return cls(rules, tuple(groups), tuple(entries), text.rstrip() + "\n")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def select(self, names: Iterable[str]) -> "TunedComparison":
        """Return this design with only these entries or groups to run; all if no names are given."""
        known = [*self.by_name, *(group.name for group in self.groups)]
        for name in names:
            if name not in known:
                raise unknown("entry", name, known)
        return replace(self, chosen=tuple(names))

    @cached_property
    def cases(self) -> list[Case]:
        """Every entry at every β."""
        return [Case(entry, beta, self.rules) for entry in self.entries for beta in self.rules.betas]

    def runs(self, done: Mapping[str, Run]) -> Named:
        """Return all tuning runs, and the final runs of the cases whose tuning is complete, see `Design`."""
        cases = self._chosen_cases()
        return combined(part for case in cases for part in (case.tuning(), case.finals(done) or {}))

    def later(self, done: Mapping[str, Run]) -> Named:
        """Return the final runs of cases that are not tuned, with their first settings, see `Design`."""
        return combined(case.runs_at(0) for case in self._chosen_cases() if case.finals(done) is None)

    def _chosen_cases(self) -> list[Case]:
        chosen = set(self.chosen)
        return [case for case in self.cases if not chosen or chosen & {case.entry.name, case.entry.group}]

    def study(self, done: Mapping[str, Run], failures: Mapping[str, str]) -> TunedStudy:
        """Return the final runs that are done, of all entries, see `Design`."""
        runs = [
            replace(run, labels={"group": case.entry.group, "entry": case.entry.name})
            for case in self.cases
            for run in case.made(done)
        ]
        return TunedStudy(runs, ("entry", "group", "data.beta"), failures, design=self, done=done)


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
