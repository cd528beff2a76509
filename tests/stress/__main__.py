"""Run the stress tests: python -m tests.stress [--short]. Prints a table; the exit status is 1 if a trial fails."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.stress import commands, damage, data_files, disk, hostile, kills, lies, replies, settings, strategies, twice
from tests.stress.table import figures, print_table
from tests.stress.trial import Result, try_all

KINDS = (kills, twice, disk, damage, lies, data_files, hostile, replies, settings, strategies)


def main() -> int:
    """Run the command line; return 0 if every trial passed or was skipped, 1 if one failed or there was none."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="Stress tests of the lesson command.")
    parser.add_argument("--short", action="store_true", help="a few trials of each kind")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of trials run in parallel")
    parser.add_argument("--only", default="", help="run only trials whose name starts with this, such as 'settings 17'")
    parser.add_argument("--out", type=Path, help="write the counts and times to this JSON file")
    given = parser.parse_args()
    begin, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="stress-"))
    _import_all()
    try:
        shared = scratch / "shared"
        wanted = [trial for kind in KINDS for trial in kind.trials(shared, given.short)]
        wanted = [trial for trial in wanted if trial.name.startswith(given.only)]
        before = list(
            _print_failures(
                try_all([*commands.prepare(shared, given.short), *damage.prepare(shared)], 0, scratch, given.jobs)
            )
        )
        if any(one.wrong for one in before):
            return 1
        results = list(_print_failures(try_all(wanted, given.seed, scratch, given.jobs)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.monotonic() - begin
    print_table(results, seconds)
    if given.out is not None:
        told = figures(results, seconds) | {"seed": given.seed, "short": given.short, "jobs": given.jobs}
        given.out.write_text(json.dumps(told, indent=2) + "\n")
    for one in results:
        if one.wrong:
            short = " --short" if given.short else ""
            print(f"rerun: python -m tests.stress{short} --seed {given.seed} --only '{one.trial.name}'")
    return int(any(one.wrong for one in results) or not results)


def _print_failures(results: Iterable[Result]) -> Iterable[Result]:
    """Yield the results unchanged, and print failed and skipped trials to stderr immediately."""
    for one in results:
        if one.wrong:
            print(f"FAILED {one.trial.name}: {one.wrong}", file=sys.stderr, flush=True)
        if one.skipped:
            print(f"skipped {one.trial.name}: {one.skipped}", file=sys.stderr, flush=True)
        yield one


def _import_all() -> None:
    """Import the modules that commands need, so that forked processes do not have to."""
    import lesson.experiments.engines
    import lesson.experiments.tuned.design
    import lesson.report.page.study_page
    import lesson.report.progress
    import lesson.report.study.metric_figure
    import lesson.runs.execute  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
