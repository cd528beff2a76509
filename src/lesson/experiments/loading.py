"""Loads a run or a study from its folder, in progress or archived."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lesson.core.errors import InputError
from lesson.experiments.folder import UNFINISHED, StudyFolder
from lesson.experiments.grid import read_asked
from lesson.experiments.naming import run_name
from lesson.experiments.run import Run
from lesson.experiments.study import Study, tell_apart
from lesson.experiments.tuned.design import TunedComparison
from lesson.runs.folder import RunFolder
from lesson.settings.loading import load_settings

_WANTED = "it must be the output folder of run, compare, sweep or reproduce"


def load(folder: Path | str) -> Run | Study:
    """Load the finished run of a folder, or the study of a comparison, a sweep, a tuned comparison or a reproduction.

    Args:
        folder: Output folder of run, compare, sweep or reproduce. A study may be in progress or archived.

    Returns:
        A `Run`, or a `Study` whose `failures` lists the runs that failed or have not finished.

    Raises:
        InputError: The folder holds no finished run, or its files are damaged.
    """
    if not isinstance(folder, Path | str):
        raise InputError(f"folder must be a path, got {folder!r}; {_WANTED}")
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path} {'is a file' if path.exists() else 'does not exist'}; {_WANTED}")
    if RunFolder(path).config.exists():
        return Run.load(path)
    there = StudyFolder(path)
    marker, done = there.read(), there.runs()
    begun = there.unfinished()
    if not done and marker is None:
        begins = f"none of its {len(begun)} runs has finished" if begun else _WANTED
        raise InputError(f"{path} holds no finished run; {begins}")
    failures = {one.name: UNFINISHED for one in begun} | (marker.failures if marker else {})
    failures = {name: reason for name, reason in failures.items() if name not in done}
    if marker is not None and marker.kind == TunedComparison.kind:
        return TunedComparison.load(there.marker).study(done, failures)
    if marker is not None and marker.kind in ("sweep", "comparison"):
        return _in_grid(there, marker.kind, done, failures)
    return tell_apart(list(done.values()), failures)


def load_study(folders: Sequence[Path | str]) -> Study:
    """Load one or more folders as one study."""
    parts = [load(folder) for folder in folders]
    studies = [part if isinstance(part, Study) else Study([part]) for part in parts]
    if len(studies) == 1:
        return studies[0]
    # An archived run may be in several groups of a tuned comparison.
    runs = {run.path.resolve() if run.path else id(run.archived): run for study in studies for run in study.runs}
    failures = {name: reason for study in studies for name, reason in study.failures.items()}
    return tell_apart([replace(run, labels={}) for run in runs.values()], failures)


def _in_grid(there: StudyFolder, kind: str, done: Mapping[str, Run], failures: Mapping[str, str]) -> Study:
    """Return a study of the runs in the folder's grid, in its order; the folder may hold runs of an earlier grid."""
    asked = read_asked(there.marker)
    placed: dict[tuple[int, ...], Run] = {}
    for run in sorted(done.values(), key=lambda run: run.name != run_name(run.settings, asked.axes)):
        if (place := asked.place(run.settings)) is not None:
            placed.setdefault(place, run)  # another grid may have had the same run under another name
    runs = [placed[place] for place in sorted(placed)]
    begun = {path.name: load_settings(str(RunFolder(path).config)) for path in there.unfinished()}
    strangers = [name for name, settings in begun.items() if asked.place(settings) is None]
    failed = {name: reason for name, reason in failures.items() if name not in strangers}
    return Study(runs, ("strategy",) if kind == "comparison" else tuple(asked.axes), failed)
