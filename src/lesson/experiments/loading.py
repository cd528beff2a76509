"""Loads the folder of a run, a comparison or a sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lesson.core.errors import InputError
from lesson.experiments.grid import STRATEGY, read_axes
from lesson.experiments.study import COMPARED, FAILURES, Run, Study, hashable, value_at
from lesson.runs.folder import RunFolder, read_kept
from lesson.settings.loading import load_settings
from lesson.settings.settings import SECTIONS, Settings

_WANTED = "it must be the folder of a run, a comparison or a sweep"
_BESIDES = (STRATEGY, "run.seed", "run.checkpoint_every_s", "run.device", "run.precision", "run.trainer")
"""The strategy, which is always a label, and settings in which repetitions of a run may differ."""
_NOT_ENDED = "has not ended; the command that began it goes on with it, lesson run and compare with --resume"


def load(folder: Path | str) -> Run | Study:
    """Load the finished run of a folder, or the study of a comparison or sweep; its unfinished runs are `failures`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}; {_WANTED}")
    if RunFolder(folder).config.exists():
        return Run.load(folder)
    runs = [Run.load(path.parent) for path in sorted(folder.glob("*/summary.json"))]
    if not runs:
        raise InputError(f"{folder} holds no finished run; {_WANTED}")
    begun = [
        path.parent for path in sorted(folder.glob("*/config.toml")) if not RunFolder(path.parent).summary.exists()
    ]
    return (_sweep_of if (folder / "sweep.toml").exists() else _comparison_of)(folder, runs, begun)


def load_together(folders: Sequence[Path | str]) -> Study:
    """Return the runs of several folders as one study."""
    parts = [load(folder) for folder in folders]
    studies = [part if isinstance(part, Study) else Study([part]) for part in parts]
    if len(studies) == 1:
        return studies[0]
    runs = {run.path.resolve(): run for study in studies for run in study.runs}
    failures = {name: reason for study in studies for name, reason in study.failures.items()}
    return _told_apart(list(runs.values()), failures)


def _comparison_of(folder: Path, runs: Sequence[Run], begun: Sequence[Path]) -> Study:
    """Return a study of the runs by strategy, in the order of the folder's table."""
    order = list(read_kept(folder / COMPARED, dict[str, Any](), TypeAdapter(dict[str, Any]), "remove it"))
    names = [*order, *(run.summary["strategy"] for run in runs)]
    ordered = sorted(runs, key=lambda run: names.index(run.summary["strategy"]))
    kept = read_kept(folder / FAILURES, dict[str, str](), TypeAdapter(dict[str, str]), "remove it")
    return _told_apart(ordered, {path.name: kept.get(path.name, _NOT_ENDED) for path in begun})


def _sweep_of(folder: Path, runs: Sequence[Run], begun: Sequence[Path]) -> Study:
    """Return a study of the runs in the folder's current grid, in its order."""
    axes = read_axes(folder / "sweep.toml")
    placed = [(place, run) for run in runs if (place := _place(run.settings, axes)) is not None]
    swept = [run for _, run in sorted(placed, key=lambda pair: pair[0])]
    settings = {path.name: load_settings(str(RunFolder(path).config)) for path in begun}
    failures = {name: _NOT_ENDED for name, one in settings.items() if _place(one, axes) is not None}
    kept = read_kept(folder / FAILURES, dict[str, str](), TypeAdapter(dict[str, str]), "remove it")
    return Study(swept, tuple(axes), failures | kept)


def _place(settings: Settings, axes: Mapping[str, Sequence[Any]]) -> tuple[int, ...] | None:
    """Return the indices of a run's values in the lists of a sweep, with its seed last; None if one is not listed."""
    sections = settings.to_sections()
    places = []
    for key, values in axes.items():
        among = [None, *map(hashable, values)]
        if (value := value_at(sections, key)) not in among:
            return None
        places.append(among.index(value))  # None: its strategy does not have this option
    return (*places, settings.run.seed)


def _told_apart(runs: Sequence[Run], failures: Mapping[str, str]) -> Study:
    """Return a study of runs, labeled by strategy and by the settings that are needed to tell them apart."""
    tables = [run.settings.to_sections() for run in runs]
    order = ("strategy", *(section for section in SECTIONS if section != "strategy"))
    keys = dict.fromkeys(f"{section}.{key}" for section in order for table in tables for key in table[section])
    by = [STRATEGY]
    labels: list[tuple[Any, ...]] = [(value_at(table, STRATEGY),) for table in tables]
    for key in (key for key in keys if key not in _BESIDES):
        finer = [(*label, value_at(table, key)) for label, table in zip(labels, tables, strict=True)]
        if len(set(finer)) > len(set(labels)):
            by, labels = [*by, key], finer
    _check_once(runs, labels)
    return Study(runs, tuple(by) if len(by) > 1 else ("strategy",), failures)


def _check_once(runs: Sequence[Run], labels: Sequence[tuple[Any, ...]]) -> None:
    """Raise InputError if two runs have the same label and seed: the interval of their mean would be too narrow."""
    seen: dict[tuple[Any, ...], Run] = {}
    for run, label in zip(runs, labels, strict=True):
        first = seen.setdefault((*label, run.summary["seed"]), run)
        if first is not run:
            raise InputError(f"{first.path} and {run.path} are the same run; name one of them")
