"""The study of a tuned comparison: its table, with every entry compared with the reference of its group.

A run has collapsed if it diverged, or ends near the accuracy of guessing or far below its own best. Outcomes of
unstable settings are bimodal, so neither a mean over both kinds of runs nor a t-interval describes them. Collapsed runs
are therefore counted and left out of means. In comparisons they are bounds: they reach no target.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from lesson.experiments.measures import Estimate, difference, means, ratio, spent_until, value_by
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.experiments.tuning.file import Group, Rules
from lesson.learn.metric import GUESSED, IN_A_ROW, ROUNDING

KIND = "tuned comparison"
RATIO, COLLAPSED = "time_ratio", "collapsed"
LOWEST = 2 * GUESSED
"""Accuracy up to which a run has collapsed: twice that of guessing among ten classes."""
SHARE_OF_BEST = 0.5
"""Share of its own best accuracy up to which a run has collapsed."""


_COLLAPSED = WeakKeyDictionary[Run, dict[float, bool]]()
"""What `has_collapsed` has returned: every cell of a table asks again."""


def has_collapsed(run: Run, time_s: float) -> bool:
    """Return whether a run diverged, or has at most 20 % accuracy at a time, or at most half of its best until then.

    Accuracies are means of three consecutive evaluations. A run that never learns counts as collapsed. A run with
    another metric collapses only if it diverges, because the value of guessing is unknown.
    """
    known = _COLLAPSED.setdefault(run, {})
    if time_s not in known:
        known[time_s] = _has_collapsed(run, time_s)
    return known[time_s]


def _has_collapsed(run: Run, time_s: float) -> bool:
    if run.diverged or not run.metric.is_share:
        return bool(run.diverged)
    final = value_by(run, time_s) - ROUNDING
    values: pd.Series = run.curve[run.metric.name][run.curve["time_s"] <= time_s].astype(float)
    best = values.rolling(IN_A_ROW).mean().max()  # NaN if there are fewer evaluations
    return bool(final <= LOWEST or final <= SHARE_OF_BEST * best)


def metric_by(run: Run, rules: Rules, time_s: float) -> float:
    """Return `value_by`; raise InputError if the run has another metric than the rules."""
    return value_by(rules.checked(run), time_s)


@dataclass(frozen=True, repr=False)  # that of Study is short
class TunedStudy(Study):
    """The final runs of a tuned comparison, labeled by entry, group and β."""

    rules: Rules = field(kw_only=True)
    groups_shown: tuple[Group, ...] = field(kw_only=True)
    tuning: Sequence[Run] = field(kw_only=True, default=())
    """The tuning runs, with the same labels."""

    def table(self) -> pd.DataFrame:
        """Return one row per group, β and complete entry: its settings, and the measures that the rules name.

        Values of the metric are means over the runs that have not collapsed; `collapsed` counts the others. A time is
        NaN unless every seed reaches the target; NAME_seeds is the number of seeds that do, and NAME_ci95 half the 95 %
        interval. `time_ratio` is the time to the last target relative to that of the group's reference, and METRIC_gain
        is the improvement of the last value over the reference. Both are paired by seed and have a NAME_verdict.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        rows = []
        for group, beta in itertools.product(self.groups_shown, self.rules.betas):
            reference = self._reference(group, beta)
            rows += [self._row(entry, beta, group.name, reference) for entry in self._complete(group)]
        return pd.DataFrame([row for row in rows if row])

    def compare(self, entry: str, than: str, beta: float, target: float | None = None) -> dict[str, Estimate]:
        """Return the estimates of `time_ratio`, `energy_ratio` and METRIC_gain of an entry relative to another one.

        The ratios are those of the costs of reaching a target, by default the last one.
        """
        ours, theirs = self._of(entry, beta), self._of(than, beta)
        seeds = {run.seed for run in ours} & {run.seed for run in theirs}
        ours, theirs = ([run for run in runs if run.seed in seeds] for runs in (ours, theirs))
        ratios = {
            f"{name}_ratio": ratio(self.spent(ours, column, target), self.spent(theirs, column, target))
            for name, column in (("time", "time_s"), ("energy", "energy_j"))
        }
        pair = self.final(ours), self.final(theirs)
        return ratios | {self.gain: difference(*(pair if self.rules.higher_is_better else pair[::-1]))}

    @property
    def gain(self) -> str:
        """Name of the column with the improvement of the metric over the reference."""
        return f"{self.rules.metric}_gain"

    @property
    def value_names(self) -> list[str]:
        """Names of the columns with values of the metric, one per time."""
        return [f"{self.rules.metric}_at_{time_s:.0f}" for time_s in self.rules.looks_s]

    @property
    def time_names(self) -> list[str]:
        """Names of the columns for times to targets, and for uploads and energy to the last target."""
        last = f"{self.rules.targets[-1]:g}"
        return [*(f"time_to_{target:g}" for target in self.rules.targets), f"uploads_to_{last}", f"energy_to_{last}"]

    def collapsed(self, entry: str, beta: float) -> int:
        """Return how many final runs of an entry have collapsed."""
        return sum(self._lost(self._of(entry, beta)))

    def _of(self, entry: str, beta: float) -> list[Run]:
        """Return the final runs of an entry, ordered by seed."""
        return self._by_entry.get((entry, beta), [])

    @cached_property
    def _by_entry(self) -> Mapping[tuple[str, float], list[Run]]:
        found: dict[tuple[str, float], list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            found.setdefault((run.labels["entry"], run.settings.data.beta), []).append(run)
        return found

    def _complete(self, group: Group) -> list[str]:
        """Return the entries of a group that have all its seeds at every β, so that comparisons are paired."""
        names = dict.fromkeys(run.labels["entry"] for run in self.runs if run.labels["group"] == group.name)
        seeds = set(self.rules.seeds_of(group)) & {run.seed for run in self.runs}  # those of a filtered study
        pairs = {(run.labels["entry"], run.settings.data.beta, run.seed) for run in self.runs}
        return [name for name in names if pairs.issuperset(itertools.product([name], self.rules.betas, seeds))]

    def _lost(self, runs: Sequence[Run]) -> list[bool]:
        return [has_collapsed(run, self.rules.final_s) for run in runs]

    def spent(self, runs: Sequence[Run], column: str, target: float | None = None) -> Estimate:
        """Return the cost of each run up to a target, by default the last one; a collapsed run reaches none."""
        cost = spent_until(runs, target or self.rules.targets[-1], column)
        lost = np.array(self._lost(runs), dtype=bool)
        ends = np.array([float(run.curve[column].max()) if column in run.curve else 0.0 for run in runs])
        return Estimate(np.where(lost, ends, cost.low), np.where(lost, np.inf, cost.high))

    def final(self, runs: Sequence[Run]) -> Estimate:
        """Return the last values of the metric; that of a collapsed run is a bound."""
        values = np.array([metric_by(run, self.rules, self.rules.final_s) for run in runs])
        lost = np.array(self._lost(runs), dtype=bool) | np.isnan(values)
        worst = -np.inf if self.rules.higher_is_better else np.inf
        bounds = np.sort(np.stack([np.where(lost, worst, values), np.where(np.isnan(values), -worst, values)]), axis=0)
        return Estimate(bounds[0], bounds[1])

    def _row(self, entry: str, beta: float, group: str, reference: str) -> dict[str, Any]:
        runs = self._of(entry, beta)
        lost = self._lost(runs)
        frame = pd.DataFrame([self._measure(run, gone) for run, gone in zip(runs, lost, strict=True)])
        kept = frame[~np.array(lost, dtype=bool)]
        values, times = means(kept, self.value_names, []), means(frame, [], self.time_names)
        labels = runs[0].labels
        row = {"group": group, "beta": beta, "entry": entry, "settings": labels["settings"]}
        row |= {"diverged": sum(bool(run.diverged) for run in runs), **values, **times}
        estimates = self.compare(entry, reference, beta) if reference else {}
        for name in (RATIO, self.gain):
            estimate = estimates.get(name, Estimate.of(np.array([math.nan])))
            verdict = estimate.verdict(1.0 if name == RATIO else 0.0)
            row |= {name: estimate.mean, f"{name}_ci95": estimate.half, f"{name}_verdict": verdict}
        return row | {"seeds": len(runs), COLLAPSED: sum(lost), "reference": reference}

    def _measure(self, run: Run, lost: bool) -> dict[str, float]:
        """Return all measures of a run; NaN for a target that it never reaches."""
        rules, last = self.rules, self.rules.targets[-1]
        wanted = [*((target, "time_s") for target in rules.targets), (last, "uploads"), (last, "energy_j")]
        spent = [math.nan if lost else spent_until([run], *one).mean for one in wanted]
        values = [metric_by(run, rules, time_s) for time_s in rules.looks_s]
        return dict(zip([*self.value_names, *self.time_names], [*values, *spent], strict=True))

    def _reference(self, group: Group, beta: float) -> str:
        """Return the group's reference: the candidate that is fastest to the last target.

        If no candidate reaches it with every seed, return the one with the fewest collapsed runs; the final metric
        decides ties.
        """
        complete = {name for one in self.groups_shown for name in self._complete(one)}

        def rank(name: str) -> tuple[float, int, float]:
            runs = self._of(name, beta)
            lost, time_s = self._lost(runs), self.spent(runs, "time_s").mean
            values = [value_by(run, self.rules.final_s) for run, gone in zip(runs, lost, strict=True) if not gone]
            final = self.rules.measured.cost(float(np.mean(values)) if values else math.nan)
            return math.inf if math.isnan(time_s) else time_s, sum(lost), final

        return min((name for name in group.references if name in complete), key=rank, default="")
