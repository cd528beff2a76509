"""Tunes the entries of a file, then runs the best settings of each with the final seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lesson.core.errors import InputError, unknown
from lesson.experiments.engines import Engine
from lesson.experiments.folder import StudyFolder, StudyPlan
from lesson.experiments.missing import run_missing
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.tuning.file import Entry, Rules, Tuning, point_words
from lesson.experiments.tuning.study import KIND, TunedStudy, has_collapsed, metric_by
from lesson.settings.settings import Settings


def tune(
    tuning: Tuning, out: Path | str, engine: Engine, *, only: Sequence[str] = (), resume: bool = True, **how: Any
) -> TunedStudy:
    """Execute the missing tuning runs, then the missing final runs of every entry that has been tuned.

    `only` names entries or groups, by default all. See `run_missing` for `resume` and `how`.
    """
    planner = _Planner(tuning, only)
    study = run_missing(planner.plan(StudyFolder(out).runs()), out, engine, resume=resume, **how)
    assert isinstance(study, TunedStudy)
    done = {run.name: run for run in (*study.runs, *study.tuning)}
    finals = planner.plan(done)
    left = {name: one for name, one in finals.runs.items() if name not in done and name not in study.failures}
    if left:
        study = run_missing(replace(finals, runs=left), out, engine, **how)
        assert isinstance(study, TunedStudy)
    return study


def plan_tuning(tuning: Tuning, done: Mapping[str, Run], only: Sequence[str] = ()) -> StudyPlan:
    """Return all tuning runs, and the final runs of the entries whose tuning runs have finished."""
    return _Planner(tuning, only).plan(done)


@dataclass(frozen=True)
class Score:
    """The tuning result of a point."""

    value: float
    """Mean over the runs that did not collapse, or over all runs if all did; a diverged run counts as guessing."""
    seeds: int
    collapsed: int
    diverged: int

    @classmethod
    def of(cls, runs: Sequence[Run], rules: Rules) -> "Score":
        """Return the result of the tuning runs of a point."""
        values = [metric_by(run, rules, rules.tuning_s) for run in runs]
        lost = [has_collapsed(run, rules.tuning_s) for run in runs]
        kept = [value for value, collapsed in zip(values, lost, strict=True) if not collapsed] or values
        return cls(math.fsum(kept) / len(kept), len(runs), sum(lost), sum(bool(run.diverged) for run in runs))

    def rank(self, rules: Rules) -> tuple[int, float]:
        """Return a key that is smaller for better points: those with fewer collapsed runs, then a better result."""
        return self.collapsed, rules.measured.cost(self.value)


class _Planner:
    """Plans the runs of a file. Building settings is slow, so each run's settings are built once."""

    def __init__(self, tuning: Tuning, only: Sequence[str]) -> None:
        self._tuning, self._rules, self._made = tuning, tuning.rules, dict[Any, tuple[str, Settings]]()
        known = [*(entry.name for entry in tuning.entries), *(group.name for group in tuning.groups)]
        for name in only:
            if name not in known:
                raise unknown("entry", name, known)
        self._chosen = set(only) or set(known)

    def plan(self, done: Mapping[str, Run]) -> StudyPlan:
        runs: dict[str, Settings] = {}
        labels: dict[str, list[dict[str, str]]] = {}
        rules = self._rules

        def add(entry: Entry, beta: float, place: int, seeds: Sequence[int], phase: str) -> None:
            about = {"entry": entry.name, "group": entry.group, "settings": point_words(entry.points[place])}
            for seed in seeds:
                name, settings = self._run(entry, beta, place, seed)
                labels.setdefault(name, []).append({"phase": phase, **about})
                if self._chosen & {entry.name, entry.group} and runs.setdefault(name, settings) != settings:
                    raise InputError(f"two runs would have the same name, {name}; write their values differently")

        seeds = {group.name: rules.seeds_of(group) for group in self._tuning.groups}
        for entry in self._tuning.entries:
            for beta in rules.betas:
                for place in range(len(entry.points)) if len(entry.points) > 1 else ():
                    add(entry, beta, place, rules.tuning_seeds, "tuning")
                if (best := self._best(entry, beta, done)) is not None:
                    add(entry, beta, best, seeds[entry.group], "final")
        return StudyPlan(KIND, runs, ("entry", "group", "data.beta"), labels, self._tuning.toml, archived=True)

    def _best(self, entry: Entry, beta: float, done: Mapping[str, Run]) -> int | None:
        """Return the index of the best point; None until all tuning runs of the entry have finished."""
        if len(entry.points) == 1:
            return 0
        ranks = []
        for place in range(len(entry.points)):
            names = [self._run(entry, beta, place, seed)[0] for seed in self._rules.tuning_seeds]
            if any(name not in done for name in names):
                return None
            ranks.append(Score.of([done[name] for name in names], self._rules).rank(self._rules))
        return ranks.index(min(ranks))

    def _run(self, entry: Entry, beta: float, place: int, seed: int) -> tuple[str, Settings]:
        """Return the name and the settings of a run with a point of an entry."""
        key = entry.name, beta, place, seed
        if key not in self._made:
            settings = entry.settings(entry.points[place], beta, seed, self._rules)
            self._made[key] = run_name(settings), settings
        return self._made[key]
