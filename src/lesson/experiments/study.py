"""Studies: finished runs of several strategies or settings over several seeds."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd

from lesson.core.errors import InputError, unknown
from lesson.core.files import write_whole
from lesson.experiments.measures import Estimate, means, spent_until
from lesson.experiments.naming import STRATEGY
from lesson.experiments.run import Run, curve_columns
from lesson.learn.metric import ACCURACY, Metric
from lesson.runs.summary import VARYING_COUNTS
from lesson.settings.settings import KINDS, NAMES, SECTIONS, placed
from lesson.strategies import STRATEGIES, setting_names

if TYPE_CHECKING:
    from lesson.report.files import ShownFigure

FIGURES = ("uploads", "bytes_up", "energy_j")
_BESIDES = (STRATEGY, "run.seed", "run.checkpoint_every_s", "run.device", "run.precision", "run.trainer")
"""The strategy, which is always a label, and settings in which repetitions of a run may differ."""


@dataclass(frozen=True)
class Study:
    """Finished runs of several strategies or settings over several seeds.

    Attributes:
        runs: The finished runs.
        by: Labels of a run: what varies besides the seed, "strategy" or settings as section.key.
        failures: Why runs are missing, by the name of the run.
        path: Its folder; None for a study of several folders.
    """

    runs: Sequence[Run]
    by: tuple[str, ...] = ("strategy",)
    failures: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None

    @property
    def metric(self) -> Metric:
        """The metric of the runs, with the targets that all of them share; InputError if their metrics differ."""
        found = list(dict.fromkeys(run.metric for run in self.runs)) or [ACCURACY]
        kinds = dict.fromkeys((metric.name, metric.higher_is_better) for metric in found)
        if len(kinds) > 1:
            listed = " and ".join(f"{name} ({'higher' if higher else 'lower'} is better)" for name, higher in kinds)
            remedy = "select the runs of one task, such as filter(dataset=NAME), or report on their folders separately"
            raise InputError(f"runs must have the same metric to be compared, got {listed}; {remedy}")
        return replace(found[0], targets=tuple(set.intersection(*(set(metric.targets) for metric in found))))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per run: its labels, seed and summary."""
        rows = []
        for run in self.runs:
            times = {f"time_to_{target}": seconds for target, seconds in run.summary["time_to_s"].items()}
            kept = {name: value for name, value in run.summary.items() if name not in ("time_to_s", "notes", "metrics")}
            rows.append(self._labels(run) | run.summary.get("metrics", {}) | kept | times)
        return pd.DataFrame(rows)

    def curves(self) -> pd.DataFrame:
        """Return one row per evaluation of every run: labels, seed, round, time, scores, total uploads and energy."""
        columns = [*self.by, "seed", *curve_columns(self.metric)]
        frames = []
        for run in self.runs:
            labels = self._labels(run) | {"seed": run.seed}
            frames.append(run.curve.assign(**{name: [value] * len(run.curve) for name, value in labels.items()}))
        known = [frame.reindex(columns=columns) for frame in frames if len(frame)]
        return pd.concat(known, ignore_index=True) if known else pd.DataFrame(columns=columns)

    def filter(self, **conditions: Any) -> Self:
        """Return a study of the runs that meet all conditions, such as `filter(strategy="lesson", beta=0.1)`.

        A name is a label, "seed", a setting or an option of a strategy; names with a dot go into a dict,
        `filter(**{"training.learning_rate": 0.1})`. A condition is a value, a list of values, or a function that
        returns whether a value is wanted.
        """
        kept = [run for run in self.runs if all(_meets(_value(run, key), one) for key, one in conditions.items())]
        return replace(self, runs=kept, failures={})

    def table(self) -> pd.DataFrame:
        """Return one row per strategy, or per combination of labels, with the mean of each measure over seeds.

        NAME_min and NAME_max are its extremes, NAME_ci95 is half its 95 % confidence interval (from three seeds on),
        and time_to_TARGET_seeds is the number of seeds that reached the target. Tuned comparisons have other measures.
        """
        metric, rows = self.metric, []
        for labels, runs in self.groups().items():
            frame = Study(runs, self.by).to_frame()
            for name in FIGURES:  # archived runs may lack some
                frame[name] = frame.get(name, math.nan)
            counts = [name for name in ("rejected", *VARYING_COUNTS) if name in frame]
            measured = means(frame, [metric.last10, *FIGURES, *counts], metric.time_names)
            rows.append(dict(zip(self.by, labels, strict=True)) | measured)
        return pd.DataFrame(rows, columns=None if rows else list(self.by)).set_index(list(self.by))

    def spent(self, runs: Sequence[Run], column: str, target: float) -> Estimate:
        """Return what runs spend until a target; see `spent_until`."""
        return spent_until(runs, target, column)

    def final(self, runs: Sequence[Run]) -> Estimate:
        """Return the metric of runs at their end, the mean over their last evaluations."""
        return Estimate.of(np.array([run.summary[run.metric.last10] for run in runs], dtype=float))

    def first_failure(self) -> str:
        """Return the first of the failures, as the name of the run and the reason."""
        name, reason = next(iter(self.failures.items()))
        return f"{name}: {reason}"

    def groups(self) -> dict[tuple[Any, ...], list[Run]]:
        """Return the runs that differ only in their seed, by their labels."""
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in self.runs:
            groups.setdefault(tuple(self._labels(run).values()), []).append(run)
        return groups

    def plot(
        self, by: Literal["time", "round", "uploads", "energy"] = "time", *, facet: str = "", bands: bool = True
    ) -> "ShownFigure":
        """Draw the mean metric over simulated time, rounds, total uploads or total energy, for each label.

        The color of a line stands for the strategy or, if all runs share it, for the first label, and the line style
        for the other labels. With `facet`, the name of a label such as "beta", there is one panel per value. The shaded
        95 % confidence intervals are left out if `bands` is False.
        """
        from lesson.report.figures import draw_metric  # it imports this module

        return draw_metric(self, by, facet=facet, bands=bands)

    def __repr__(self) -> str:
        seeds = {run.summary["seed"] for run in self.runs}
        return f"{type(self).__name__}({len(self.runs)} runs, {len(seeds)} seeds, by {', '.join(self.by)})"

    def _repr_html_(self) -> str:
        from lesson.report.results import failure_table, results_table  # it imports this module

        failed = failure_table(self).to_html() if self.failures else ""
        return results_table(self).to_html() + failed

    def _labels(self, run: Run) -> dict[str, Any]:
        """Return the values that distinguish a run from others."""
        return {key: _value(run, key) for key in self.by}


def _value(run: Run, key: str) -> Any:
    """Return the value of a label, of the seed, or of a setting, by section.key or by its name alone.

    None if the run's strategy does not have the option.
    """
    if key in run.labels or key in ("strategy", "seed"):
        return {"strategy": run.settings.strategy.name, "seed": run.seed, **run.labels}[key]
    options = {name for kind in STRATEGIES.values() for name in setting_names(kind)}
    section, name = ("strategy", key) if key in options - NAMES.keys() else placed(key)
    known = run.sections[section].keys() | KINDS[section].model_fields | (options if section == "strategy" else set())
    if name not in known:
        raise unknown("setting", name, known, section=section)
    return _hashable(run.sections[section].get(name))


def _meets(value: Any, condition: Any) -> bool:
    if callable(condition):
        return bool(condition(value))
    several = condition if isinstance(condition, list | tuple | set | range) else []
    return value == _hashable(condition) or value in [_hashable(one) for one in several]


def _hashable(value: Any) -> Any:
    """Return a setting's value with tuples for lists and tables, for use as a key."""
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def tell_apart(runs: Sequence[Run], failures: Mapping[str, str]) -> Study:
    """Return a study of runs, labeled by strategy and by the settings that are needed to tell them apart."""
    tables = [run.sections for run in runs]
    order = ("strategy", *(section for section in SECTIONS if section != "strategy"))
    keys = dict.fromkeys((section, key) for section in order for table in tables for key in table[section])
    by = [STRATEGY]
    labels: list[tuple[Any, ...]] = [(run.settings.strategy.name,) for run in runs]
    for section, key in keys:
        values = [_hashable(table[section].get(key)) for table in tables]
        finer = [(*label, value) for label, value in zip(labels, values, strict=True)]
        if f"{section}.{key}" not in _BESIDES and len(set(finer)) > len(set(labels)):
            by, labels = [*by, f"{section}.{key}"], finer
    seen: dict[tuple[Any, ...], Run] = {}  # with a run twice, the interval of the mean would be too narrow
    for run, label in zip(runs, labels, strict=True):
        first = seen.setdefault((*label, run.seed), run)
        if first is not run:
            raise InputError(
                f"{first.path or first.name} and {run.path or run.name} are the same run; give only one of them"
            )
    return Study(runs, tuple(by) if len(by) > 1 else ("strategy",), failures)


def write_table(study: Study) -> None:
    """Write table.csv and table.json to the study's folder."""
    assert study.path is not None
    frame = study.table()
    by_name, numbered = study.by == ("strategy",), isinstance(frame.index, pd.RangeIndex)
    rows = frame.to_json(orient="index") if by_name else frame.reset_index(drop=numbered).to_json(orient="records")
    table = json.loads(rows)
    names = {name.replace(":", "."): name for name in frame.index} if by_name else {}
    for run, reason in study.failures.items() if by_name else ():
        strategy = names.get(series := run.rpartition("-seed")[0], series)  # as in its folder if it has no finished run
        row = table.setdefault(strategy, dict.fromkeys(frame.columns) | {"seeds": 0})
        row.setdefault("failures", {})[run] = reason
    write_whole(study.path / "table.json", (json.dumps(table, allow_nan=False, indent=2) + "\n").encode())
    write_whole(study.path / "table.csv", frame.to_csv(index=not numbered).encode())
