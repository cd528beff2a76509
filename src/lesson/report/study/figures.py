"""The figures of a study for a paper: the metric over time and costs, times to targets, the clients, their latency."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.files import in_paper_style
from lesson.report.metric_words import target_text
from lesson.report.study.compare_text import reached_targets
from lesson.report.study.fleet_figures import draw_clients, draw_latency, kept_clients
from lesson.report.study.groups import Group, groups_of, kind_of_time
from lesson.report.study.metric_figure import GroupCurves, draw_lines, group_curves

HEIGHT = 0.68
"""Height of a figure as a fraction of its width."""
MAX_ROWS = 24
MAX_NAMES_INSIDE = 4
LETTER_IN, HANDLE_IN, LINE_IN = 0.055, 0.5, 0.16
"""Width of a letter in a legend, width of a handle, and height of a line, in inches with some margin."""
_MARKERS = {"-": "o", "--": "s", ":": "^", "-.": "D"}


def draw_figures(study: Study, width_in: float) -> tuple[dict[str, Figure], list[str]]:
    """Return all figures that the data permits, by name, and notes about figures and runs that are missing."""
    groups, table, metric = group_curves(study), study.means(), study.metric
    curves = [curve for _, runs in groups for curve in runs if not curve.empty]
    draws: dict[str, Callable[[], Figure]] = {}
    notes = [f"{name} is not included: {reason}" for name, reason in study.failures.items()]
    if not curves:
        notes.append(f"no {metric.name} figures: no round ended within the limits")
    else:
        known = not any(curve["energy_j"].isna().any() for curve in curves)
        overs = ["time", "round", "uploads", *(["energy"] if known else [])]
        draws |= {f"{metric.name}_{over}": partial(_draw_curves, groups, metric, over, width_in) for over in overs}
    if targets := reached_targets(table, metric):
        draws[f"time_to_{metric.name}"] = partial(_draw_times, study, table, targets, width_in)
    elif metric.targets:
        easiest = target_text(metric, metric.targets[0])
        notes.append(f"no figure of times to targets: no run reached {easiest} in three consecutive evaluations")
    clients, said = kept_clients(study)
    if clients is not None:
        draws["latency"] = partial(draw_latency, clients, width_in)
        if clients.placed:
            draws["clients"] = partial(draw_clients, clients, width_in)
    return {name: draw() for name, draw in draws.items()}, notes + said


@in_paper_style
def _draw_curves(groups: Sequence[GroupCurves], metric: Metric, over: str, width_in: float) -> Figure:
    """Draw a line with a 95 % band per group."""
    figure = Figure(figsize=(width_in, HEIGHT * width_in), layout="constrained")
    axes = figure.subplots()
    draw_lines(axes, groups, metric, over)
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25, linewidth=0.4)
    if len(axes.lines) <= MAX_NAMES_INSIDE:
        axes.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")
    else:
        _name_below(figure, axes)
    return figure


@in_paper_style
def _draw_times(study: Study, table: pd.DataFrame, targets: list[float], width_in: float) -> Figure:
    """Draw a dot with its 95 % interval per target and group; if not every seed reaches the target, say how many do."""
    groups = groups_of(study)
    shown = targets[-max(1, MAX_ROWS // len(groups)) :]
    figure = Figure(figsize=(width_in, max(1.3, 0.6 + 0.12 * (len(groups) + 0.6) * len(shown))), layout="constrained")
    axes = figure.subplots()
    places = (np.arange(len(groups)) - (len(groups) - 1) / 2) / (len(groups) + 0.6)
    for group, place, (_, figures) in zip(groups, places, table.iterrows(), strict=True):
        _draw_dots(axes, group, figures, shown, place)
    axes.set_yticks(range(len(shown)), [target_text(study.metric, target) for target in shown])
    axes.tick_params(left=False)
    axes.set(xlabel=f"{kind_of_time(study.runs)} (s)", ylabel=f"{study.metric.name} reached")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, None)
    axes.hlines(np.arange(len(shown) - 1) + 0.5, 0, 1, transform=axes.get_yaxis_transform(), color="0.85", lw=0.5)
    axes.grid(axis="x", alpha=0.25, linewidth=0.4)
    _name_below(figure, axes)
    return figure


def _draw_dots(axes: Axes, group: Group, figures: pd.Series, targets: list[float], place: float) -> None:
    color, style = group.look
    names = [f"time_to_{target:g}" for target in targets]
    means, halves = (figures[[f"{name}{end}" for name in names]].to_numpy(float) for end in ("", "_ci95"))
    at = np.arange(len(targets)) + place
    halves = np.nan_to_num(halves)
    possible = np.stack([np.fmin(halves, means), halves])  # times cannot be negative
    axes.errorbar(means, at, xerr=possible, fmt=_MARKERS[style], color=color, label=group.name, capsize=1.5, lw=0.8)
    for name, mean, y in zip(names, means, at, strict=True):
        if np.isnan(mean):
            said = f"{figures[f'{name}_seeds']:.0f} of {figures['seeds']:.0f} seeds"
            edge = axes.get_yaxis_transform()
            axes.plot([1], [y], _MARKERS[style], color=color, markerfacecolor="white", transform=edge, clip_on=False)
            axes.annotate(said, (1.02, y), xycoords=edge, va="center", fontsize=7)


def _name_below(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes, in as many columns as fit, and enlarge the figure accordingly."""
    handles, names = axes.get_legend_handles_labels()
    longest_in = HANDLE_IN + LETTER_IN * max(map(len, names))
    columns = max(1, min(len(names), int(figure.get_figwidth() / longest_in)))
    figure.set_figheight(figure.get_figheight() + LINE_IN * (math.ceil(len(names) / columns) + 1))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
