"""Figures of a study's clients for a paper: where they are, and how computing and uploading add up to their latency."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lesson.core.arrays import FloatArray
from lesson.experiments.study import Study
from lesson.fleet.fleet import reach_of
from lesson.report.clients import stored_clients, tiers_of, values_of
from lesson.report.files import in_paper_style
from lesson.report.palette import tier_colors
from lesson.report.panels import MAX_TIERS_NAMED, density, draw_map
from lesson.settings.settings import Settings

COMPUTE, UPLOAD = "#E69F00", "#56B4E9"
"""Colors that none of the paper's strategies uses."""
MAX_DEADLINES_MARKED = 8


def clients_to_draw(study: Study) -> tuple[dict[str, Any], list[str]]:
    """Return the stored clients of a study's first run, nothing if no latency is known, and notes about them."""
    run = study.runs[0]
    kept = stored_clients(run)
    if not kept or not tiers_of(kept, run.settings).any():
        return {}, [f"no figures of clients: {run.name} has no clients.json, or it contains no latencies"]
    notes = [] if kept["clients"]["x_km"] else ["no map of clients: their positions are unknown"]
    fleets = {_drawn_from(one.settings) for one in study.runs}
    if len(fleets) > 1:
        notes.append(f"the figures of clients and latency show {run.name}, the first of {len(fleets)} fleets")
    return kept, notes


def _drawn_from(settings: Settings) -> tuple[int, ...]:
    """Return a key that is the same for runs with the same clients."""
    sections = (settings.fleet, settings.radio, settings.training, settings.data, settings.upload)
    return settings.run.seed, *(hash(section.model_dump_json()) for section in sections)


@in_paper_style
def draw_clients(kept: dict[str, Any], settings: Settings, width_in: float) -> Figure:
    """Draw the clients around the base station, colored by tier."""
    figure = Figure(figsize=(width_in, 0.78 * width_in), layout="constrained")
    axes, tiers = figure.subplots(), tiers_of(kept, settings)
    draw_map(values_of(kept["clients"], "x_km"), values_of(kept["clients"], "y_km"), tiers, axes)
    if len(tiers) < kept["num_clients"]:
        axes.set_title(f"{len(tiers)} of {kept['num_clients']} clients")
    distinct, counts = np.unique(tiers[tiers > 0], return_counts=True)
    colors = tier_colors(len(distinct))
    named = np.unique(np.linspace(0, len(distinct) - 1, MAX_TIERS_NAMED).round().astype(int))
    handles = [
        Line2D([], [], color=colors[row], marker="o", linestyle="none", label=f"tier {distinct[row]} × {counts[row]}")
        for row in named
    ]
    figure.legend(handles=handles, loc="outside right center", title="clients by tier", handletextpad=0.1)
    return figure


@in_paper_style
def draw_latency(kept: dict[str, Any], deadline_s: float, width_in: float) -> Figure:
    """Draw the densities of compute time, upload time and latency without outliers, with multiples of the deadline."""
    figure = Figure(figsize=(width_in, 0.62 * width_in), layout="constrained")
    axes = figure.subplots()
    compute_s, upload_s, latency_s = (
        values_of(kept["clients"], name) for name in ("compute_s", "upload_s", "latency_s")
    )
    there = latency_s <= reach_of(latency_s[np.isfinite(latency_s)])
    for name, seconds, color in (("compute time", compute_s, COMPUTE), ("upload time", upload_s, UPLOAD)):
        if len(known := seconds[there & np.isfinite(seconds)]):
            _draw_density(axes, known, color, name)
    _draw_density(axes, latency_s[there], "black", "latency (sum)")
    axes.set(xlabel="time per client (s)", ylabel="density (1/s)", ylim=(0, None), xlim=(0, None))
    _mark_deadlines(axes, deadline_s, float(latency_s[there].max()))
    axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    return figure


def _draw_density(axes: Axes, seconds: FloatArray, color: str, name: str) -> None:
    """Draw a smoothed density, or a tick per client if there are too few clients or their times are all equal."""
    if (curve := density(seconds)) is None:
        axes.plot(seconds, np.zeros(len(seconds)), "|", color=color, markersize=12, clip_on=False, label=name)
    else:
        axes.plot(*curve, color=color, label=name)
        axes.fill_between(*curve, color=color, alpha=0.0 if color == "black" else 0.25, lw=0)


def _mark_deadlines(axes: Axes, deadline_s: float, slowest_s: float) -> None:
    multiples = slowest_s / deadline_s
    for multiple in range(1, int(multiples) + 1 if multiples <= MAX_DEADLINES_MARKED else 2):
        label = f"multiples of τ = {deadline_s:g} s" if multiple == 1 else None
        axes.axvline(multiple * deadline_s, color="0.5", linestyle="--", linewidth=0.7, zorder=0, label=label)
