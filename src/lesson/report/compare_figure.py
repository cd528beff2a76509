"""Accuracy over rounds and over simulated time, a line and a 95 % band per strategy."""

from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.report.bands import draw_band
from lesson.report.files import STYLE, save_figure
from lesson.report.palette import series_colours

AXES = {"round": "global rounds", "time_s": "simulated time (s)"}


def draw_comparison(curves: pd.DataFrame, title: str, folder: Path) -> list[Path]:
    """Write accuracy_round.png and accuracy_time.png; their paths."""
    paths = []
    for column, label in AXES.items():
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7, 4.4), layout="constrained")
            axes = figure.subplots()
            _draw(axes, curves, column)
            axes.set(xlabel=label, ylabel="test accuracy", ylim=(0, 1), title=title)
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, loc="lower right")
            path = folder / f"accuracy_{'time' if column == 'time_s' else column}.png"
            save_figure(figure, path)
        paths.append(path)
    return paths


def _draw(axes: Axes, curves: pd.DataFrame, column: str) -> None:
    names = list(dict.fromkeys(curves["strategy"]))
    for name, colour in zip(names, series_colours(names), strict=True):
        seeds = [part for _, part in curves[curves["strategy"] == name].groupby("seed")]
        runs = [(part[column].to_numpy(float), part["accuracy"].to_numpy(float)) for part in seeds]
        draw_band(axes, runs, colour, f"{name} ({len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'})")
