"""What clients did in a run and what they got of it, for a page: from the lines of its rounds and its clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lesson.arrays import FloatArray, IntArray
from lesson.report.page.course import Course
from lesson.report.panels import density
from lesson.tiers import UNREACHABLE, assign_tiers

MAX_PIECES, MAX_SHOWN = 600, 60
"""Pieces of work in a schedule, and clients: those that are spread evenly from fast to slow."""


def schedule(first: Sequence[dict[str, Any]], kept: dict[str, Any]) -> dict[str, Any] | None:
    """The first pieces of work that were merged: who trained and uploaded when, how long it waited; ends of rounds."""
    if not kept or not first:
        return None
    columns, shown = kept["clients"], _shown(kept)
    upload_s = dict(zip(columns["number"], columns["upload_s"], strict=True))
    pieces: list[list[float]] = []
    ends_s = []
    for line in first:
        ends_s.append(line["time_s"])
        begun = zip(line["merged"], line["merged_started_s"], line["merged_arrived_s"], strict=True)
        for client, started_s, arrived_s in begun:
            if client in shown:
                sends_s = max(started_s, arrived_s - (upload_s[client] or 0.0))
                pieces.append([client, started_s, round(sends_s, 3), arrived_s, line["time_s"]])
        if len(pieces) >= MAX_PIECES:
            break
    names = dict(zip(columns["number"], columns["name"], strict=True))
    return {"pieces": pieces, "ends_s": ends_s, "clients": shown, "names": [names[client] for client in shown]}


def participation(runs: Sequence[Course], kept: Sequence[dict[str, Any]], deadline_s: float) -> list[dict[str, Any]]:
    """A row per tier: its clients, how often they were merged in 1,000 s and how stale, over all seeds."""
    if not all(course.named and clients for course, clients in zip(runs, kept, strict=True)):
        return []
    rows = []  # tier, merges, staleness in sum, length of the run: of each client of each run
    for course, clients in zip(runs, kept, strict=True):
        tiers = _tiers(clients, deadline_s)
        for client, tier in zip(clients["clients"]["number"], tiers.tolist(), strict=True):
            rows.append((tier, course.merges[client], course.staleness[client], course.end_s))
    tier, count, stale, seconds = np.array(rows, dtype=float).T
    return [
        {
            "tier": int(one),
            "clients": float(np.count_nonzero(tier == one) / len(runs)),
            "merged_per_1000s": float(1000 * (count / seconds)[tier == one].mean()),
            "share": float(count[tier == one].sum() / max(1, count.sum())),
            "staleness": float(stale[tier == one].sum() / count[tier == one].sum())
            if count[tier == one].any()
            else None,
        }
        for one in np.unique(tier)
    ]


def fairness(kept: Sequence[dict[str, Any]], deadline_s: float) -> dict[str, Any]:
    """Accuracy of the final model on each class, and on data like that of each tier's clients: means over seeds."""
    there = [clients for clients in kept if clients]
    if not there:
        return {"classes": [], "tiers": [], "clients": []}
    classes = np.array([clients["class_accuracy"] for clients in there], dtype=float)
    tier = np.concatenate([_tiers(clients, deadline_s) for clients in there])
    accuracy = np.concatenate([np.array(clients["clients"]["accuracy"], dtype=float) for clients in there])
    return {
        "classes": classes.mean(axis=0).tolist(),
        "tiers": [
            {"tier": int(one), "accuracy": float(np.nanmean(accuracy[tier == one]))}
            for one in np.unique(tier)
            if np.isfinite(accuracy[tier == one]).any()
        ],
        "clients": _quantiles(accuracy[np.isfinite(accuracy)]),
    }


def latencies(kept: dict[str, Any]) -> dict[str, Any] | None:
    """How latencies are distributed, in all and of each part that is known: smoothed curves."""
    if not kept:
        return None
    curves = {}
    for name in ("compute_s", "upload_s", "latency_s"):
        values = np.array([value for value in kept["clients"][name] if value is not None])
        if len(values) and (curve := density(values)) is not None:
            places = np.linspace(0, len(curve[0]) - 1, 160).astype(int)
            curves[name] = {"x": curve[0][places].round(3).tolist(), "y": curve[1][places].tolist()}
    return curves or None


def _tiers(kept: dict[str, Any], deadline_s: float) -> IntArray:
    """The tier of each client; that of one who is never heard of is 0."""
    seconds: FloatArray = np.array(
        [np.inf if one is None else one for one in kept["clients"]["latency_s"]], dtype=float
    )
    return assign_tiers(seconds, deadline_s) if np.isfinite(seconds).any() else np.full(len(seconds), UNREACHABLE)


def _shown(kept: dict[str, Any]) -> list[int]:
    """The numbers of the clients that are drawn, fast to slow."""
    columns = kept["clients"]
    reached = [(s, number) for s, number in zip(columns["latency_s"], columns["number"], strict=True) if s is not None]
    order = [number for _, number in sorted(reached)]
    return [order[place] for place in np.linspace(0, len(order) - 1, min(len(order), MAX_SHOWN)).round().astype(int)]


def _quantiles(values: FloatArray) -> list[float]:
    """The least, the quarters and the greatest."""
    return np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist() if len(values) else []
