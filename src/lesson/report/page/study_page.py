"""The report page of finished runs, report.html."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from lesson.core.errors import InputError
from lesson.experiments.folder import StudyFolder
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.experiments.tuning.study import TunedStudy
from lesson.report.page.document import Section, write_document
from lesson.report.page.explorer import EXPLORER
from lesson.report.page.study_data import study_data
from lesson.report.study.groups import groups_of
from lesson.runs.folder import RunFolder
from lesson.settings.settings import Settings

SCRIPTS = ("report_looks.js", "report_course.js", "report_clients.js", "report.js")
REPORT = "report.html"
"""Name of the report page in the folder of a run, a comparison, a sweep or a reproduction."""


def write_study_page(study: Study, path: Path | str, *, sections: Sequence[Section] = (), title: str = "") -> None:
    """Atomically write the report page of a study: what was run, further sections if any, and the results.

    The title is by default made from the names of the configurations and the data sets. A study without runs needs a
    title and further sections.
    """
    path = Path(path)
    if not study.runs and not sections:
        raise InputError("there is no finished run to report on")
    data = study_data(study, repeating(study)) if study.runs else {"groups": [], "varies": []}
    further = {"sections": [section.to_data() for section in sections]}
    write_document(path, f"LESSON: {title or _title(study)}", [*EXPLORER, *SCRIPTS], data | further)


def _title(study: Study) -> str:
    names = [group.name for group in groups_of(study)]
    title = " and ".join([", ".join(names[:-1]), names[-1]] if 1 < len(names) <= 4 else names[:1])
    title = title if len(names) <= 4 else f"{len(names)} configurations"
    return f"{title} on {' and '.join(dict.fromkeys(run.settings.data.dataset for run in study.runs))}"


def repeating(study: Study) -> str:
    """Return the commands that repeat the runs from the files stored with them.

    Empty for runs on real clients, and if some runs are archived.
    """
    paths = [run.path for run in study.runs if run.path is not None]
    if not paths or any((path / "latencies.csv").exists() for path in paths):  # only Flower runs have it
        return ""
    first, folder = study.runs[0], StudyFolder(paths[0].parent)
    again = f"lesson sweep {shlex.quote(str(folder.marker))} --out runs/again"
    if isinstance(study, TunedStudy):
        return f"{again} --tune"
    if len(paths) < len(study.runs):
        return ""
    if len(study.runs) > 1 and _are_a_comparison(study.runs):
        names = ",".join(dict.fromkeys(run.summary["strategy"] for run in study.runs))
        seeds = sorted({run.summary["seed"] for run in study.runs})
        return (
            f"lesson compare --scenario {_config(first)} --strategies {shlex.quote(names)} --seed {seeds[0]} "
            f"--seeds {len(seeds)} --out runs/again"
        )
    asked = folder.read()
    if asked is not None and asked.kind in ("sweep", "comparison") and len(paths) == len(asked.runs):
        return again
    outs = ["runs/again", *(f"runs/again-{number}" for number in range(2, len(study.runs) + 1))]
    pairs = zip(study.runs, outs, strict=True)
    return "\n".join(f"lesson run --scenario {_config(run)} --out {out}" for run, out in pairs)


def _are_a_comparison(runs: Sequence[Run]) -> bool:
    """Return whether the runs are all combinations of strategies and consecutive seeds under the same settings."""
    pairs = {(run.summary["strategy"], run.summary["seed"]) for run in runs}
    strategies, seeds = {name for name, _ in pairs}, {seed for _, seed in pairs}
    complete = len(pairs) == len(runs) == len(strategies) * len(seeds) and max(seeds) - min(seeds) == len(seeds) - 1
    return complete and all(_besides(run) == _besides(runs[0]) for run in runs)


def _besides(run: Run) -> Settings:
    """Return a run's settings with its seed and the name of its strategy cleared."""
    settings = run.settings
    strategy, limits = settings.strategy.model_copy(update={"name": ""}), settings.run.model_copy(update={"seed": 0})
    return settings.model_copy(update={"strategy": strategy, "run": limits})


def _config(run: Run) -> str:
    assert run.path is not None, "archived runs have no file to repeat them from"
    return shlex.quote(str(RunFolder(run.path).config))
