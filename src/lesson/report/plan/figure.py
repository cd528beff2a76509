"""A plan as a figure: clients around the base station, latency density (the paper's Fig. 3) and schedule (Fig. 2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from lesson.clock.records import first_tier_note
from lesson.core.arrays import FloatArray
from lesson.planning.plan import Plan
from lesson.report.files import STYLE, check_figure_path, save_figure
from lesson.report.palette import tier_colors
from lesson.report.panels import MAX_CLIENTS_DRAWN, MAX_TIERS_NAMED, density, draw_map, draw_tier_blocks

MAX_DEADLINES_MARKED = 12


def draw_plan(plan: Plan, title: str, path: Path | str) -> None:
    """Write the figure of a plan atomically."""
    path = Path(path)
    check_figure_path(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7), layout="constrained")
        figure.suptitle(title, fontweight="bold")
        top, bottom = cast(Sequence[SubFigure], figure.subfigures(2, 1, height_ratios=[1.35, 1]))
        if (people := plan.fleet.population) is None:
            _draw_density(plan, top.subplots())
        else:
            left, right = top.subplots(1, 2, width_ratios=[1, 1.25])
            all_drawn = draw_map(people.x_km, people.y_km, plan.tiers, left)
            some = "" if all_drawn else f" (first {MAX_CLIENTS_DRAWN:,})"
            left.set_title(f"Clients by tier{some}")
            _draw_density(plan, right)
        axes = bottom.subplots()
        hidden = draw_tier_blocks(plan, axes)
        more = f" ({hidden} slower tiers not drawn)" if hidden else ""
        axes.set_title(f"Schedule: a block is a local training, a diamond its aggregation{more}")
        figure.supxlabel(first_tier_note(plan.fleet), fontsize=9, color="0.35")
        save_figure(figure, path)


def _draw_density(plan: Plan, axes: Axes) -> None:
    latencies = plan.fleet.latency_s[plan.tiers > 0]
    edges = _bin_edges(latencies, plan.deadline_s)
    weight = 1 / (len(latencies) * (edges[1] - edges[0]))
    rows = plan.tier_rows
    if len(rows) <= MAX_DEADLINES_MARKED:
        axes.hist(
            [plan.fleet.latency_s[row.clients] for row in rows],
            bins=list(edges),
            weights=[np.full(len(row.clients), weight) for row in rows],
            stacked=True,
            color=tier_colors(len(rows)),
            alpha=0.75,
            label=[f"tier {row.tier} × {len(row.clients)}" for row in rows],
        )
    else:
        axes.hist(latencies, bins=list(edges), density=True, color="0.75")
    curve = density(latencies)
    if curve is not None:
        axes.plot(*curve, color="black", linewidth=1.3)
    num_deadlines = latencies.max() / plan.deadline_s
    for multiple in range(1, int(num_deadlines) + 1 if num_deadlines <= MAX_DEADLINES_MARKED else 0):
        axes.axvline(multiple * plan.deadline_s, color="0.45", linestyle="--", linewidth=0.8)
    axes.set(xlabel="client latency (s)", ylabel="density (1/s)", title="Latency density")
    if len(rows) <= MAX_TIERS_NAMED:
        axes.legend(frameon=False, fontsize=8)


def _bin_edges(latencies: FloatArray, deadline_s: float) -> FloatArray:
    """Return bin edges that include the multiples of the deadline, so that no bin spans two tiers.

    Bins ignore the deadline if it is infinite or there are more than MAX_DEADLINES_MARKED multiples.
    """
    num_deadlines = float(np.ceil(latencies.max() / deadline_s))
    if num_deadlines <= MAX_DEADLINES_MARKED and np.isfinite(deadline_s):
        per_deadline = int(np.ceil(24 / num_deadlines))
        # Slightly wider bins, because a latency of exactly one deadline belongs to the bin before it.
        return np.arange(num_deadlines * per_deadline + 1) * (deadline_s / per_deadline) * (1 + 1e-9)
    return np.histogram_bin_edges(latencies, bins=24)
