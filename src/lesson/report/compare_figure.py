"""Accuracy over rounds, simulated time, uploads or energy: a line and a 95 % band per strategy, or whatever varies."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from lesson.errors import unknown
from lesson.report.bands import draw_band
from lesson.report.files import STYLE, ShownFigure, save_figure
from lesson.report.groups import groups_of, title_of
from lesson.study import Study

OVER = {
    "round": ("round", "global rounds", 1.0),
    "time": ("time_s", "simulated time (s)", 1.0),
    "uploads": ("uploads", "uploads", 1.0),
    "energy": ("energy_j", "energy (kJ)", 1e-3),
}
"""What accuracy is drawn over: the column of a study's curves, its name for readers, its unit."""


def draw_accuracy(study: Study, by: str) -> ShownFigure:
    """Accuracy over time or round, with the settings that all runs share above it."""
    if by not in ("time", "round"):
        raise unknown("by", by, ["time", "round"])
    return _draw(study, by, title_of(study.runs[0].settings, study.by) if study.runs else "")


def draw_comparison(study: Study, title: str, folder: Path) -> list[Path]:
    """Write accuracy_round.png and accuracy_time.png; their paths."""
    paths = [folder / f"accuracy_{over}.png" for over in ("round", "time")]
    for over, path in zip(("round", "time"), paths, strict=True):
        save_figure(_draw(study, over, title), path)
    return paths


def draw_lines(axes: Axes, study: Study, over: str) -> None:
    """A line and a band for each group of a study's runs, and what the axes mean."""
    column, label, unit = OVER[over]
    for group in groups_of(study):
        curves = [Study([run]).curves() for run in group.runs]
        points = [(unit * curve[column].to_numpy(float), curve["accuracy"].to_numpy(float)) for curve in curves]
        seeds = f"{len(points)} {'seed' if len(points) == 1 else 'seeds'}"
        draw_band(axes, points, group.look[0], f"{group.name} ({seeds})", group.look[1])
    axes.set(xlabel=label, ylabel="test accuracy")


def _draw(study: Study, over: str, title: str) -> ShownFigure:
    with matplotlib.rc_context(STYLE):
        figure = ShownFigure(figsize=(7, 4.4), layout="constrained")
        axes = figure.subplots()
        draw_lines(axes, study, over)
        axes.set(ylim=(0, 1), title=title)
        axes.grid(alpha=0.25)
        if study.runs:
            axes.legend(frameon=False, loc="lower right")
    return figure
