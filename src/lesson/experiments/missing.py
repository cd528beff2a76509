"""Executes the runs that a folder lacks, and archives their results."""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lesson.core.errors import DivergedError, InputError, RunStoppedError
from lesson.core.files import write_whole
from lesson.experiments.engines import Engine
from lesson.experiments.engines.trial import Line
from lesson.experiments.results import Result, Results
from lesson.experiments.study import Report, unfinished
from lesson.experiments.sweep import run_by_seed
from lesson.learn.data import load_dataset
from lesson.runs.folder import RunFolder, read_kept
from lesson.runs.read_back import Shape
from lesson.settings.settings import Settings

PROVENANCE = "provenance.json"


class _Note(Shape):
    command: str
    commit: str | None
    runs: int
    wall_s: float


def not_held(wanted: Mapping[str, Settings], out: Path | str) -> dict[str, Settings]:
    """Return the wanted runs that `out` has no results for; raise InputError if it has one with other settings."""
    out = Path(out)
    held = Results.load(out).runs
    for name in wanted.keys() & held.keys():
        if different := wanted[name].differences(held[name].settings):
            raise InputError(f"{out} holds {name} with other settings ({different[0]}); name another folder with --out")
    return {name: settings for name, settings in wanted.items() if name not in held}


def run_missing(
    missing: dict[str, Settings],
    out: Path | str,
    engine: Engine,
    *,
    command: str,
    data_dir: Path | str | None = None,
    report: Report | None = None,
) -> Results:
    """Execute these runs in subfolders of `out` and return all results of `out`, including runs that diverged.

    The command is recorded in provenance.json, with the commit of this code and the number of runs. Raises
    RunStoppedError if runs failed.
    """
    out = Path(out)
    for dataset in {settings.data.dataset for settings in missing.values()}:
        load_dataset(dataset, data_dir)
    if not missing:
        return Results.load(out)
    plan = {out / "runs" / name: settings for name, settings in missing.items()}
    for path, settings in plan.items():
        RunFolder(path).check(settings, resume=True)
    notes, commit, begin = load_notes(out), _commit(), time.perf_counter()
    left = unfinished(plan, report)
    errors: dict[str, Line] = {}
    try:
        run_by_seed(left, engine, report, errors)
    finally:
        diverged = [name for name, line in errors.items() if line["kind"] == DivergedError.__name__]
        stopped = {name: errors.pop(name)["error"] for name in diverged}
        ended = {path for path in plan if RunFolder(path).finished() is not None or path.name in stopped}
        new = {path.name: Result.of_folder(path, stopped.get(path.name, "")) for path in ended}
        results = Results(Results.load(out).runs | new)
        results.save(out)
        if made := len(ended & left.keys()):
            wall_s = round(time.perf_counter() - begin, 1)
            notes.append({"command": command, "commit": commit, "runs": made, "wall_s": wall_s})
            write_whole(out / PROVENANCE, (json.dumps(notes, indent=2) + "\n").encode())
    if errors:
        name, line = next(iter(errors.items()))
        failed = f"{len(errors)} of {len(missing)} runs failed, the next call tries them again"
        raise RunStoppedError(f"{failed}; first {name}: {line['error']}")
    return results


def load_notes(out: Path | str) -> list[dict[str, Any]]:
    """Return which commands executed the runs of a folder, with commit and number of runs."""
    return read_kept(Path(out) / PROVENANCE, list[dict[str, Any]](), TypeAdapter(list[_Note]), "remove it")


def _commit() -> str | None:
    """Return the commit of this code, with a + if it has uncommitted changes; None if it is not in a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
