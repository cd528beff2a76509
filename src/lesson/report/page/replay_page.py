"""The page of `lesson replay`: recorded reality beside simulated alternatives, and how to adopt the recommended one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lesson.flight.advice import Advice
from lesson.flight.fit import FittedFleet
from lesson.flight.recording import ARRIVED, FAILED
from lesson.flight.replay import MEASURES, MIN_SERVED, Candidate, Outcome, Replay
from lesson.report.page.document import write_document
from lesson.strategies import find_strategy

MAX_CLIENTS = 60
"""Largest number of clients drawn; a larger fleet is sampled evenly by latency."""
MAX_POINTS = 200
"""Largest number of recorded latencies drawn per client."""


def write_replay_page(
    path: Path | str,
    result: Replay,
    advice: Advice,
    *,
    notes: Sequence[str] = (),
    command: str = "",
    trained: Sequence[dict[str, Any]] = (),
) -> None:
    """Atomically write the page. `trained` are rows with the accuracy of each strategy, if models were trained."""
    data = replay_data(result, advice) | {"notes": list(notes), "command": command, "trained": list(trained)}
    write_document(path, f"LESSON: replay of {result.fitted.recording.name}", ["replay.js"], data)


def replay_data(result: Replay, advice: Advice) -> dict[str, Any]:
    """Return all data of the page; the page only draws."""
    fitted, reality = result.fitted, result.reality
    best = None if advice.outcome is None else advice.outcome.candidate
    return {
        "recording": {
            "name": fitted.recording.name,
            "strategy": reality.strategy,
            "deadline_s": fitted.recording.header.deadline_s,
            "began": fitted.recording.header.began,
            "clients": len(fitted.names),
            "rounds": reality.num_rounds,
            "duration_s": fitted.duration_s,
            "overhead_s": fitted.overhead_s,
        },
        "horizon_s": result.horizon_s,
        "measures": MEASURES,
        "min_served": MIN_SERVED,
        "reality": reality.values | {"not_served": [fitted.names[one] for one in reality.not_served.tolist()]},
        "outcomes": [_outcome(fitted, outcome) for outcome in result.outcomes],
        "advice": {
            "sentence": advice.sentence,
            "label": None if best is None else best.label,
            "gain": None if advice.gain is None else vars(advice.gain),
            "compared_with": advice.compared_with,
            "snippet": None if best is None else flower_snippet(best),
        },
        "clients": _clients(fitted, result.outcomes),
    }


def flower_snippet(candidate: Candidate) -> str:
    """Return the lines of a Flower app that use a strategy."""
    imports, deadline = "from lesson.flower import LessonStrategy", f"deadline_s={candidate.deadline_s:g}"
    options = "".join(f", {name}={value!r}" for name, value in candidate.options.items())
    if candidate.strategy == "lesson" and not options:
        return f"{imports}\n\nstrategy = LessonStrategy({deadline})  # was: FedAvg()\n"
    kind = find_strategy(candidate.strategy)
    deadline = deadline if candidate.has_deadline else ""
    made = f"{kind.__name__}({(deadline + options).removeprefix(', ')})"
    arguments = f"{deadline}, strategy={made}".removeprefix(", ")
    source = "lesson" if kind.__module__.startswith("lesson.") else kind.__module__
    return f"from {source} import {kind.__name__}\n{imports}\n\nstrategy = LessonStrategy({arguments})\n"


def _outcome(fitted: FittedFleet, outcome: Outcome) -> dict[str, Any]:
    label, problem = outcome.candidate.label, outcome.problem
    if problem:
        return {"label": label, "problem": problem}
    return {
        "label": label,
        "problem": "",
        "note": outcome.note,
        "values": {name: vars(outcome.spread(name)) for name in MEASURES},
        "not_served": [fitted.names[client] for client in outcome.not_served.tolist()],
    }


def _clients(fitted: FittedFleet, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return recorded latencies of each client, and how many of its updates each strategy aggregates, fastest first."""
    jobs, names = fitted.recording.jobs, fitted.recording.names
    latency_s = fitted.fleet().latency_s
    order = np.argsort(latency_s, kind="stable")
    if len(order) > MAX_CLIENTS:
        order = order[np.linspace(0, len(order) - 1, MAX_CLIENTS).round().astype(np.int64)]
    rows = []
    for client in order.tolist():
        mine = jobs.client == names.index(fitted.names[client])
        recorded_s = jobs.latency_s[mine & (jobs.outcome == ARRIVED)]
        places = np.linspace(0, len(recorded_s) - 1, min(len(recorded_s), MAX_POINTS)).round().astype(np.int64)
        rows.append(
            {
                "name": fitted.names[client],
                "latency_s": recorded_s[places].tolist(),
                "replies": len(recorded_s),
                "failures": int(np.count_nonzero(mine & (jobs.outcome == FAILED))),
                "median_s": float(latency_s[client]),
                "pooled": bool(fitted.is_pooled[client]),
                "merged": [None if one.problem else float(one.num_merged[:, client].mean()) for one in outcomes],
            }
        )
    return rows
