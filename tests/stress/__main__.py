"""Runs the stress tests: python -m tests.stress [--short]. Prints a table; the exit status is 1 if a trial fails."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.stress import disk, kills, recordings, replies
from tests.stress.runs import COMPARE, RUN, SWEEP, Undisturbed
from tests.stress.trial import Result, run_trials

KINDS = (kills, disk, recordings, replies)
LARGEST = ("cpu_s", "peak_gb")
"""Facts that are reported as their maximum over trials; the others are summed."""


def main() -> int:
    """Run the command line; return 0 if every trial passed, 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="Stress tests of the lesson command.")
    parser.add_argument("--short", action="store_true", help="a few trials of each kind")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of trials run in parallel")
    parser.add_argument("--only", default="", help="run only trials whose name starts with this, such as 'kill sweep'")
    parser.add_argument("--out", type=Path, help="write the table to this JSON file")
    given = parser.parse_args()
    begin, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="stress-"))
    undisturbed = Undisturbed(scratch / "undisturbed")
    undisturbed.shared.mkdir()
    first = [undisturbed.trial(command) for command in ((RUN,) if given.short else (RUN, COMPARE, SWEEP))]
    trials = [trial for kind in KINDS for trial in kind.trials(undisturbed, given.short)]
    kinds = dict.fromkeys(trial.kind for trial in trials)
    trials = [trial for trial in trials if trial.name.startswith(given.only)]
    try:
        if not trials:
            parser.error(f"no trial's name starts with '{given.only}'; kinds: {', '.join(kinds)}")
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            for some in (first, trials):
                results = list[Result]()
                for one in run_trials(pool, some, given.seed, scratch):
                    results.append(one)
                    if one.failure:
                        print(f"FAILED {one.trial.name}:\n{one.failure}", file=sys.stderr, flush=True)
                if any(one.failure for one in results):
                    break
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    table, seconds = _table(results), round(time.monotonic() - begin)
    for kind, row in table.items():
        print(f"{kind:24}" + ", ".join(f"{value:g} {name}" for name, value in row.items()))
    print(f"{len(results)} trials in {seconds} s")
    if given.out is not None:
        figures = {"seed": given.seed, "short": given.short, "jobs": given.jobs, "seconds": seconds, "kinds": table}
        given.out.write_text(json.dumps(figures, indent=2) + "\n")
    for one in results:
        if one.failure:
            short = " --short" if given.short else ""
            print(f"rerun: python -m tests.stress{short} --seed {given.seed} --only '{one.trial.name}'")
    return int(any(one.failure for one in results))


def _table(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Return the number of trials, passed trials, seconds and facts of each kind."""
    table = dict[str, dict[str, Any]]()
    for one in results:
        row = table.setdefault(one.trial.kind, {"trials": 0, "passed": 0, "seconds": 0.0})
        for name, value in {"trials": 1, "passed": not one.failure, "seconds": one.seconds, **one.facts}.items():
            row[name] = max(row.get(name, 0), value) if name in LARGEST else row.get(name, 0) + value
    return {kind: {name: round(float(value), 1) for name, value in row.items()} for kind, row in table.items()}


if __name__ == "__main__":
    sys.exit(main())
