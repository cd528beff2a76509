"""The report page of finished runs, report.html."""

from collections.abc import Sequence
from pathlib import Path

from lesson.core.errors import InputError
from lesson.experiments.study import Study
from lesson.experiments.tuning.study import TunedStudy
from lesson.report.groups import groups_of
from lesson.report.page.document import Section, write_document
from lesson.report.page.explorer import EXPLORER
from lesson.report.page.study_data import study_data
from lesson.report.tuning import tuning_section

SCRIPTS = ("report_looks.js", "report_course.js", "report_clients.js", "report.js")
REPORT = "report.html"
"""Name of the report page in the folder of a run, a comparison, a sweep or a reproduction."""


def write_study_page(study: Study, path: Path | str, *, sections: Sequence[Section] = (), title: str = "") -> None:
    """Atomically write the report page of a study, with further `sections` between the summary and the results.

    The default title names the configurations and the data sets. A study without runs needs a title and sections.
    """
    path = Path(path)
    if not study.runs and not sections:
        raise InputError("there is no finished run to report on")
    data = study_data(study) if study.runs else {"groups": [], "varies": []}
    appendix = [tuning_section(study)] if isinstance(study, TunedStudy) and study.tuning else []
    further = {
        "sections": [section.to_data() for section in sections],
        "appendix": [section.to_data() for section in appendix],
    }
    write_document(path, f"LESSON: {title or _title(study)}", [*EXPLORER, *SCRIPTS], data | further)


def _title(study: Study) -> str:
    names = [group.name for group in groups_of(study)]
    title = " and ".join([", ".join(names[:-1]), names[-1]] if 1 < len(names) <= 4 else names[:1])
    title = title if len(names) <= 4 else f"{len(names)} configurations"
    return f"{title} on {' and '.join(dict.fromkeys(run.settings.data.dataset for run in study.runs))}"
