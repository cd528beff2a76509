"""Executes missing runs and shows their progress, for `lesson contest` and `lesson reproduce`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lesson.report.words import count

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.engines import LocalEngine
    from lesson.experiments.results import Results
    from lesson.settings.settings import Settings


def make_missing(missing: "dict[str, Settings]", out: Path, engine: "LocalEngine") -> "Results":
    """Execute the missing runs, unless the engine has no time left, and return all results of the folder."""
    from lesson.cli.sweep_progress import SweepProgress
    from lesson.experiments.missing import run_missing
    from lesson.experiments.results import Results

    if not missing or engine.left_s <= 0:
        return Results.load(out)
    print(f"{count(len(missing), 'run')} to make, in {out / 'runs'}", file=sys.stderr)
    command = " ".join(["lesson", *sys.argv[1:]])
    with SweepProgress(missing) as progress:
        try:
            return run_missing(missing, out, engine, command=command, data_dir=engine.data_dir, report=progress.report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; the same command with --out {out} goes on") from None
