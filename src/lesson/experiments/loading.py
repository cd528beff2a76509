"""Loads a run or a study from its folder, in progress or archived."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lesson.core.errors import InputError
from lesson.experiments.folder import Marker, StudyFolder
from lesson.experiments.run import Run
from lesson.experiments.study import Study, tell_apart
from lesson.experiments.tuning.file import Tuning
from lesson.experiments.tuning.study import KIND, TunedStudy
from lesson.runs.folder import RunFolder

UNFINISHED = "it has not finished; repeat the command that started it to resume it"
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
    begun = [one.parent.name for one in sorted(path.glob("*/config.toml")) if RunFolder(one.parent).is_unfinished]
    if marker is None and not done:
        problem = f"none of its {len(begun)} runs has finished" if begun else _WANTED
        raise InputError(f"{path} holds no finished run; {problem}")
    unfinished = dict.fromkeys(begun, UNFINISHED)
    if marker is None:
        return replace(tell_apart(list(done.values()), unfinished), path=path)
    return study_of(there, marker.model_copy(update={"failures": unfinished | marker.failures}), done)


def study_of(folder: StudyFolder, marker: Marker, done: Mapping[str, Run]) -> Study:
    """Return the study of the finished runs that study.toml lists, in this order and with their labels."""
    listed = [(run["name"], {key: value for key, value in run.items() if key != "name"}) for run in marker.runs]
    runs = [replace(done[name], labels=labels) for name, labels in listed if name in done]
    failures = {name: marker.failures[name] for name, _ in listed if name in marker.failures and name not in done}
    if marker.kind == KIND:
        final, tuning = ([run for run in runs if run.labels["phase"] == phase] for phase in ("final", "tuning"))
        file = Tuning.read(folder.marker)
        by = tuple(marker.by)
        return TunedStudy(final, by, failures, folder.path, rules=file.rules, groups_shown=file.groups, tuning=tuning)
    if not marker.by:
        return replace(tell_apart(runs, failures), path=folder.path)
    return Study(runs, tuple(marker.by), failures, folder.path)


def load_study(folders: Sequence[Path | str]) -> Study:
    """Load one or more folders as one study."""
    parts = [load(folder) for folder in folders]
    studies = [part if isinstance(part, Study) else Study([part], path=part.path) for part in parts]
    if len(studies) == 1:
        return studies[0]
    # An archived run may be in several groups of a tuned comparison.
    runs = {run.path.resolve() if run.path else id(run.archived): run for study in studies for run in study.runs}
    failures = {name: reason for study in studies for name, reason in study.failures.items()}
    return tell_apart([replace(run, labels={}) for run in runs.values()], failures)
