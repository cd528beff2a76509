"""The command `lesson report`."""

import re
from dataclasses import dataclass
from pathlib import Path

from lesson.cli.parser import DIR, argument, option
from lesson.core.errors import InputError, unknown

TABLE = "table.tex"
INCH = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
MIN_WIDTH_IN, MAX_WIDTH_IN = 2.0, 20.0


@dataclass(frozen=True)
class ReportCommand:
    """Write a report of finished runs, and figures and tables for a paper. Several folders are combined.

    Example: lesson report runs/demo --figures pdf --latex --out paper
    """

    folders: tuple[Path, ...] = argument(
        "folders", nargs=-1, type=DIR, metavar="DIR...", help="Output folders of run, compare, sweep or reproduce."
    )
    out: Path | None = option("--out", type=DIR, show_default="DIR", help="Output folder.")
    figures: str | None = option(
        "--figures", metavar="A,B,...", help="Also draw figures, in one or more of the formats pdf, png and svg."
    )
    latex: bool = option(
        "--latex", is_flag=True, help="Also write the results as a LaTeX table, table.tex (needs booktabs)."
    )
    width: str = option(
        "--width",
        metavar="LENGTH",
        default="3.5in",
        help="Width of a figure, such as 3.5in, 9cm, 90mm or 252pt; the font stays 8 pt.",
    )

    def run(self) -> None:
        if not self.folders:
            raise InputError("DIR is required: the output folder of a run or a study")
        if self.out is None and len(self.folders) > 1:
            raise InputError("--out is required with several folders")
        suffixes, width_in = suffixes_of(self.figures) if self.figures is not None else [], inches(self.width)
        out = self.out or self.folders[0]
        from lesson.core.files import write_whole
        from lesson.experiments.loading import load_study
        from lesson.paper.reproduce import read_scale
        from lesson.report.figures import draw_figures
        from lesson.report.files import make_folder, save_figures
        from lesson.report.page.study_page import REPORT, write_study_page
        from lesson.report.paper.write import draw_items, write_paper_page
        from lesson.report.results import printed_table

        study = load_study(self.folders)
        make_folder(out)
        notes = [f"{name} is not included: {reason}" for name, reason in study.failures.items()]
        if len(self.folders) == 1 and read_scale(self.folders[0]) is not None:
            write_paper_page(study, self.folders[0], out / REPORT)
            figures = draw_items(study, self.folders[0], out, suffixes) if suffixes else []
        else:
            write_study_page(study, out / REPORT)
            drawn, of_figures = draw_figures(study, width_in) if suffixes else ({}, [])
            notes += of_figures
            figures = save_figures(drawn, out, suffixes)
        if self.latex:
            write_whole(out / TABLE, printed_table(study).to_latex("tab:results").encode())
            print(f"table: {out / TABLE}")
        for path in figures:
            print(f"figure: {path}")
        for note in notes:
            print(f"note: {note}")
        print(f"report: {out / REPORT}")


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
