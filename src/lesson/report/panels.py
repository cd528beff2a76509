"""Parts shared by several figures: the map of clients, the schedule of a plan, and a smoothed density."""

import numpy as np
from matplotlib.axes import Axes

from lesson.core.arrays import FloatArray, IntArray
from lesson.fleet.tiers import UNREACHABLE
from lesson.planning.plan import Plan
from lesson.report.palette import tier_colors

MIN_VALUES_SMOOTHED = 5
MAX_TIERS_DRAWN = 16
MAX_ROUNDS_DRAWN = 60
MAX_CLIENTS_DRAWN = 5000
MAX_TIERS_NAMED = 8


def density(values: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return the points and values of a Gaussian kernel density estimate with Silverman's bandwidth.

    None if there are fewer than MIN_VALUES_SMOOTHED values, or if all are equal up to rounding or some are not finite.
    """
    from scipy.stats import gaussian_kde  # imports much, and few commands draw a density

    if len(values) < MIN_VALUES_SMOOTHED or not np.isfinite(values).all():
        return None
    bandwidth = 0.9 * float(np.std(values)) * len(values) ** -0.2
    if bandwidth <= 1e-9 * float(np.abs(values).max()):
        return None
    low, high = max(0.0, values.min() - 3 * bandwidth), values.max() + 3 * bandwidth
    counts, edges = np.histogram(values, bins=512, range=(low, high))
    middles = (edges[1:] + edges[:-1]) / 2
    spread = float(np.sqrt(np.cov(middles, aweights=counts)))  # scipy expects the bandwidth as a multiple of this
    return middles, gaussian_kde(middles, bandwidth / spread, weights=counts)(middles)


def draw_map(x_km: FloatArray, y_km: FloatArray, tiers: IntArray, axes: Axes) -> bool:
    """Draw clients around the base station, colored by tier, and return whether all of them are drawn."""
    drawn = np.arange(len(tiers)) < MAX_CLIENTS_DRAWN
    served, lost = np.flatnonzero(drawn & (tiers > 0)), np.flatnonzero(drawn & (tiers == UNREACHABLE))
    distinct = np.unique(tiers[tiers > 0])
    colors = np.array(tier_colors(len(distinct)))[np.searchsorted(distinct, tiers[served])]
    axes.scatter(x_km[served], y_km[served], s=34, c=colors, edgecolor="white", linewidth=0.6)
    axes.scatter(x_km[lost], y_km[lost], s=30, color="0.6", marker="x")
    axes.scatter([0], [0], marker="^", s=110, color="black", zorder=3)
    axes.annotate("base station", (0, 0), (0, -14), textcoords="offset points", ha="center", fontsize=8)
    reach_km = 1.08 * max(np.abs(x_km).max(), np.abs(y_km).max())
    axes.set(xlabel="km", ylabel="km", xlim=(-reach_km, reach_km), ylim=(-reach_km, reach_km), aspect="equal")
    return bool(drawn.all())


def draw_tier_blocks(plan: Plan, axes: Axes, strength: float = 1.0) -> int:
    """Draw a block per local training and a diamond per aggregation of each tier; return how many tiers are hidden."""
    rows, rounds = plan.tier_rows[:MAX_TIERS_DRAWN], plan.rounds[:MAX_ROUNDS_DRAWN]
    horizon_s = rounds[-1].end_s
    for index, (row, color) in enumerate(zip(rows, tier_colors(len(plan.tier_rows), strength), strict=False)):
        merges_s = [record.end_s for record in rounds if np.any(plan.tiers[record.merged] == row.tier)]
        edges_s = np.unique([0.0, *merges_s, horizon_s])
        blocks = list(zip(edges_s, np.diff(edges_s), strict=False))
        axes.broken_barh(blocks, (index - 0.3, 0.6), facecolor=color, edgecolor="white", linewidth=1)
        axes.plot(merges_s, [index] * len(merges_s), "D", color="black", markersize=4)
    for record in rounds:
        axes.axvline(record.end_s, color="0.8", linewidth=0.6, zorder=0)
    axes.set_yticks(range(len(rows)), [f"tier {row.tier}" for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="time (s)", xlim=(0, horizon_s * 1.01))
    return len(plan.tier_rows) - len(rows)
