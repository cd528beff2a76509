"""The page of finished runs: report.html."""

import shlex
from pathlib import Path

from lesson.report.groups import groups_of
from lesson.report.page.document import write_document
from lesson.report.page.fleet_data import EXPLORER
from lesson.report.page.study_data import study_data
from lesson.run_folder import RunFolder
from lesson.study import Study

REPORT = "report.html"
"""In the folder of a run, a comparison, a sweep or the paper."""


def write_study_page(study: Study, path: Path) -> None:
    """Write the page of a study; whole or not at all."""
    first = study.runs[0]
    names = [group.name for group in groups_of(study)]
    title = " and ".join([", ".join(names[:-1]), names[-1]] if 1 < len(names) <= 4 else names[:1])
    title = title if len(names) <= 4 else f"{len(names)} contenders"
    data = study_data(study, repeating(study))
    write_document(path, f"LESSON: {title} on {first.settings.run.dataset}", [*EXPLORER, "report.js"], data)


def repeating(study: Study) -> str:
    """The command that makes the same runs again, from the settings that are kept with them."""
    first = study.runs[0]
    config = shlex.quote(str(RunFolder(first.path).config))
    if len(study.runs) == 1:
        return f"lesson run --scenario {config} --out runs/again"
    if study.by == ("strategy",):
        names = ",".join(dict.fromkeys(run.summary["strategy"] for run in study.runs))
        seeds = sorted({run.summary["seed"] for run in study.runs})
        return (
            f"lesson compare --scenario {config} --strategies {shlex.quote(names)} --seed {seeds[0]} "
            f"--seeds {len(seeds)} --out runs/again"
        )
    return f"lesson sweep {shlex.quote(str(first.path.parent / 'sweep.toml'))} --out runs/again"
