"""Figures of the metric over rounds, simulated time, uploads or energy: one line with a 95 % band per group of runs."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes

from lesson.core.errors import unknown
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.bands import draw_band
from lesson.report.files import STYLE, ShownFigure, save_figure
from lesson.report.study.groups import Group, groups_of, kind_of_time, rounds_are_arrivals, title_of
from lesson.report.words import count

MAX_LINES = 12
"""Most lines in a figure; `Study.filter` selects others."""
MAX_INSIDE = 4
"""Most lines for which the legend fits into the axes."""
GroupCurves = tuple[Group, list[pd.DataFrame]]
"""A group and, for each of its runs, a table of evaluations."""
OVER = {
    "round": ("round", "global rounds", 1.0),
    "time": ("time_s", "simulated time (s)", 1.0),
    "uploads": ("uploads", "uploads", 1.0),
    "energy": ("energy_j", "energy (kJ)", 1e-3),
}
"""What the metric can be drawn over: the column of a study's curves, the axis label, and the factor between units."""


def draw_metric(study: Study, by: str) -> ShownFigure:
    """Draw the metric over time or rounds, titled with settings that all runs share; of many groups, the best."""
    if by not in ("time", "round"):
        raise unknown("axis", by, ["time", "round"])
    groups, title = group_curves(study), title_of(*(run.settings for run in study.runs))
    metric = study.metric
    if len(groups) > MAX_LINES:
        order = metric.order(study.means()[metric.last10])[:MAX_LINES]
        best = "most accurate" if metric.is_share else "best"
        title = ": ".join(filter(None, [title, f"the {best} {MAX_LINES} of {len(groups)}"]))
        groups = [groups[place] for place in sorted(order.tolist())]
    return _draw(groups, metric, by, title)


def draw_comparison(study: Study, title: str, folder: Path | str) -> list[Path]:
    """Write METRIC_round.png and METRIC_time.png and return their paths; none if there was no evaluation."""
    folder, metric = Path(folder), study.metric
    groups = group_curves(study)
    if all(curve.empty for _, curves in groups for curve in curves):
        return []
    paths = [folder / f"{metric.name}_{over}.png" for over in ("round", "time")]
    for over, path in zip(("round", "time"), paths, strict=True):
        save_figure(_draw(groups, metric, over, title), path)
    return paths


def group_curves(study: Study) -> list[GroupCurves]:
    """Return the groups of a study with the evaluations of their runs; several figures can share the result."""
    return [(group, [Study([run]).curves() for run in group.runs]) for group in groups_of(study)]


def draw_lines(axes: Axes, groups: Sequence[GroupCurves], metric: Metric, over: str) -> None:
    """Draw a line and a band for each group, and label the axes."""
    column, label, unit = OVER[over]
    label = f"{kind_of_time(run for group, _ in groups for run in group.runs)} (s)" if over == "time" else label
    arrivals = [group.name for group, _ in groups if rounds_are_arrivals(group.runs[0].settings)]
    if over == "round" and arrivals:
        label = f"{label} ({', '.join(arrivals[:3])}{', …' if len(arrivals) > 3 else ''}: arrivals)"
    for group, curves in groups:
        points = [(unit * curve[column].to_numpy(float), curve[metric.name].to_numpy(float)) for curve in curves]
        draw_band(axes, points, group.look[0], f"{group.name} ({count(len(points), 'seed')})", group.look[1], metric)
    axes.set(xlabel=label, ylabel=f"test {metric.name}")


def _draw(groups: Sequence[GroupCurves], metric: Metric, over: str, title: str) -> ShownFigure:
    with matplotlib.rc_context(STYLE):
        figure = ShownFigure(figsize=(7 if len(groups) <= MAX_INSIDE else 9.4, 4.4), layout="constrained")
        axes = figure.subplots()
        draw_lines(axes, groups, metric, over)
        axes.set(title=title, **({"ylim": metric.bounds} if metric.is_share else {}))
        axes.grid(alpha=0.25)
        if len(groups) > MAX_INSIDE:
            figure.legend(frameon=False, loc="outside right upper")
        elif groups:
            axes.legend(frameon=False, loc="lower right" if metric.higher_is_better else "upper right")
    return figure
