"""The page of `lesson replay`: the recorded run, the simulated strategies, and the code for the recommended one."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lesson.core.arrays import IntArray
from lesson.flight.fit import FittedFleet
from lesson.flight.outcomes import MIN_SERVED, Candidate, Outcome
from lesson.flight.recording import ARRIVED, FAILED
from lesson.flight.replay import Replay
from lesson.report.page.document import write_document
from lesson.report.replay.tables import client_table, strategy_table
from lesson.strategies import find_strategy

MAX_CLIENTS = 60
"""Largest number of clients drawn; a larger fleet is sampled evenly by latency."""
MAX_POINTS = 200
"""Largest number of recorded latencies drawn per client."""


def write_replay_page(path: Path | str, result: Replay, data: dict[str, Any], command: str) -> None:
    """Atomically write the page. `data` is `replay_data` with `notes` and the results of `trained` models."""
    tables = {
        "strategies": strategy_table(result).to_data(),
        "clients": client_table(data["clients"], [outcome.candidate.label for outcome in result.outcomes]).to_data(),
    }
    title = f"LESSON: replay of {result.fitted.recording.name}"
    write_document(path, title, ["replay.js"], data | {"tables": tables, "command": command})


def replay_data(result: Replay) -> dict[str, Any]:
    """Return a replay as JSON data, for `--json` and for the charts of the page."""
    fitted, reality, advice = result.fitted, result.reality, result.advice
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
        "min_served": MIN_SERVED,
        "reality": reality.values | {"not_served": [fitted.names[client] for client in reality.not_served]},
        "outcomes": [_outcome(fitted, outcome) for outcome in result.outcomes],
        "advice": {
            "sentence": advice.sentence,
            "label": None if best is None else best.label,
            "gain": None if advice.gain is None else asdict(advice.gain),
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
        "values": {name: asdict(spread) for name, spread in outcome.spreads.items()},
        "not_served": [fitted.names[client] for client in outcome.not_served],
    }


def _clients(fitted: FittedFleet, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return recorded latencies of each client, and how many of its updates each strategy aggregates, fastest first."""
    jobs, names = fitted.recording.jobs, fitted.recording.names
    latency_s = fitted.fleet().latency_s
    order = np.argsort(latency_s, kind="stable")
    rows = []
    for client in order[_evenly(len(order), MAX_CLIENTS)].tolist():
        mine = jobs.client == names.index(fitted.names[client])
        recorded_s = jobs.latency_s[mine & (jobs.outcome == ARRIVED)]
        rows.append(
            {
                "name": fitted.names[client],
                "latency_s": recorded_s[_evenly(len(recorded_s), MAX_POINTS)].tolist(),
                "replies": len(recorded_s),
                "failures": int(np.count_nonzero(mine & (jobs.outcome == FAILED))),
                "median_s": float(latency_s[client]),
                "pooled": bool(fitted.is_pooled[client]),
                "merged": [None if one.problem else float(one.num_merged[:, client].mean()) for one in outcomes],
            }
        )
    return rows


def _evenly(length: int, most: int) -> IntArray:
    """Return up to `most` indices of a sequence, evenly spaced."""
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)
