"""Run what items need and a folder does not hold yet, and keep what came of it."""

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lesson.engines import Engine
from lesson.errors import DivergedError, InputError, RunStoppedError
from lesson.learn.data import load_dataset
from lesson.paper.items import Item, Scale, wanted_runs
from lesson.paper.results import Result, Results
from lesson.run_folder import RunFolder
from lesson.settings import Settings
from lesson.study import Report, check_for_many, unfinished

PROVENANCE = "provenance.json"


def missing_runs(items: Sequence[Item], out: Path, scale: Scale) -> dict[str, Settings]:
    """The runs of these items that the folder's results do not have; raises if it has others of their names."""
    check_for_many(out)
    held = Results.load(out).runs
    wanted = wanted_runs(items, scale)
    for name in wanted.keys() & held.keys():
        if different := wanted[name].differences(held[name].settings):
            raise InputError(f"{out} holds {name} with other settings ({different[0]}); name another folder with --out")
    return {name: settings for name, settings in wanted.items() if name not in held}


def run_missing(
    missing: dict[str, Settings],
    out: Path,
    engine: Engine,
    *,
    data_dir: Path | None = None,
    report: Report | None = None,
) -> Results:
    """All results of the folder, once these runs have been made in folders of its own; those that diverged, too."""
    for dataset in {settings.run.dataset for settings in missing.values()}:
        load_dataset(dataset, data_dir)
    RunFolder(out).make()
    if not missing:
        return Results.load(out)
    plan = {out / "runs" / name: settings for name, settings in missing.items()}
    for path, settings in plan.items():
        RunFolder(path).check(settings, resume=True)
    with RunFolder(out).owned():
        stopped: dict[str, str] = {}
        failures: dict[str, str] = {}
        try:
            with contextlib.closing(engine.run(_by_seed(unfinished(plan, report)))) as events:
                for path, line in events:
                    if "error" in line:
                        kept = stopped if line["kind"] == DivergedError.__name__ else failures
                        kept[path.name] = line["error"]
                    if report is not None:
                        report(path.name, line)
        finally:
            ended = {path.name: path for path in plan if RunFolder(path).finished() is not None or path.name in stopped}
            new = {name: Result.of_folder(path, stopped.get(name, "")) for name, path in ended.items()}
            results = Results(Results.load(out).runs | new)
            results.save(out)
    if failures:
        name, reason = next(iter(failures.items()))
        raise RunStoppedError(
            f"{len(failures)} of {len(missing)} runs failed, the next call tries them again; first {name}: {reason}"
        )
    return results


def _by_seed(plan: dict[Path, Settings]) -> dict[Path, Settings]:
    """The first seed of all before the second."""
    return dict(sorted(plan.items(), key=lambda item: item[1].run.seed))


def note_provenance(out: Path, command: str, num_runs: int, wall_s: float) -> None:
    """Add to the folder what made so many of its runs; versions and hardware are with each run."""
    path = out / PROVENANCE
    notes = json.loads(path.read_text()) if path.exists() else []
    notes.append({"command": command, "commit": _commit(), "runs": num_runs, "wall_s": round(wall_s, 1)})
    path.write_text(json.dumps(notes, indent=2) + "\n")


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
