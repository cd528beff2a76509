"""Accuracy over rounds and over simulated time, a line and a 95 % band per strategy."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.arrays import FloatArray
from lesson.report.files import STYLE, save_figure
from lesson.study import half_interval

# Okabe and Ito's colours, told apart by colour-blind readers; the same strategy has the same colour everywhere.
COLOURS = {"lesson": "#0072B2", "fedavg": "#D55E00", "fedcs": "#009E73"}
OTHERS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
AXES = {"round": "global rounds", "time_s": "simulated time (s)"}


def strategy_colours(names: list[str]) -> dict[str, str]:
    """A colour for each strategy."""
    others = iter(OTHERS * len(names))
    return {name: COLOURS.get(name) or next(others) for name in names}


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
    colours = strategy_colours(names)
    for name in names:
        seeds = [part for _, part in curves[curves["strategy"] == name].groupby("seed")]
        at = np.unique(np.concatenate([part[column].to_numpy(float) for part in seeds]))
        at = at[(at >= max(part[column].min() for part in seeds)) & (at <= min(part[column].max() for part in seeds))]
        values = np.array([np.interp(at, part[column].to_numpy(float), part["accuracy"].to_numpy()) for part in seeds])
        mean = values.mean(axis=0)
        label = f"{name} ({len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'})"
        axes.plot(at, mean, color=colours[name], label=label, linewidth=1.6)
        if len(seeds) > 1:
            half: FloatArray = np.array([half_interval(value) for value in values.T])
            low, high = np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)
            axes.fill_between(at, low, high, color=colours[name], alpha=0.18, linewidth=0)
