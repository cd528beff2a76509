"""Figures of a study's clients for a paper: where they are, and how computing and uploading add up to their latency."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lesson.core.arrays import FloatArray, IntArray
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.fleet.fleet import reach_of
from lesson.fleet.tiers import assign_tiers
from lesson.report.files import in_paper_style
from lesson.report.palette import tier_colors
from lesson.report.panels import MAX_TIERS_NAMED, density, draw_map
from lesson.settings.settings import Settings

COMPUTE, UPLOAD = "#E69F00", "#56B4E9"
"""Colors that none of the paper's strategies uses."""
MAX_DEADLINES_MARKED = 8


@dataclass(frozen=True, eq=False)
class KeptClients:
    """The stored clients of a run, a promoted one in tier 1. Arrays have shape (num_stored,), NaN where unknown."""

    num_clients: int
    """Size of the whole fleet; of a large fleet only a sample is stored."""
    deadline_s: float
    x_km: FloatArray
    y_km: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    latency_s: FloatArray
    tiers: IntArray

    @property
    def placed(self) -> bool:
        """Whether the positions of all clients are known."""
        return bool(np.isfinite(self.x_km).all())


def kept_clients(study: Study) -> tuple[KeptClients | None, list[str]]:
    """Return the clients of a study's first run, None if its folder has none with a latency, and notes about them."""
    run = study.runs[0]
    clients = _read(run)
    if clients is None or not clients.tiers.any():
        return None, [f"no figures of clients: {run.name} has no clients.json, or it contains no latencies"]
    notes = [] if clients.placed else ["no map of clients: their positions are unknown"]
    fleets = {_drawn_from(one.settings) for one in study.runs}
    if len(fleets) > 1:
        notes.append(f"the figures of clients and latency show {run.name}, the first of {len(fleets)} fleets")
    return clients, notes


def _drawn_from(settings: Settings) -> tuple[int, ...]:
    """Return a key that is the same for runs with the same clients."""
    sections = (settings.fleet, settings.radio, settings.training, settings.data, settings.upload)
    return settings.run.seed, *(hash(section.model_dump_json()) for section in sections)


def _read(run: Run) -> KeptClients | None:
    kept = run.read_clients()
    if not kept:
        return None
    columns, deadline_s = kept["clients"], run.settings.strategy.deadline_s
    names = ("x_km", "y_km", "compute_s", "upload_s", "latency_s")
    unknown = [None] * len(columns["number"])
    arrays = {name: np.array(columns[name] or unknown, dtype=float) for name in names}
    return KeptClients(kept["num_clients"], deadline_s, **arrays, tiers=assign_tiers(arrays["latency_s"], deadline_s))


@in_paper_style
def draw_clients(clients: KeptClients, width_in: float) -> Figure:
    """Draw the clients around the base station, colored by tier."""
    figure = Figure(figsize=(width_in, 0.78 * width_in), layout="constrained")
    axes = figure.subplots()
    draw_map(clients.x_km, clients.y_km, clients.tiers, axes)
    if len(clients.tiers) < clients.num_clients:
        axes.set_title(f"{len(clients.tiers)} of {clients.num_clients} clients")
    tiers, counts = np.unique(clients.tiers[clients.tiers > 0], return_counts=True)
    colors = tier_colors(len(tiers))
    named = np.unique(np.linspace(0, len(tiers) - 1, MAX_TIERS_NAMED).round().astype(int))
    handles = [
        Line2D([], [], color=colors[row], marker="o", linestyle="none", label=f"tier {tiers[row]} × {counts[row]}")
        for row in named
    ]
    figure.legend(handles=handles, loc="outside right center", title="clients by tier", handletextpad=0.1)
    return figure


@in_paper_style
def draw_latency(clients: KeptClients, width_in: float) -> Figure:
    """Draw the densities of compute time, upload time and latency without outliers, with multiples of the deadline."""
    figure = Figure(figsize=(width_in, 0.62 * width_in), layout="constrained")
    axes = figure.subplots()
    there = clients.tiers > 0
    there &= clients.latency_s <= reach_of(clients.latency_s[there])
    for name, seconds, color in (
        ("compute time", clients.compute_s, COMPUTE),
        ("upload time", clients.upload_s, UPLOAD),
    ):
        if len(told := seconds[there & np.isfinite(seconds)]):
            _draw_density(axes, told, color, name)
    _draw_density(axes, clients.latency_s[there], "black", "latency (sum)")
    axes.set(xlabel="time per client (s)", ylabel="density (1/s)", ylim=(0, None), xlim=(0, None))
    _mark_deadlines(axes, clients.deadline_s, float(clients.latency_s[there].max()))
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
