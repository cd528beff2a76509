"""Sweeps: all trials of a grid, each in a subfolder; trials that are missing are executed."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.experiments.engines import Engine, LocalEngine
from lesson.experiments.engines.trial import Line
from lesson.experiments.grid import Grid
from lesson.experiments.study import (
    COMPARED,
    Report,
    Run,
    Study,
    check_for_many,
    unfinished,
    write_failures,
    write_table,
)
from lesson.runs.folder import RunFolder
from lesson.runs.trackers import Tracker
from lesson.settings.settings import Settings


def sweep(
    grid: Grid,
    out: Path | str,
    *,
    engine: Engine | None = None,
    report: Report | None = None,
    trackers: Sequence[Tracker] = (),
) -> Study:
    """Execute the trials of a grid that `out` lacks, on this machine's cores or another engine, and return all.

    A trial that fails is one of the study's failures and does not stop the others; the next call tries it again.
    """
    out, engine = Path(out), engine or LocalEngine()
    engine.check()
    plan = {out / trial.name: trial.settings for trial in grid.trials}
    _check(out, plan)
    left = unfinished(plan, report)
    RunFolder(out).make()
    with RunFolder(out).owned():
        write_whole(out / "sweep.toml", grid.toml.encode())
        errors: dict[str, Line] = {}
        run_by_seed(left, engine, report, errors, trackers)
        failures = {name: line["error"] for name, line in errors.items()}
        study = Study([Run.load(path) for path in plan if path.name not in failures], grid.keys, failures)
        _write_outcome(study, out)
    return study


def _check(out: Path, plan: dict[Path, Settings]) -> None:
    """Raise InputError if one of the trials cannot start."""
    check_for_many(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder; name another with --out")
    if out.exists() and any(out.glob("[!.]*")) and not (out / "sweep.toml").exists():
        raise InputError(f"{out} is not empty and holds no sweep; name another folder with --out")
    for path, settings in plan.items():
        RunFolder(path).check(settings, resume=True)


def run_by_seed(
    left: Mapping[Path, Settings],
    engine: Engine,
    report: Report | None,
    errors: dict[str, Line],
    trackers: Sequence[Tracker] = (),
) -> None:
    """Execute these runs in the order of their seeds; put the last line of each failed run into `errors`."""
    if not left:
        return
    ordered = dict(sorted(left.items(), key=lambda item: item[1].run.seed))
    with contextlib.closing(engine.run(ordered, trackers)) as events:
        for path, line in events:
            if "error" in line:
                errors[path.name] = line
            if report is not None:
                report(path.name, line)


def _write_outcome(study: Study, out: Path) -> None:
    """Write tables and failures to the folder of the sweep."""
    write_table(study, out / COMPARED)
    write_whole(out / "table.csv", study.table().to_csv().encode())
    write_failures(study, out)
