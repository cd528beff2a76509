"""Figures of a study: the metric over time and costs, for notebooks and papers, and times to targets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.core.errors import unknown
from lesson.experiments.naming import short_name
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.bands import draw_band
from lesson.report.files import STYLE, ShownFigure, in_paper_style
from lesson.report.fleet_figures import clients_to_draw, draw_clients, draw_latency
from lesson.report.groups import Group, groups_of, kind_of_time, name_of, rounds_are_arrivals, title_of
from lesson.report.results import best_groups, estimate, reached_targets, time_to
from lesson.report.words import count, target_text

OVER = {
    "round": ("round", "global rounds", 1.0),
    "time": ("time_s", "simulated time (s)", 1.0),
    "uploads": ("uploads", "uploads", 1.0),
    "energy": ("energy_j", "energy (kJ)", 1e-3),
}
"""The possible x axes: the column of a study's curves, the axis label, and the factor between units."""
MAX_LINES = 12
"""Maximum number of lines in a figure; `Study.filter` selects others."""
MAX_INSIDE = 4
"""Maximum number of lines for which the legend fits into the axes."""
MAX_COLUMNS = 3
"""Maximum number of panels side by side."""
HEIGHT = 0.68
"""Height of a figure as a fraction of its width."""
MAX_ROWS = 24
LETTER_IN, HANDLE_IN, LINE_IN = 0.055, 0.5, 0.16
"""Width of a letter in a legend, width of a handle, and height of a line, in inches with some margin."""
_MARKERS = {"-": "o", "--": "s", ":": "^", "-.": "D"}


def draw_metric(study: Study, by: str, *, facet: str = "", bands: bool = True) -> ShownFigure:
    """Draw the metric over time, rounds, uploads or energy for up to MAX_LINES groups, the best ones.

    The title names the settings that all runs share. With `facet`, there is one panel per value of a label.
    """
    if by not in OVER:
        raise unknown("axis", by, list(OVER))
    panels = (_panels(study, facet) if facet else {}) or {"": set(map(id, study.runs))}
    others = tuple(key for key in study.by if not facet or key != _label(study, facet)) or ("strategy",)
    metric, groups = study.metric, groups_of(replace(study, by=others))
    title = title_of(*(run.settings for run in study.runs))
    if len(groups) > MAX_LINES:
        best = "most accurate" if metric.is_share else "best"
        title = ": ".join(filter(None, [title, f"the {best} {MAX_LINES} of {len(groups)}"]))
        groups = best_groups(groups, metric, MAX_LINES)
    columns = min(MAX_COLUMNS, len(panels))
    rows, inside = math.ceil(len(panels) / columns), len(groups) <= MAX_INSIDE and len(panels) == 1
    width, height = (7.0, 4.4) if len(panels) == 1 else (4.0 * columns, 3.4 * rows)
    with matplotlib.rc_context(STYLE):
        figure = ShownFigure(figsize=(width if inside else width + 2.4, height), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (heading, runs) in zip(grid.flat, panels.items(), strict=False):
            chosen = [replace(group, runs=[run for run in group.runs if id(run) in runs]) for group in groups]
            draw_lines(axes, [group for group in chosen if group.runs], metric, by, bands)
            axes.set(title=heading or title, **({"ylim": metric.bounds} if metric.is_share else {}))
            axes.grid(alpha=0.25)
            axes.label_outer()
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        if facet:
            figure.suptitle(title)
        _add_legend(figure, inside)
    return figure


def _add_legend(figure: Figure, inside: bool) -> None:
    """Add a legend that names each line once, inside a single panel or beside several."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
    if not inside:
        figure.legend(lines.values(), lines.keys(), frameon=False, loc="outside right upper")
    elif lines:
        figure.axes[0].legend(lines.values(), lines.keys(), framealpha=0.8, edgecolor="none")


def _panels(study: Study, facet: str) -> dict[str, set[int]]:
    """Return the ids of the runs in each panel, by the panel's heading."""
    key = _label(study, facet)
    panels: dict[str, set[int]] = {}
    for labels, runs in study.groups().items():
        heading = name_of({key: labels[study.by.index(key)]}) or f"no {short_name(key)}"
        panels.setdefault(heading, set()).update(map(id, runs))
    return panels


def _label(study: Study, name: str) -> str:
    """Return the label with this full name or, without its section, this short name."""
    for key in study.by:
        if name in (key, short_name(key), key.rpartition(".")[2]):
            return key
    raise unknown("label", name, [short_name(key) for key in study.by])


def draw_lines(axes: Axes, groups: Sequence[Group], metric: Metric, over: str, bands: bool = True) -> None:
    """Draw a line and a band for each group, and label the axes."""
    column, label, unit = OVER[over]
    label = f"{kind_of_time(run for group in groups for run in group.runs)} (s)" if over == "time" else label
    arrivals = [group.name for group in groups if rounds_are_arrivals(group.settings)]
    if over == "round" and arrivals:
        label = f"{label} ({', '.join(arrivals[:3])}{', …' if len(arrivals) > 3 else ''}: arrivals)"
    for group in groups:
        curves = [run.curve for run in group.runs if column in run.curve]
        points = [(unit * curve[column].to_numpy(float), curve[metric.name].to_numpy(float)) for curve in curves]
        name = f"{_in_legend(group)} ({count(len(group.runs), 'seed')})"
        draw_band(axes, points, group.look[0], name, group.look[1], metric, shaded=bands)
    axes.set(xlabel=label, ylabel=f"test {metric.name}")


_plain_text = matplotlib.rc_context({"text.parse_math": False})
"""Decorator of functions that draw names of groups, which may contain paths and therefore dollar signs."""


def draw_figures(study: Study, width_in: float) -> tuple[dict[str, Figure], list[str]]:
    """Return all figures that the data allows, by name, and notes about missing figures and runs."""
    groups, metric = groups_of(study), study.metric
    curves = [run.curve for run in study.runs if len(run.curve)]
    draws: dict[str, Callable[[], Figure]] = {}
    notes = list[str]()
    if not curves:
        notes.append(f"no {metric.name} figures: no round ended within the limits")
    else:
        overs = [over for over, (column, *_) in OVER.items() if all(column in curve for curve in curves)]
        draws |= {f"{metric.name}_{over}": partial(_draw_curves, groups, metric, over, width_in) for over in overs}
    if targets := reached_targets(study):
        draws[f"time_to_{metric.name}"] = partial(_draw_times, groups, metric, targets, width_in)
    elif metric.targets:
        easiest = target_text(metric, metric.targets[0])
        notes.append(f"no figure of times to targets: no run reached {easiest} in three consecutive evaluations")
    clients, said = clients_to_draw(study)
    if clients:
        settings = study.runs[0].settings
        draws["latency"] = partial(draw_latency, clients, settings.strategy.deadline_s, width_in)
        if clients["clients"]["x_km"]:
            draws["clients"] = partial(draw_clients, clients, settings, width_in)
    return {name: draw() for name, draw in draws.items()}, notes + said


@in_paper_style
@_plain_text
def _draw_curves(groups: Sequence[Group], metric: Metric, over: str, width_in: float) -> Figure:
    """Draw a line with a 95 % band per group."""
    figure = Figure(figsize=(width_in, HEIGHT * width_in), layout="constrained")
    axes = figure.subplots()
    draw_lines(axes, groups, metric, over)
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25, linewidth=0.4)
    if len(axes.lines) <= MAX_INSIDE:
        axes.legend(frameon=True, framealpha=0.8, edgecolor="none")
    else:
        _name_below(figure, axes)
    return figure


@in_paper_style
@_plain_text
def _draw_times(groups: Sequence[Group], metric: Metric, targets: list[float], width_in: float) -> Figure:
    """Draw the mean time to each target with its 95 % interval, or the number of seeds that reach it if not all do."""
    shown = targets[-max(1, MAX_ROWS // len(groups)) :]
    figure = Figure(figsize=(width_in, max(1.3, 0.6 + 0.12 * (len(groups) + 0.6) * len(shown))), layout="constrained")
    axes = figure.subplots()
    places = (np.arange(len(groups)) - (len(groups) - 1) / 2) / (len(groups) + 0.6)
    for group, place in zip(groups, places, strict=True):
        _draw_dots(axes, group, shown, place)
    axes.set_yticks(range(len(shown)), [target_text(metric, target) for target in shown])
    axes.tick_params(left=False)
    axes.set(
        xlabel=f"{kind_of_time(run for group in groups for run in group.runs)} (s)", ylabel=f"{metric.name} reached"
    )
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, None)
    axes.hlines(np.arange(len(shown) - 1) + 0.5, 0, 1, transform=axes.get_yaxis_transform(), color="0.85", lw=0.5)
    axes.grid(axis="x", alpha=0.25, linewidth=0.4)
    _name_below(figure, axes)
    return figure


def _draw_dots(axes: Axes, group: Group, targets: list[float], place: float) -> None:
    color, style = group.look
    times = [estimate(group, partial(time_to, target=target)) for target in targets]
    means, halves = np.array([one.mean for one in times]), np.nan_to_num([one.half for one in times])
    at = np.arange(len(targets)) + place
    possible = np.stack([np.fmin(halves, means), halves])  # times cannot be negative
    axes.errorbar(
        means, at, xerr=possible, fmt=_MARKERS[style], color=color, label=_in_legend(group), capsize=1.5, lw=0.8
    )
    for one, y in zip(times, at, strict=True):
        if one.is_bound.any():
            reached = f"{np.count_nonzero(~one.is_bound)} of {count(len(group.runs), 'seed')}"
            edge = axes.get_yaxis_transform()
            axes.plot([1], [y], _MARKERS[style], color=color, markerfacecolor="white", transform=edge, clip_on=False)
            axes.annotate(reached, (1.02, y), xycoords=edge, va="center", fontsize=7)


def _in_legend(group: Group) -> str:
    """Return the name of a group for a legend; matplotlib leaves out names that start with an underscore."""
    return f" {group.name}" if group.name.startswith("_") else group.name


def _name_below(figure: Figure, axes: Axes) -> None:
    """Add a legend below the axes, in as many columns as fit, and enlarge the figure to hold it."""
    handles, names = axes.get_legend_handles_labels()
    longest_in = HANDLE_IN + LETTER_IN * max(map(len, names))
    columns = max(1, min(len(names), int(figure.get_figwidth() / longest_in)))
    figure.set_figheight(figure.get_figheight() + LINE_IN * (math.ceil(len(names) / columns) + 1))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
