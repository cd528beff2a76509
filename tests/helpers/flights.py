"""Recordings of synchronous rounds with given latencies."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lesson.flight.recording import Recording, read_recording


def write_lines(path: Path, *lines: object) -> Path:
    """Write a line of JSON for each value; text is written as it is."""
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def changes(*events: tuple[str, float, str]) -> list[dict[str, Any]]:
    """Return events of clients that connect or leave, each given as kind, time and client."""
    return [{"event": kind, "t_s": t_s, "client": client} for kind, t_s, client in events]


def job(number: int, client: str, asked_s: float, arrived_s: float, round: int = 1) -> list[dict[str, Any]]:
    """Return the request and the reply of a local training."""
    asked = {"event": "asked", "t_s": asked_s, "client": client, "job": str(number), "round": round}
    return [asked, {"event": "arrived", "t_s": arrived_s, "job": str(number)}]


def write_flight(
    path: Path,
    latency_s: Sequence[Sequence[float]],
    *,
    overhead_s: float = 0.0,
    compute_share: float | None = 0.75,
    strategy: str = "fedavg",
    extra: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write rounds in which client i takes latency_s[round][i] seconds; a negative latency is a failure after −s.

    NaN is a client that is not asked. Clients are called a, b, c, … and hold 100, 101, … samples. Every round begins
    `overhead_s` after the last reply of the one before. `extra` events are sorted in by their time.
    """
    events, now_s, job = [dict(event) for event in extra], 0.0, 0
    for number, row in enumerate(latency_s, start=1):
        asked = [(client, float(one)) for client, one in enumerate(row) if not np.isnan(one)]
        for client, took_s in asked:
            job += 1
            name = chr(ord("a") + client)
            events.append({"event": "asked", "t_s": now_s, "client": name, "job": str(job), "round": number})
            ended = {"t_s": now_s + abs(took_s), "client": name, "job": str(job)}
            if took_s < 0:
                events.append({"event": "failed", "reason": "client error", **ended})
            else:
                compute = {} if compute_share is None else {"compute_s": compute_share * took_s}
                events.append({"event": "arrived", "num_samples": 100 + client, **compute, **ended})
        end_s = now_s + max(abs(took_s) for _, took_s in asked)
        merged = [chr(ord("a") + client) for client, took_s in asked if took_s > 0]
        events.append({"event": "round", "t_s": end_s, "round": number, "merged": merged})
        now_s = end_s + overhead_s
    events.sort(key=lambda event: event["t_s"])  # stable: requests come before replies, rounds end after their replies
    return write_lines(path, {"flight": 1, "strategy": strategy}, *events)


def flight(path: Path, latency_s: Sequence[Sequence[float]], **options: Any) -> Recording:
    """Write and read a recording; see `write_flight`."""
    return read_recording(write_flight(path, latency_s, **options))
