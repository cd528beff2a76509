"""Data for a page about clients: their local training, participation, latencies, and accuracy on their data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lesson.fleet.fleet import reach_of
from lesson.report.clients import tiers_of, values_of
from lesson.report.page.course import Course
from lesson.report.panels import density
from lesson.settings.settings import Settings

MAX_PIECES, MAX_SHOWN, MAX_ENDS = 600, 60, 80
"""Limits of a schedule: local trainings, clients (spread evenly from fast to slow), and marked ends of rounds."""
SAME = 0.01
"""Relative difference from the usual latency up to which the end of training is taken to be known."""


def schedule(course: Course, kept: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first aggregated updates as [client, start, end of training, arrival, aggregation], times in seconds.

    The end of training is None if the update did not take the usual time, for example because of more local steps or
    uploads in turn. `until_s` is the end of the initial view: 1.5 times the time by which every client shown
    has been aggregated once. The result is None if the run did not record these details.
    """
    if not kept or not course.first:
        return None
    columns, shown = kept["clients"], _shown(kept)
    usual = dict(zip(columns["number"], zip(columns["upload_s"], columns["latency_s"], strict=True), strict=True))
    pieces: list[list[float | None]] = []
    merged_s: dict[int, float] = {}
    for line in course.first:
        begun = zip(line["merged"], line["merged_started_s"], line["merged_arrived_s"], strict=True)
        for client, started_s, arrived_s in begun:
            if client in shown:
                trained_s = _trained_s(started_s, arrived_s, *usual[client])
                pieces.append([client, started_s, trained_s, arrived_s, round(line["time_s"], 3)])
                merged_s.setdefault(client, line["time_s"])
        if len(pieces) >= MAX_PIECES:
            break
    until_s = min(line["time_s"], 1.5 * max(merged_s.values(), default=line["time_s"]))
    ends_s = [round(line["time_s"], 3) for line in course.first if line["time_s"] <= until_s]
    names = dict(zip(columns["number"], columns["name"], strict=True))
    return {
        "pieces": pieces,
        "until_s": until_s,
        "ends_s": ends_s if len(ends_s) <= MAX_ENDS else [],
        "clients": shown,
        "names": [names[client] for client in shown],
        "num_clients": kept["num_clients"],
    }


def _trained_s(started_s: float, arrived_s: float, upload_s: float | None, latency_s: float | None) -> float | None:
    if upload_s is None or latency_s is None or abs(arrived_s - started_s - latency_s) > SAME * latency_s:
        return None
    return round(max(started_s, arrived_s - upload_s), 3)


def participation(runs: Sequence[Course], kept: Sequence[dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Return one row per tier, over all seeds: clients, aggregated updates per 1,000 s, their share and staleness.

    There are no rows if a run lacks its clients or the details of its updates.
    """
    if not all(course.first and clients for course, clients in zip(runs, kept, strict=True)):
        return []
    rows = []  # per client of each run: tier, aggregated updates, total staleness, length of the run
    for course, clients in zip(runs, kept, strict=True):
        for client, tier in zip(clients["clients"]["number"], tiers_of(clients, settings).tolist(), strict=True):
            rows.append((tier, course.merges[client], course.staleness[client], course.end_s))
    tier, merges, stale, seconds = np.array(rows, dtype=float).T
    found = []
    for one in np.unique(tier):
        there = tier == one
        found.append(
            {
                "tier": int(one),
                "clients": float(there.sum() / len(runs)),
                "merged_per_1000s": float(1000 * (merges / np.maximum(seconds, 1e-9))[there].mean()),
                "share": float(merges[there].sum() / max(1, merges.sum())),
                "staleness": float(stale[there].sum() / merges[there].sum()) if merges[there].any() else None,
            }
        )
    return found


def fairness(kept: Sequence[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """Return the accuracy of the final model on each class, on data like that of each tier, and over clients.

    The accuracies over clients are their minimum, quartiles and maximum. All are means over seeds. They are empty if
    the task has no classes. The names of the classes are included if the task has them.
    """
    there = [clients for clients in kept if clients.get("class_accuracy")]
    if not there:
        return {"classes": [], "tiers": [], "clients": []}
    accuracies = [np.array(clients["clients"]["accuracy"], dtype=float) for clients in there]
    tier, accuracy = np.concatenate([tiers_of(clients, settings) for clients in there]), np.concatenate(accuracies)
    known = [one[np.isfinite(one)] for one in accuracies if np.isfinite(one).any()]
    spreads = [np.quantile(one, [0, 0.25, 0.5, 0.75, 1]) for one in known]
    names = there[0].get("class_names")
    return {
        **({"names": names} if names else {}),
        "classes": np.array([clients["class_accuracy"] for clients in there], dtype=float).mean(axis=0).tolist(),
        "tiers": [
            {"tier": int(one), "accuracy": float(np.nanmean(accuracy[tier == one]))}
            for one in np.unique(tier)
            if np.isfinite(accuracy[tier == one]).any()
        ],
        "clients": np.mean(spreads, axis=0).tolist() if spreads else [],
    }


def latencies(kept: dict[str, Any]) -> dict[str, Any] | None:
    """Return smoothed densities of compute, upload and total latency, as far as these are known; None if none is.

    Outliers are left out.
    """
    curves = {}
    for name in ("compute_s", "upload_s", "latency_s"):
        values = values_of(kept["clients"], name)
        values = values[np.isfinite(values)]
        if len(values) and (curve := density(values[values <= reach_of(values)])) is not None:
            places = np.linspace(0, len(curve[0]) - 1, 160).astype(int)
            curves[name] = {"x": curve[0][places].round(3).tolist(), "y": curve[1][places].tolist()}
    return curves or None


def _shown(kept: dict[str, Any]) -> list[int]:
    """Return the numbers of the clients to draw, from fast to slow."""
    columns = kept["clients"]
    reached = [(s, number) for s, number in zip(columns["latency_s"], columns["number"], strict=True) if s is not None]
    order = [number for _, number in sorted(reached)]
    return [order[place] for place in np.linspace(0, len(order) - 1, min(len(order), MAX_SHOWN)).round().astype(int)]
