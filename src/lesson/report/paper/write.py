"""All outputs of `lesson reproduce`: figures, tables, claims, the README and the report page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lesson.experiments.folder import StudyFolder
from lesson.experiments.measures import by_series
from lesson.experiments.study import Study
from lesson.paper.claims import check_claims
from lesson.paper.items import Item
from lesson.paper.reproduce import read_scale
from lesson.paper.scale import FULL, Scale
from lesson.paper.verdicts import Finding
from lesson.report.files import save_figures
from lesson.report.page.paper_page import write_paper_page
from lesson.report.page.study_page import REPORT
from lesson.report.paper.items import draw_item, items_in, write_claims, write_item, write_page


@dataclass
class Written:
    """The study, the files that were written, by what they show, and the findings about the paper's claims."""

    study: Study
    paths: dict[str, list[Path]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def findings_about(self, items: Sequence[Item]) -> list[Finding]:
        """Return the findings that one of these items shows."""
        names = {item.name for item in items}
        return [finding for finding in self.findings if names & set(finding.items)]


def write_reproduction(
    items: Sequence[Item], scale: Scale, study: Study, out: Path, tell: Callable[[str], None] = lambda _: None
) -> Written:
    """Write the items of a reproduction, whose runs must be done, and the claims about all items in the folder."""
    written, series = Written(study), by_series(study.runs)
    for item in items:
        tell(f"Drawing {item.name}")
        written.paths[item.name] = write_item(item, series, scale, out)
    tell("Checking claims")
    there = items_in(out)
    if not scale.quick:
        written.findings = check_claims(study.runs, [item.name for item in there], scale)
    if written.findings:
        written.paths["claims"] = write_claims(written.findings, out)
    written.paths["page"] = [write_page(there, scale, out)]
    write_paper_page(out, out / REPORT)
    written.paths["report"] = [out / REPORT]
    return written


def draw_items(folder: Path, out: Path, suffixes: Sequence[str]) -> list[Path]:
    """Draw the figures of a reproduction's folder into another folder, in these formats; return their paths."""
    series, scale = by_series(StudyFolder(folder).runs().values()), read_scale(folder) or FULL
    drawn = {item.name: draw_item(item, series, scale) for item in items_in(folder)}
    return save_figures({name: figure for name, figure in drawn.items() if figure is not None}, out, suffixes)
