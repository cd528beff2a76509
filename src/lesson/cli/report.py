"""The command `lesson report`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import arg

from lesson.core.errors import InputError, unknown
from lesson.report.page.plan_page import check_page_path

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

INCH = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
MIN_WIDTH_IN, MAX_WIDTH_IN = 2.0, 20.0


@dataclass(frozen=True)
class ReportCommand:
    """Write the report of finished runs, or their figures for a paper; several folders are combined.

    Example: lesson report runs/demo -o demo.html --figures figures --format pdf,png --width 3.5in
    """

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], arg(metavar="DIR …", help_behavior_hint="")] = ()
    """Output folders of 'lesson run', 'compare', 'sweep' or 'reproduce'."""
    output: Annotated[
        Path | None, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="(default: DIR/report.html)")
    ] = None
    """Report to write, a self-contained HTML file."""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder for the figures; created if it does not exist."""
    format: Annotated[str, arg(metavar="A,B,…")] = "pdf"
    """pdf, svg, png, or several separated by commas."""
    width: Annotated[str, arg(metavar="LENGTH")] = "3.5in"
    """Width of a figure in in, cm, mm or pt; the font size stays 8 pt."""

    def run(self) -> None:
        if not self.folders:
            raise InputError("DIR must be given: the folder of a run, a comparison or a sweep")
        suffixes, width_in = suffixes_of(self.format), inches(self.width)
        if self.output is None and self.figures is None and len(self.folders) > 1:
            raise InputError("--output or --figures must be given for several folders: what to write, and where")
        if self.output is not None:
            check_page_path(self.output)
        from lesson.experiments.loading import load_together
        from lesson.report.page.paper_page import holds_paper, write_paper_page
        from lesson.report.page.study_page import REPORT, write_study_page

        page = self.output or self.folders[0] / REPORT
        if holds_paper(self.folders):
            if self.figures is not None:
                raise InputError(f"{self.folders[0]} has the paper's figures already; leave --figures out")
            write_paper_page(self.folders[0], page)
        else:
            study = load_together(self.folders)
            if self.figures is not None:
                self._draw(study, self.figures, suffixes, width_in)
                if self.output is None:
                    return
            write_study_page(study, page)
        print(f"report: {page}")

    def _draw(self, study: "Study", folder: Path, suffixes: list[str], width_in: float) -> None:
        """Draw all figures that the study has data for into a folder."""
        from lesson.report.files import save_figures
        from lesson.report.study.figures import draw_figures

        figures, notes = draw_figures(study, width_in)
        for path in save_figures(figures, folder, suffixes):
            print(f"figure: {path}")
        for note in notes:
            print(f"note: {note}")


def suffixes_of(formats: str) -> list[str]:
    """Return the file suffixes of a comma-separated list of formats."""
    names = [name.strip() for name in formats.split(",")]
    for name in names:
        if name not in ("pdf", "png", "svg"):
            raise unknown("format", name, ["pdf", "png", "svg"])
    return [f".{name}" for name in dict.fromkeys(names)]


def inches(length: str) -> float:
    """Convert a length such as 89mm to inches."""
    found = re.fullmatch(rf"(\d+(?:\.\d*)?|\.\d+) *({'|'.join(INCH)})", length.strip())
    if not found:
        raise InputError(f"--width must be a number and in, cm, mm or pt, such as 3.5in, got '{length}'")
    width_in = float(found[1]) * INCH[found[2]]
    if not MIN_WIDTH_IN <= width_in <= MAX_WIDTH_IN:
        raise InputError(f"--width must be {MIN_WIDTH_IN:g}in to {MAX_WIDTH_IN:g}in, got '{length}'")
    return width_in
