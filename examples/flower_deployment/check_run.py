"""Checks the folder of a run on real clients, for a monitoring system or a timer.

    python check_run.py RUN_FOLDER

Prints one line per finding. The exit status is 0 if all is well, 1 after warnings and 2 if somebody must act now.
"""

import argparse
import json
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

WARNING, CRITICAL = 1, 2
NAMES = {WARNING: "WARNING", CRITICAL: "CRITICAL"}
CONTENT = frozenset(
    {
        "no weight",
        "norm too large",
        "not finite",
        "unreadable",
        "wrong arrays",
        "wrong metrics",
        "wrong shape",
        "wrong type",
    }
)
"""Reasons that concern the content of an update; others, such as 'no reply', concern its transport."""
Finding = tuple[int, str]


def main() -> None:
    """Check the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--stalled-s", type=float, help="seconds without a new round (default: 3 deadlines + 60 s)")
    parser.add_argument("--window", type=int, default=20, help="number of recent rounds to look at (default: 20)")
    parser.add_argument("--empty", type=int, default=10, help="rounds in a row without an aggregation (default: 10)")
    parser.add_argument("--rejected", type=float, default=0.1, help="share of rejected updates (default: 0.1)")
    parser.add_argument("--slower", type=float, default=2.0, help="factor by which a client slows down (default: 2)")
    given = parser.parse_args()
    try:
        settings = tomllib.loads((given.run / "config.toml").read_text())
        metrics, summary = given.run / "metrics.jsonl", given.run / "summary.json"
        text = metrics.read_text() if metrics.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]  # whole ones
        names = read_names(given.run / "nodes.json")
        if summary.exists():
            early = json.loads(summary.read_text())["ended_early"]
            findings = [(WARNING, f"the run ended early: {early}")] if early else []
        else:
            limit_s = given.stalled_s or 3 * settings["strategy"]["deadline_s"] + 60
            newest = metrics if metrics.exists() else given.run / "config.toml"
            age_s = time.time() - newest.stat().st_mtime
            findings = [(CRITICAL, f"no round has ended for {age_s:.0f} s")] if age_s > limit_s else []
            findings += check(lines, given.window, given.empty, given.rejected, given.slower, names)
    except (OSError, ValueError, KeyError) as error:
        parser.exit(CRITICAL, f"CRITICAL: {given.run} cannot be read: {type(error).__name__}: {error}\n")
    for severity, finding in findings:
        print(f"{NAMES[severity]}: {finding}")
    if not findings:
        print(f"OK: {len(lines)} rounds" + (", finished" if summary.exists() else ""))
    sys.exit(max((severity for severity, _ in findings), default=0))


def read_names(path: Path) -> list[str]:
    """Return the names of clients in nodes.json, which only runs of your own app have; none without this file."""
    return [node["name"] for node in json.loads(path.read_text())] if path.exists() else []


def check(
    lines: Sequence[dict[str, Any]],
    window: int,
    empty: int,
    rejected: float,
    slower: float,
    names: Sequence[str] = (),
) -> list[Finding]:
    """Return what is wrong in the most recent rounds of a run; clients without a name are called by their number."""
    recent = lines[-window:]
    findings = [*_check_empty(lines, empty), *_check_rejected(recent, rejected)]
    findings += [
        (WARNING, f"round {line['round']}: excluded client {_name(client, names)}")
        for line in recent
        for client in line.get("excluded", [])
    ]
    return findings + list(_check_clients(lines, window, slower, names))


def _name(client: int, names: Sequence[str]) -> str:
    return names[client] if client < len(names) else str(client)


def _check_empty(lines: Sequence[dict[str, Any]], empty: int) -> Iterator[Finding]:
    if len(lines) >= empty and all(line["staleness"] is None for line in lines[-empty:]):
        yield CRITICAL, f"no update was aggregated in the last {empty} rounds"


def _check_rejected(recent: Sequence[dict[str, Any]], limit: float) -> Iterator[Finding]:
    reasons = Counter[str]()
    for line in recent:
        reasons.update({reason: len(clients) for reason, clients in line.get("rejections", {}).items()})
    transport = sum(count for reason, count in reasons.items() if reason not in CONTENT)
    expected = sum(line["uploads"] for line in recent) + transport
    if expected and (share := reasons.total() / expected) > limit:
        named = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
        severity = CRITICAL if share > 0.5 else WARNING
        yield severity, f"{share:.0%} of the updates in the last {len(recent)} rounds were rejected: {named}"


def _check_clients(
    lines: Sequence[dict[str, Any]], window: int, slower: float, names: Sequence[str]
) -> Iterator[Finding]:
    """Find clients that have fallen silent, or have become slower and therefore miss their slots.

    Lines of fleets with more than 1,000 clients do not name clients, so nothing is found there.
    """
    merged_in: dict[int, list[int]] = {}
    latencies_s: dict[int, list[float]] = {}
    for line in lines:
        merged = (line.get(name, []) for name in ("merged", "merged_started_s", "merged_arrived_s"))
        for client, started_s, arrived_s in zip(*merged, strict=True):
            merged_in.setdefault(client, []).append(line["round"])
            latencies_s.setdefault(client, []).append(arrived_s - started_s)
    for client, rounds in sorted(merged_in.items()):
        name = _name(client, names)
        longest = max((later - earlier for earlier, later in pairwise(rounds)), default=0)
        if (silent := lines[-1]["round"] - rounds[-1]) > max(window, 3 * longest):
            yield WARNING, f"client {name}: no update aggregated for {silent} rounds"
        before_s, now_s = latencies_s[client][:-3], latencies_s[client][-3:]
        if len(before_s) >= 5 and median(now_s) > slower * median(before_s):
            yield WARNING, f"client {name}: latency {median(now_s):.0f} s, was {median(before_s):.0f} s"


if __name__ == "__main__":
    main()
