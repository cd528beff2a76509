"""The figure of a group with levels: the metric and time over increasing levels of a condition."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.experiments.tuned.design import TunedComparison
from lesson.experiments.tuned.entries import Group
from lesson.experiments.tuned.measures import COLLAPSED, time_names, value_names
from lesson.report.files import PAGE_IN, in_paper_style
from lesson.report.metric_words import metric_column, target_text, unit_of
from lesson.report.palette import line_looks

SPREAD = 0.06
"""Horizontal distance between the points of one level, where levels are 1 apart."""


@in_paper_style
def draw_levels(design: TunedComparison, group: Group, figures: pd.DataFrame) -> Figure:
    """Draw the final metric and time to the first target over the levels, one row of panels per β.

    On the left, an open circle is the mean of an entry of which some runs have collapsed, and a cross at the value of
    guessing an entry of which all have. On the right, a cross above the other points means that not every seed reaches
    the target.
    """
    rules, metric = design.rules, design.rules.measured
    figure = Figure(figsize=(PAGE_IN, 0.6 + 2.2 * len(rules.betas)), layout="constrained")
    panels = figure.subplots(len(rules.betas), 2, squeeze=False)
    (last, scale, _), time = metric_column(metric, value_names(rules)[-1]), time_names(rules)[0]
    for beta, (left, right) in zip(rules.betas, panels, strict=True):
        at_beta = figures[figures["beta"] == beta].set_index("entry")
        _draw_lines(left, design, group, at_beta, last, scale, never=scale * metric.of_diverged)
        _draw_lines(right, design, group, at_beta, time, 1 / 1000, never=rules.final_s / 1000)
        left.set(ylabel=f"{metric.name} at {rules.final_s:,.0f} s{unit_of(metric)}")
        left.set_ylim(max(metric.bounds[0], left.get_ylim()[0]), None)
        right.set(
            ylabel=f"time to {target_text(metric, rules.targets[0])} (1000 s)", ylim=(0, 1.06 * rules.final_s / 1000)
        )
        if len(rules.betas) > 1:
            left.set_title(f"β = {beta:g}", loc="left")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _draw_lines(
    axes: Axes,
    design: TunedComparison,
    group: Group,
    rows: pd.DataFrame,
    name: str,
    scale: float,
    never: float = np.nan,
) -> None:
    """Draw a line with intervals through the entries of the same `line`, which looks the same in every group.

    An entry without a mean is drawn as a cross at `never`, one of which some runs have collapsed as an open circle.
    """
    levels, lines = list(group.levels), dict[str, list[str]]()
    names = list(dict.fromkeys(entry.line for entry in design.entries))
    looks = dict(zip(names, line_looks(names), strict=True))
    for entry in design.entries:
        if entry.group == group.name and entry.name in rows.index:
            lines.setdefault(entry.line, []).append(entry.name)
    for place, (line, entries) in enumerate(lines.items()):
        color, style = looks[line]
        shift = SPREAD * (place - (len(lines) - 1) / 2)
        x = np.array([levels.index(design.by_name[entry].level) + shift for entry in entries])
        y = rows.loc[entries, name].to_numpy(dtype=float) * scale
        half = np.nan_to_num(rows.loc[entries, f"{name}_ci95"].to_numpy(dtype=float)) * scale
        axes.errorbar(x, y, yerr=half, color=color, linestyle=style, marker="o", markersize=3, capsize=2, label=line)
        some = (rows.loc[entries, COLLAPSED].to_numpy() > 0) & ~np.isnan(y)
        if some.any():
            axes.plot(x[some], y[some], "o", color=color, markerfacecolor="white", markersize=3, zorder=3)
        axes.plot(x[np.isnan(y)], np.full(np.isnan(y).sum(), never), "x", color=color, markersize=4)
    axes.set_xticks(range(len(levels)), levels)
    axes.grid(alpha=0.25, linewidth=0.4)
