"""The results of a study as one table, for the terminal, Markdown, LaTeX, notebooks and the page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from lesson.experiments.measures import MIN_SEEDS, Estimate
from lesson.experiments.naming import in_words, short_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.experiments.tuning.study import RATIO, TunedStudy, has_collapsed, metric_by
from lesson.learn.metric import Metric
from lesson.report.groups import MAX_LABELS, Group, groups_of, label_in_words, looks_of, title_of
from lesson.report.table import Column, Table
from lesson.report.words import count, plain_number, target_text, unit_of

_IF_ANY = {"misses": "late updates", "retiered": "tier changes", "lost": "lost updates", "rejected": "rejected updates"}
"""Counts in a summary that have a column only if they are not all zero."""


def results_table(study: Study, title: str = "") -> Table:
    """Return one row per group of runs that differ only in their seed; a cell is the estimate of a measure.

    This is the only definition of the results table. The default title names what all runs have in common.
    """
    groups = groups_of(study)
    columns = _tuned_columns(study) if isinstance(study, TunedStudy) else _columns(study, groups)
    title = title or (title_of(*(run.settings for run in study.runs)) if groups else "no finished runs")
    return Table(columns, groups, f"{title}; {what_is_shown(groups)}" if groups else title)


def printed_table(study: Study, title: str = "") -> Table:
    """Return the table of results for a terminal or a paper, which are narrow.

    A comparison of a few strategies has a column per strategy, and a row per measure.
    """
    table = results_table(study, title)
    return table.transposed() if study.by == ("strategy",) and len(table.rows) < len(table.columns) else table


def _columns(study: Study, groups: Sequence[Group]) -> list[Column]:
    metric = study.metric
    nonzero = [name for name in _IF_ANY if any(run.summary.get(name) for run in study.runs)]
    return [
        *_label_columns(groups),
        Column("seeds", lambda group: len(group.runs)),
        _score_column(metric, f"{metric.name} at the end", lambda group: estimate(group, _in_summary(metric.last10))),
        *(_time_column(metric, target) for target in reached_targets(study)),
        _column("uploads", _in_summary("uploads")),
        _column("uploaded (MB)", _in_summary("bytes_up"), 1e-6, 1),
        _column("energy (kJ)", _in_summary("energy_j"), 1e-3, 1),
        *(_column(_IF_ANY[name], _in_summary(name)) for name in nonzero),
    ]


def _tuned_columns(study: TunedStudy) -> list[Column]:
    """Return the columns of a tuned comparison. Collapsed runs reach no target, and their metric is left out."""
    rules, metric, last = study.rules, study.rules.measured, study.rules.targets[-1]
    rows = study.table().to_dict("records")
    references = {(row["entry"], row["beta"]): row["reference"] for row in rows}

    def value_at(time_s: float) -> Callable[[Group], Estimate]:
        return lambda group: Estimate.of(
            np.array([metric_by(run, rules, time_s) for run in group.runs if not has_collapsed(run, rules.final_s)])
        )

    def spent(heading: str, column: str, target: float, scale: float = 1.0, digits: int = 0) -> Column:
        heading = heading.format(target_text(metric, target))
        values = lambda group: study.spent(group.runs, column, target)  # noqa: E731
        return Column(heading, values, lambda one: cell(one, scale, digits))

    def against(measure: str) -> Callable[[Group], Estimate | None]:
        def compared(group: Group) -> Estimate | None:
            entry, beta = group.runs[0].labels["entry"], group.settings.data.beta
            than = references.get((entry, beta), "")
            if than == entry:
                return None
            return study.compare(entry, than, beta)[measure] if than else Estimate.of(np.array([math.nan]))

        return compared

    return [
        Column("entry", lambda group: _entry(group, rules.final_s), align="left"),
        *([Column("β", lambda group: group.settings.data.beta, in_words)] if len(rules.betas) > 1 else []),
        Column("settings", lambda group: group.runs[0].labels["settings"], align="left"),
        *(_score_column(metric, f"{metric.name} at {time_s:,.0f} s", value_at(time_s)) for time_s in rules.looks_s),
        *(spent("time to {} (s)", "time_s", target) for target in rules.targets),
        spent("uploads to {}", "uploads", last),
        spent("energy to {} (kJ)", "energy_j", last, 1e-3, 1),
        Column("time ratio", against(RATIO), lambda one: ratio_cell(one) if one else "reference"),
        Column(
            f"{metric.name} gain{' (points)' if metric.is_share else ''}",
            against(study.gain),
            lambda one: gain_cell(one, metric) if one else "reference",
        ),
    ]


def _entry(group: Group, time_s: float) -> str:
    """Return the name of an entry, with the number of its runs that have collapsed."""
    lost = sum(has_collapsed(run, time_s) for run in group.runs)
    diverged = sum(bool(run.diverged) for run in group.runs)
    counts = f" ({lost} of {len(group.runs)} collapsed{f', {diverged} diverged' if diverged else ''})" if lost else ""
    return f"{group.runs[0].labels['entry']}{counts}"


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
    """Return the groups with the best metric at the end, but at most so many, in their order and each with a look."""
    order = metric.order([estimate(group, _in_summary(metric.last10)).mean for group in groups])
    best = [groups[place] for place in sorted(order[:most].tolist())]
    looks = looks_of([group.labels for group in best])
    return [replace(group, look=look) for group, look in zip(best, looks, strict=True)]


def time_to(run: Run, target: float) -> float | None:
    """Return the time at which a run reached a target; None if it never did."""
    seconds: float | None = run.summary["time_to_s"][f"{target:g}"]
    return seconds


def estimate(group: Group, measure: Callable[[Run], float | None]) -> Estimate:
    """Return the estimate of a measure over the seeds of a group; the measure may be unknown for some runs."""
    return Estimate.of(np.array([measure(run) for run in group.runs], dtype=float))


def cell(values: Estimate, scale: float = 1.0, digits: int | None = 0, highest: float = math.inf) -> str:
    """Return mean ± half the 95 % interval, or both of two values, or the number of known values if some are unknown.

    An interval that extends below 0 or above `highest` is clipped and written as a range. Without `digits`, the mean
    has four significant digits, and the other values as many decimal places.
    """
    mean, half, known = values.mean, values.half, int(np.count_nonzero(~values.is_bound))

    def number(value: float) -> str:
        return plain_number(scale * value, scale * mean) if digits is None else f"{scale * value:,.{digits}f}"

    if known < len(values.low) or not known:
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
    """Return the cell of an estimate of the metric; accuracies are in percent."""
    return cell(values, 100, 1, highest=1.0) if metric.is_share else cell(values, digits=None)


def ratio_cell(values: Estimate, margin: float = 0.0) -> str:
    """Return the cell of a paired ratio with its verdict; distances from 1 up to `margin` are equivalent."""
    return _compared(values, "{:.2f}", 1.0, margin)


def gain_cell(values: Estimate, metric: Metric, margin: float = 0.0) -> str:
    """Return the cell of a paired difference of the metric with its verdict; differences of accuracy are in points."""
    scale, form = (100, "{:+.1f}") if metric.is_share else (1, "{:+.4g}")
    return _compared(Estimate(scale * values.low, scale * values.high), form, 0.0, scale * margin).replace("-", "−")


def _compared(values: Estimate, form: str, center: float, margin: float) -> str:
    if values.median in ((0.0, math.inf), (-math.inf, math.inf)):
        return "–"
    return f"{values.text(form, brief=True)} ({values.verdict(center, margin)})"


def what_is_shown(groups: Sequence[Group]) -> str:
    """Return a caption that explains the cells of a table."""
    numbers = {len(group.runs) for group in groups}
    if numbers == {1}:
        return "one seed"
    if numbers == {2}:
        return "values of both seeds"
    over = f"{numbers.pop()} seeds" if len(numbers) == 1 else "seeds"
    return f"mean ± 95 % confidence interval over {over}"


def _label_columns(groups: Sequence[Group]) -> list[Column]:
    """Return a column per label, or a single column with the names of the groups if there are too many labels."""
    keys = list(groups[0].labels) if groups else []
    if len(keys) > MAX_LABELS:
        return [Column("configuration", lambda group: group.name, align="left")]
    return [_label_column(key, "right" if place else "left") for place, key in enumerate(keys)]


def _label_column(key: str, align: Literal["left", "right"]) -> Column:
    return Column(short_name(key), lambda group: group.labels[key], label_in_words, align)


def _score_column(metric: Metric, heading: str, values: Callable[[Group], Estimate]) -> Column:
    return Column(f"{heading}{unit_of(metric)}", values, lambda one: score_cell(one, metric))


def _time_column(metric: Metric, target: float) -> Column:
    return _column(f"time to {target_text(metric, target)} (s)", lambda run: time_to(run, target))


def _column(heading: str, measure: Callable[[Run], float | None], scale: float = 1.0, digits: int = 0) -> Column:
    return Column(heading, lambda group: estimate(group, measure), lambda values: cell(values, scale, digits))


def _in_summary(name: str) -> Callable[[Run], float | None]:
    """Return a function that reads a measure from the summary of a run; early archives lack some measures."""
    return lambda run: run.summary.get(name)
