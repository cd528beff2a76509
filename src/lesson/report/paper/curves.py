"""The paper's figures of test accuracy: one panel per setting, one line with a 95 % band per series."""

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.paper.fleets import towards_zero
from lesson.paper.items import Item
from lesson.paper.scale import Scale
from lesson.paper.series import Series
from lesson.report.bands import draw_band, points_of
from lesson.report.files import PAGE_IN, in_paper_style
from lesson.report.palette import line_looks
from lesson.report.paper.fleets import draw_towards_zero

AXES = {"round": "global rounds", "time_s": "simulated time (1000 s)"}
MAX_ACROSS = 3


@in_paper_style
def draw_accuracy(item: Item, results: Series, scale: Scale) -> Figure:
    """Draw all panels of an item, at most three in a row."""
    series = [(panel["over"], *map(scale.series, panel["lines"].values())) for panel in item.panels]
    panels = dict(zip(series, item.panels, strict=True)).values()  # in a quick look, several have the same series
    across = MAX_ACROSS if len(panels) % 2 else 2
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(PAGE_IN, 0.25 + (2.0 if across == MAX_ACROSS else 2.2) * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=down == 1)
    for panel, axes in zip(panels, grid.flat, strict=True):
        draw_panel(axes, panel, results, scale)
        if down == 1:
            axes.label_outer()
    return figure


def draw_panel(axes: Axes, panel: Mapping[str, Any], results: Series, scale: Scale) -> None:
    """Draw one panel with a line per series."""
    over, lines = panel["over"], panel["lines"]
    looks = line_looks([(label.lower(),) for label in lines])
    for place, ((label, series), (color, _)) in enumerate(zip(lines.items(), looks, strict=True)):
        runs = results[scale.series(series)]
        until = panel.get("until_s" if over == "time_s" else "rounds", 0)
        points = [points_of(run.up_to(panel.get("rounds")), over, until if run.diverged else None) for run in runs]
        lost = sum(bool(run.diverged) for run in runs)
        said = f"{label} ({lost} of {len(runs)} diverged)" if lost else label
        draw_band(axes, points, color, said, style="--" if panel.get("overlaid", False) and place > 0 else "-")
    axes.set_xlim(0, panel["until_s"] / 1000 if "until_s" in panel and not scale.quick else None)
    axes.set(xlabel=AXES[over], ylabel="test accuracy", title=panel["title"])
    axes.grid(alpha=0.25, linewidth=0.4)
    axes.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


@in_paper_style
def draw_limits(item: Item, results: Series, scale: Scale) -> Figure:
    """Draw LESSON's schedule as τ → 0, and its accuracy in both limits of τ."""
    figure = Figure(figsize=(PAGE_IN, 6.2), layout="constrained")
    grid = figure.subplots(3, 2)
    left, right = grid[0]
    draw_towards_zero(left, right, towards_zero(**item.options))
    for letter, axes in zip("ab", grid[0], strict=True):
        axes.set_title(f"({letter}) schedule as τ → 0")
    for panel, axes in zip(item.panels, grid.flat[2:], strict=True):
        draw_panel(axes, panel, results, scale)
    return figure
