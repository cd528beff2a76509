"""The command `lesson report`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lesson.cli.parser import DIR, FILE, argument, option
from lesson.core.errors import InputError, unknown
from lesson.report.page.plan_page import check_page_path

if TYPE_CHECKING:  # it imports torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

INCH = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
MIN_WIDTH_IN, MAX_WIDTH_IN = 2.0, 20.0


@dataclass(frozen=True)
class ReportCommand:
    """Write a report of finished runs, or draw figures. Several folders are combined.

    Example: lesson report runs/demo --figures figures --width 9cm
    """

    folders: tuple[Path, ...] = argument(
        "folders", nargs=-1, type=DIR, metavar="DIR...", help="Output folders of run, compare, sweep or reproduce."
    )
    output: Path | None = option(
        "-o", "--output", type=FILE, show_default="DIR/report.html", help="Report to write: a self-contained HTML file."
    )
    figures: Path | None = option("--figures", type=DIR, help="Folder for the figures, created if it does not exist.")
    format: str = option(
        "--format", metavar="A,B,...", default="pdf", help="Formats of the figures: one or more of pdf, png and svg."
    )
    width: str = option(
        "--width",
        metavar="LENGTH",
        default="3.5in",
        help="Width of a figure, such as 3.5in, 9cm, 90mm or 252pt; the font stays 8 pt.",
    )

    def run(self) -> None:
        if not self.folders:
            raise InputError("DIR must be given: the output folder of a run or a study")
        suffixes, width_in = suffixes_of(self.format), inches(self.width)
        if self.output is None and self.figures is None and len(self.folders) > 1:
            raise InputError("--output or --figures must be given for several folders")
        if self.output is not None:
            check_page_path(self.output)
        from lesson.experiments.loading import load_study
        from lesson.paper.reproduce import read_scale
        from lesson.report.page.study_page import REPORT, write_study_page
        from lesson.report.paper.write import write_paper_page

        page = self.output or self.folders[0] / REPORT
        study = load_study(self.folders)
        is_paper = len(self.folders) == 1 and read_scale(self.folders[0]) is not None
        if self.figures is not None:
            self._draw(study, is_paper, self.figures, suffixes, width_in)
        if self.figures is None or self.output is not None:
            if is_paper:
                write_paper_page(study, self.folders[0], page)
            else:
                write_study_page(study, page)
            print(f"report: {page}")

    def _draw(self, study: "Study", is_paper: bool, folder: Path, suffixes: list[str], width_in: float) -> None:
        """Draw all figures of a study, or those of the paper; the latter and tuned comparisons are page-wide."""
        from lesson.report.files import save_figures
        from lesson.report.paper.write import draw_items
        from lesson.report.study.figures import draw_figures

        if self.width != "3.5in" and is_paper:
            print("note: --width has no effect: figures of the paper are as wide as a page")

        notes: list[str] = []
        if is_paper:
            paths = draw_items(study, self.folders[0], folder, suffixes)
        else:
            figures, notes = draw_figures(study, width_in)
            paths = save_figures(figures, folder, suffixes)
        for path in paths:
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
        raise InputError(f"--width must be a number with the unit in, cm, mm or pt, such as 3.5in, got '{length}'")
    width_in = float(found[1]) * INCH[found[2]]
    if not MIN_WIDTH_IN <= width_in <= MAX_WIDTH_IN:
        raise InputError(f"--width must be from {MIN_WIDTH_IN:g}in to {MAX_WIDTH_IN:g}in, got '{length}'")
    return width_in
