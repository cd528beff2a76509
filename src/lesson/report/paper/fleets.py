"""The paper's Fig. 2 and 3, and how LESSON approaches asynchronous FL, as figures for a two-column paper."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter, StrMethodFormatter

from lesson.fleet.fleet import draw_fleet
from lesson.learn.metric import ACCURACY, Metric
from lesson.paper.fleets import PAPER_MEDIAN_S, SCENARIOS, merged_arrivals
from lesson.paper.items import base_settings
from lesson.planning.plan import Plan, make_plan
from lesson.report.bands import draw_band
from lesson.report.files import COLUMN_IN, PAGE_IN, in_paper_style
from lesson.report.panels import density, draw_tier_blocks
from lesson.report.words import count

BLUE, ORANGE = "#0072B2", "#D55E00"


@in_paper_style
def draw_schedule(deadline_s: float = 20.0, num_rounds: int = 12, seed: int = 0) -> Figure:
    """Draw Fig. 2: local training, uploads and aggregations of each tier of `released` over the global rounds."""
    plan = make_plan(draw_fleet(base_settings(), seed=seed), deadline_s, num_rounds=num_rounds)
    figure = Figure(figsize=(PAGE_IN, 0.95 + 0.26 * len(plan.tier_rows)), layout="constrained")
    axes = figure.subplots()
    draw_tier_blocks(plan, axes, strength=0.6)
    _mark_uploads(plan, axes)
    _name_rounds(plan, axes)
    handles = [
        Patch(color="0.7", label="local training"),
        Line2D([], [], color="black", linestyle="none", marker="|", markersize=5, label="arrival of an update"),
        Line2D([], [], color="black", linestyle="none", marker="D", markersize=4, label="aggregation"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _mark_uploads(plan: Plan, axes: Axes) -> None:
    """Mark the arrival of each update with a tick in the row of its tier."""
    rows = np.searchsorted([row.tier for row in plan.tier_rows], plan.tiers)
    for record, arrived_s in merged_arrivals(plan.rounds, plan.fleet):
        axes.vlines(arrived_s, rows[record.merged] - 0.3, rows[record.merged] + 0.3, color="black", linewidth=0.4)


def _name_rounds(plan: Plan, axes: Axes) -> None:
    """Label the axes: seconds at the bottom, global rounds at the top, tiers and their clients on the left."""
    axes.set_xticks([0, *(record.end_s for record in plan.rounds)])
    named = [f"tier {row.tier}: {count(len(row.clients), 'client')}" for row in plan.tier_rows]
    axes.set_yticks(range(len(named)), named)
    axes.tick_params(left=False)
    above = axes.secondary_xaxis("top")
    middles_s = [(record.start_s + record.end_s) / 2 for record in plan.rounds]
    above.set_xticks(middles_s, [f"{record.round}" for record in plan.rounds])
    above.tick_params(length=0)
    above.set_xlabel("global round")


@in_paper_style
def draw_latency_density(num_draws: int = 200, seed: int = 0, deadline_s: float = 20.0) -> Figure:
    """Draw Fig. 3: the density of client latency over many draws, one panel per scenario."""
    figure = Figure(figsize=(COLUMN_IN, 2.5), layout="constrained")
    panels = figure.subplots(len(SCENARIOS), 1, sharex=True)
    for preset, axes in zip(SCENARIOS, panels, strict=True):
        settings = base_settings(preset)
        draws = range(seed, seed + num_draws)
        latencies = np.concatenate([draw_fleet(settings, seed=draw).latency_s for draw in draws])
        axes.hist(latencies, bins=np.arange(np.ceil(latencies.max()) + 1), density=True, color="#BFDBEB")
        if (curve := density(latencies)) is not None:
            axes.plot(*curve, color=BLUE, label=f"{preset} parameters")
        median_s = float(np.median(latencies))
        axes.axvline(median_s, color=BLUE, linestyle="--", linewidth=0.8, label=f"median: {median_s:.1f} s")
        axes.axvline(
            PAPER_MEDIAN_S, color=ORANGE, linestyle=":", label=f"median in the paper: about {PAPER_MEDIAN_S:g} s"
        )
        axes.axvline(deadline_s, color="black", linewidth=0.6, label=f"deadline τ = {deadline_s:g} s")
        axes.set(ylabel="density (1/s)", ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.legend(handles=axes.lines if axes is panels[0] else axes.lines[:2], loc="upper right")
    figure.align_ylabels()
    panels[-1].set_xlim(0, None)
    panels[-1].set_xlabel("client latency (s)")
    return figure


def draw_towards_zero(left: Axes, right: Axes, frame: pd.DataFrame) -> None:
    """Draw how close LESSON is to asynchronous FL over τ, with 95 % bands, from `paper.fleets.towards_zero`."""
    _draw_draws(left, frame, "single_share", ACCURACY)  # a share, which is from 0 to 1
    left.set(ylabel="single-update aggregations", ylim=(0, 1))
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    _draw_draws(right, frame, "wait_s", Metric("wait_s", targets=()))
    deadlines_s = np.unique(frame["deadline_s"])
    right.plot(deadlines_s, deadlines_s / 2, color="0.4", linestyle="--", linewidth=0.8, label="τ/2")
    right.set(ylabel="wait for aggregation (s)", yscale="log")
    right.legend(loc="upper left")
    for axes in (left, right):
        axes.set(xlabel="deadline τ (s)", xscale="log")
        axes.xaxis.set_major_locator(LogLocator(numticks=12))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _draw_draws(axes: Axes, frame: pd.DataFrame, name: str, metric: Metric) -> None:
    """Draw the mean over draws at each deadline with its 95 % band."""
    draws = [(draw["deadline_s"].to_numpy(), draw[name].to_numpy()) for _, draw in frame.groupby("draw")]
    draw_band(axes, draws, BLUE, "mean over draws", metric=metric)
