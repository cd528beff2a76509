"""Rerun archived runs and compare every evaluation.

    python tools/verify_archive.py experiments/strategies/results "^lesson-cifar10-beta=0.1-.*seed0$"

With the same versions on the same hardware, every number must be identical. Elsewhere, floating-point rounding differs,
and after thousands of steps a model may differ as much as that of an independent run. The simulated clock does not
depend on the training device, so the schedule must still be identical unless the strategy reads signals from training.
The exit status is 1 if a run differs more than this.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from lesson.experiments.folder import StudyFolder
from lesson.experiments.run import Run
from lesson.report.progress import RunProgress
from lesson.runs.execute import execute
from lesson.strategies import make_strategy

SCHEDULE = {"round": 0.0, "time_s": 1.01e-3, "uploads": 0.0, "energy_j": 1.01e-3}
"""Columns that come from the simulated clock, with the last digit that an archive stores."""


def compare(was: Run, now: Run) -> tuple[str, bool]:
    """Describe how a repeated run differs from the archived one, and return whether this is allowed."""
    rows = len(was.curve)
    if len(now.curve) - rows not in (0, 1):  # the first archives lack the evaluation of the final model
        return f"{rows} evaluations in the archive, {len(now.curve)} here", False
    far = {
        name: float(np.abs(was.curve[name].to_numpy(float) - now.curve[name].to_numpy(float)[:rows]).max(initial=0))
        for name in was.curve
        if name in now.curve
    }
    if not any(far.values()):
        return f"identical, {rows} evaluations", True
    score = f"{was.metric.name} differs by at most {far[was.metric.name]:.4g}"
    here = {name: one for name, one in now.versions.items() if was.versions.get(name) != one}
    if not here and was.summary.get("device") == now.summary.get("device"):
        return f"{score}, although hardware and versions are the same", False
    machine = ", ".join(f"{name} {was.versions.get(name, 'unknown')} → {one}" for name, one in here.items())
    chosen = was.settings.strategy
    needs = make_strategy(chosen.name, chosen.deadline_s, chosen.options).needs or was.settings.guards.limits_norms
    late = [name for name, digit in SCHEDULE.items() if far.get(name, 0.0) > digit]
    schedule = "not compared" if needs else f"differs in {', '.join(late)}" if late else "identical"
    return f"schedule {schedule}; {score} ({machine})", bool(needs) or not late


def main() -> int:
    """Rerun the selected runs and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with an archive, runs.jsonl.gz")
    parser.add_argument("names", nargs="?", default="", help="regular expression that the names of the runs match")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    options = parser.parse_args()
    runs = [run for name, run in StudyFolder(options.folder).runs().items() if re.search(options.names, name)]
    if not runs:
        parser.error(f"no archived run matches '{options.names}'")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for was in runs:
            settings = was.settings.with_changes(device="auto", precision="auto")
            with RunProgress(settings.run) as progress:
                execute(settings, Path(folder, was.name), data_dir=options.data_dir, progress=progress.report)
            words, allowed = compare(was, Run.load(Path(folder, was.name)))
            failed += not allowed
            print(f"{was.name}: {words}", flush=True)
    print(f"{len(runs) - failed} of {len(runs)} runs agree with {options.folder}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
