"""A plan as a figure: clients around the base station, latency density (the paper's Fig. 3) and schedule (Fig. 2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from lesson.clock.records import first_tier_note
from lesson.core.arrays import FloatArray
from lesson.planning.plan import Plan
from lesson.report.files import STYLE, save_figure
from lesson.report.palette import tier_colors
from lesson.report.panels import MAX_CLIENTS_DRAWN, MAX_TIERS_NAMED, density, draw_map, draw_tier_blocks
from lesson.report.words import count, digits

MAX_DEADLINES_MARKED = 12
MAX_LINEAR = 50.0
"""Largest ratio of latencies that a linear axis shows; a log scale shows larger ones."""


def draw_plan(plan: Plan, title: str, path: Path | str) -> None:
    """Write the figure of a plan atomically."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7), layout="constrained")
        figure.suptitle(title, fontweight="bold")
        top, bottom = cast(Sequence[SubFigure], figure.subfigures(2, 1, height_ratios=[1.35, 1]))
        if (population := plan.fleet.population) is None or not population.is_placed:
            _draw_density(plan, top.subplots())
        else:
            left, right = top.subplots(1, 2, width_ratios=[1, 1.25])
            all_drawn = draw_map(population.x_km, population.y_km, plan.tiers, left)
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
    """Draw the latencies of all clients that are not outliers; their density or, on a log scale, their number."""
    served, reach_s = plan.fleet.latency_s[plan.tiers > 0], plan.fleet.reach_s
    latencies = served[served <= reach_s]
    is_log = float(latencies.max() / latencies.min()) > MAX_LINEAR
    edges = _log_edges(latencies) if is_log else _bin_edges(latencies, plan.deadline_s)
    weight = 1.0 if is_log else 1 / (len(latencies) * (edges[1] - edges[0]))
    rows = [row for row in plan.tier_rows if row.fastest_s <= reach_s]
    if len(rows) <= MAX_DEADLINES_MARKED:
        axes.hist(
            [plan.fleet.latency_s[row.clients] for row in rows],
            bins=list(edges),
            weights=[np.full(len(row.clients), weight) for row in rows],
            stacked=True,
            color=tier_colors(len(plan.tier_rows))[: len(rows)],
            alpha=0.75,
            label=[f"tier {row.tier} × {len(row.clients)}" for row in rows],
        )
    else:
        axes.hist(latencies, bins=list(edges), density=not is_log, color="0.75")
    curve = None if is_log else density(latencies)
    if curve is not None:
        axes.plot(*curve, color="black", linewidth=1.3)
    num_deadlines = latencies.max() / plan.deadline_s
    num_marked = int(num_deadlines) if num_deadlines <= MAX_DEADLINES_MARKED else int(is_log)
    for multiple in range(1, num_marked + 1):
        axes.axvline(multiple * plan.deadline_s, color="0.45", linestyle="--", linewidth=0.8)
    axes.set(xlabel=f"client latency (s){_left_out(plan)}", ylabel="density (1/s)", title="Latency density")
    if is_log:
        axes.set(xscale="log", ylabel="clients", title="Latencies")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if len(rows) <= MAX_TIERS_NAMED:
        axes.legend(frameon=False, fontsize=8)


def _left_out(plan: Plan) -> str:
    """Return how many clients are not drawn because they are outliers or unreachable; empty if there are none."""
    slow = int(np.count_nonzero(plan.fleet.latency_s[plan.fleet.reachable] > plan.fleet.reach_s))
    lost = len(plan.fleet) - int(np.count_nonzero(plan.fleet.reachable))
    told = [f"{count(slow, 'client')} slower than {digits(plan.fleet.reach_s)} s"] if slow else []
    told += [f"{count(lost, 'unreachable client')}"] if lost else []
    return f"\nnot drawn: {' and '.join(told)}" if told else ""


def _log_edges(latencies: FloatArray) -> FloatArray:
    """Return bin edges on a log scale, slightly beyond the lowest and the highest latency."""
    return np.geomspace(latencies.min() * (1 - 1e-9), latencies.max() * (1 + 1e-9), 25)


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
