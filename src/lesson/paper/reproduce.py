"""Run what items need and a folder does not hold yet, and keep what came of it."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from lesson.engines import Engine
from lesson.engines.trial import Line
from lesson.errors import DivergedError, InputError, RunStoppedError
from lesson.files import write_whole
from lesson.learn.data import load_dataset
from lesson.paper.items import Item, wanted_runs
from lesson.paper.results import Result, Results
from lesson.paper.scale import Scale
from lesson.read_back import Shape
from lesson.run_folder import RunFolder, read_kept
from lesson.settings import Settings
from lesson.study import RULES, SCALE, Report, check_for_many, unfinished
from lesson.sweep import run_by_seed

PROVENANCE = "provenance.json"


class _KeptScale(Shape):
    quick: bool
    seeds: Annotated[int, Field(ge=1, le=1000)]


class _Note(Shape):
    command: str
    commit: str | None
    runs: int
    wall_s: float


SCALE_KIND: TypeAdapter[Any] = TypeAdapter(_KeptScale)


def claim_folder(out: Path | str, scale: Scale) -> None:
    """Make the folder one of this scale; raises if it is of another."""
    out = Path(out)
    check_for_many(out)
    if (out / RULES).exists():
        raise InputError(f"{out} holds a contest; name another folder with --out")
    wanted, path = {"quick": scale.quick, "seeds": scale.seeds}, out / SCALE
    there = read_kept(path, wanted, SCALE_KIND, "name another folder with --out")
    if there != wanted:
        kind = "a quick look" if there["quick"] else "the full set"
        raise InputError(f"{out} holds {kind} from {there['seeds']} seeds; name another folder with --out")
    RunFolder(out).make()
    write_whole(path, (json.dumps(wanted) + "\n").encode())


def missing_runs(items: Sequence[Item], out: Path | str, scale: Scale) -> dict[str, Settings]:
    """The runs of these items that the folder's results do not have."""
    return not_held(wanted_runs(items, scale), out)


def not_held(wanted: Mapping[str, Settings], out: Path | str) -> dict[str, Settings]:
    """Those of the runs that the folder's results do not have; raises if it has others of their names."""
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
    """All results of the folder, once these runs have been made in folders of its own; those that diverged, too.

    The command is noted beside them, with the commit this code is of and how many runs it made.
    """
    out = Path(out)
    for dataset in {settings.run.dataset for settings in missing.values()}:
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
    """Which commands made the runs of a folder, with commit and number."""
    return read_kept(Path(out) / PROVENANCE, list[dict[str, Any]](), TypeAdapter(list[_Note]), "remove it")


def _commit() -> str | None:
    """The commit this code is of, with a + if it has been changed since; None if it is not in a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
