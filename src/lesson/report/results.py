"""The results of a study as one table, for the terminal, Markdown, LaTeX, notebooks and the page."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from lesson.experiments.measures import MIN_SEEDS, Estimate
from lesson.experiments.naming import short_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.groups import MAX_LABELS, Group, groups_of, label_in_words, title_of
from lesson.report.table import Column, Table
from lesson.report.words import count, plain_number, target_text, unit_of

_IF_ANY = {"misses": "late updates", "retiered": "tier changes", "lost": "lost updates", "rejected": "rejected updates"}
"""Counts in a summary that have a column only if they are not all zero."""


def results_table(study: Study, title: str = "") -> Table:
    """Return one row per group of runs that differ only in their seed; a cell is the estimate of a measure.

    The default title names what all runs have in common. All tables of results are made here.
    """
    groups, metric = groups_of(study), study.metric
    there = [name for name in _IF_ANY if any(run.summary.get(name) for run in study.runs)]
    columns = [
        *_label_columns(groups),
        Column("seeds", lambda group: len(group.runs)),
        _score_column(metric),
        *(_time_column(metric, target) for target in reached_targets(study)),
        _column("uploads", _in_summary("uploads")),
        _column("uploaded (MB)", _in_summary("bytes_up"), 1e-6, 1),
        _column("energy (kJ)", _in_summary("energy_j"), 1e-3, 1),
        *(_column(_IF_ANY[name], _in_summary(name)) for name in there),
    ]
    title = title or (title_of(*(run.settings for run in study.runs)) if groups else "no finished runs")
    return Table(columns, groups, f"{title}; {what_is_shown(groups)}" if groups else title)


def failure_table(study: Study) -> Table:
    """Return one row per failed run, with the reason."""
    columns = [
        Column("failed run", lambda row: row[0], align="left"),
        Column("reason", lambda row: row[1], align="left"),
    ]
    return Table(columns, list(study.failures.items()))


def reached_targets(study: Study) -> list[float]:
    """Return the targets that at least one run reached; the hardest comes last."""
    times = [run.summary["time_to_s"] for run in study.runs]
    return [target for target in study.metric.targets if any(one[f"{target:g}"] is not None for one in times)]


def best_groups(groups: Sequence[Group], metric: Metric, most: int) -> list[Group]:
    """Return the groups with the best metric at the end, but at most so many, in their order."""
    order = metric.order([estimate(group, _in_summary(metric.last10)).mean for group in groups])
    return [groups[place] for place in sorted(order[:most].tolist())]


def time_to(run: Run, target: float) -> float | None:
    """Return the time at which a run reached a target; None if it never did."""
    seconds: float | None = run.summary["time_to_s"][f"{target:g}"]
    return seconds


def estimate(group: Group, measure: Callable[[Run], float | None]) -> Estimate:
    """Return the estimate of a measure, which may be unknown for some runs, over the seeds of a group."""
    return Estimate.of(np.array([measure(run) for run in group.runs], dtype=float))


def cell(values: Estimate, scale: float = 1.0, digits: int | None = 0, highest: float = math.inf) -> str:
    """Return mean ± half the 95 % interval, both of two values, or how many of the values are known.

    An interval that extends below 0 or above `highest` is clipped and written with its ends. Without `digits`, a value
    may be any number and has as many decimal places as the mean has with four significant digits.
    """
    mean, half, known = values.mean, values.half, int(np.count_nonzero(~values.is_bound))

    def number(value: float) -> str:
        return plain_number(scale * value, scale * mean) if digits is None else f"{scale * value:,.{digits}f}"

    if known < len(values.low):
        return f"{known} of {count(len(values.low), 'seed')}" if known else "–"
    if known == MIN_SEEDS - 1:
        return " / ".join(map(number, sorted(values.low)))
    if math.isnan(half):
        return number(mean)
    low, high = mean - half, mean + half
    if digits is None or (low >= 0 and high <= highest):
        return f"{number(mean)} ± {number(half)}"
    return f"{number(mean)} ({number(max(0.0, low))}–{number(min(highest, high))})"


def score_cell(values: Estimate, metric: Metric) -> str:
    """Return the cell of values of the metric, an accuracy in percent."""
    return cell(values, 100, 1, highest=1.0) if metric.is_share else cell(values, digits=None)


def what_is_shown(groups: Sequence[Group]) -> str:
    """Return what the cells of a table show."""
    numbers = {len(group.runs) for group in groups}
    if numbers == {1}:
        return "one seed"
    if numbers == {2}:
        return "values of both seeds"
    over = f"{numbers.pop()} seeds" if len(numbers) == 1 else "seeds"
    return f"mean ± 95 % confidence interval over {over}"


def _label_columns(groups: Sequence[Group]) -> list[Column]:
    """Return a column per label, or one with the names of groups if there are too many labels."""
    keys = list(groups[0].labels) if groups else []
    if len(keys) > MAX_LABELS:
        return [Column("configuration", lambda group: group.name, align="left")]
    return [_label_column(key, "right" if place else "left") for place, key in enumerate(keys)]


def _label_column(key: str, align: Literal["left", "right"]) -> Column:
    return Column(short_name(key), lambda group: group.labels[key], label_in_words, align)


def _score_column(metric: Metric) -> Column:
    heading = f"{metric.name} at the end{unit_of(metric)}"
    return Column(
        heading,
        lambda group: estimate(group, _in_summary(metric.last10)),
        lambda values: score_cell(values, metric),
    )


def _time_column(metric: Metric, target: float) -> Column:
    return _column(f"time to {target_text(metric, target)} (s)", lambda run: time_to(run, target))


def _column(heading: str, measure: Callable[[Run], float | None], scale: float = 1.0, digits: int = 0) -> Column:
    return Column(heading, lambda group: estimate(group, measure), lambda values: cell(values, scale, digits))


def _in_summary(name: str) -> Callable[[Run], float | None]:
    """Return a measure from the summary of a run; early archives lack some."""
    return lambda run: run.summary.get(name)
