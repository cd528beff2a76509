"""The clients of a study for a paper: where they are, and what their latency is made of."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lesson.arrays import FloatArray
from lesson.fleet import draw_fleet
from lesson.plan import Plan, make_plan
from lesson.report.files import in_paper_style
from lesson.report.palette import tier_colours
from lesson.report.panels import MAX_CLIENTS_DRAWN, MAX_TIERS_NAMED, density, draw_map
from lesson.study import Study

COMPUTE, UPLOAD = "#E69F00", "#56B4E9"
"""Colours that no strategy of the paper has."""
MAX_DEADLINES_MARKED = 8


def fleet_plan(study: Study) -> tuple[Plan | None, list[str]]:
    """The plan of a study's first run, and what a reader should know of it; None if folders do not tell."""
    run = study.runs[0]
    scenario, seed = run.settings.scenario, run.settings.run.seed
    if scenario.latency_samples == "processed" and scenario.local_epochs:
        return None, ["no figure of clients: their latency follows their samples, which run folders do not hold"]
    fleet = draw_fleet(scenario, seed=seed)
    plan = make_plan(fleet, scenario.deadline_s, ensure_first_tier=scenario.ensure_first_tier, num_rounds=1)
    fleets = {(one.settings.scenario.model_dump_json(), one.settings.run.seed) for one in study.runs}
    notes = [f"clients and latency are those of {run.path.name}, the first of {len(fleets)} fleets"]
    return plan, notes if len(fleets) > 1 else []


@in_paper_style
def draw_clients(plan: Plan, width_in: float) -> Figure:
    """Clients around the base station, coloured by tier."""
    figure = Figure(figsize=(width_in, 0.78 * width_in), layout="constrained")
    axes = figure.subplots()
    if not draw_map(plan, axes):
        axes.set_title(f"the first {MAX_CLIENTS_DRAWN} clients")
    colours = tier_colours(len(plan.tier_rows))
    named = np.unique(np.linspace(0, len(colours) - 1, MAX_TIERS_NAMED).round().astype(int))
    handles = [
        Line2D([], [], color=colours[row], marker="o", linestyle="none", label=_count(plan, row)) for row in named
    ]
    figure.legend(handles=handles, loc="outside right center", title="clients by tier", handletextpad=0.1)
    return figure


@in_paper_style
def draw_latency(plan: Plan, width_in: float) -> Figure:
    """The density of computing, uploading and both, with the multiples of the deadline."""
    figure = Figure(figsize=(width_in, 0.62 * width_in), layout="constrained")
    axes = figure.subplots()
    fleet, there = plan.fleet, plan.tiers > 0
    for name, seconds, colour in (("computing", fleet.compute_s, COMPUTE), ("upload", fleet.upload_s, UPLOAD)):
        _draw_density(axes, seconds[there], colour, name)
    _draw_density(axes, fleet.latency_s[there], "black", "latency: both")
    axes.set(xlabel="time of a client (s)", ylabel="density (1/s)", ylim=(0, None), xlim=(0, None))
    _mark_deadlines(axes, plan)
    axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    return figure


def _draw_density(axes: Axes, seconds: FloatArray, colour: str, name: str) -> None:
    """A smoothed density; of a few clients, or the same ones, a tick for each."""
    if (curve := density(seconds)) is None:
        axes.plot(seconds, np.zeros(len(seconds)), "|", color=colour, markersize=12, clip_on=False, label=name)
    else:
        axes.plot(*curve, color=colour, label=name)
        axes.fill_between(*curve, color=colour, alpha=0.0 if colour == "black" else 0.25, lw=0)


def _mark_deadlines(axes: Axes, plan: Plan) -> None:
    multiples = plan.fleet.latency_s[plan.tiers > 0].max() / plan.deadline_s
    for multiple in range(1, int(multiples) + 1 if multiples <= MAX_DEADLINES_MARKED else 2):
        label = f"multiples of τ = {plan.deadline_s:g} s" if multiple == 1 else None
        axes.axvline(multiple * plan.deadline_s, color="0.5", linestyle="--", linewidth=0.7, zorder=0, label=label)


def _count(plan: Plan, row: int) -> str:
    tier = plan.tier_rows[row]
    return f"tier {tier.tier} × {len(tier.clients)}"
