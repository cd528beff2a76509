"""Style of figures, and how they are saved."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

from lesson.core.errors import InputError
from lesson.core.files import check_output, write_all

STYLE: Any = {
    "figure.dpi": 160,
    "text.parse_math": False,  # names may contain dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
}
PAPER_STYLE: Any = STYLE | {
    "figure.dpi": 300,
    "font.family": "STIXGeneral",  # resembles Times and ships with matplotlib
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3,
    "patch.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
}
COLUMN_IN, PAGE_IN = 3.5, 7.16
"""Widths in inches of a figure in one column and across both columns of an IEEE page."""
_IN_FILES: Any = {
    "pdf.fonttype": 42,  # journals want fonts embedded as TrueType
    "svg.fonttype": "path",  # looks the same where the font is missing
    "svg.hashsalt": "lesson",
}
FORMATS = (".png", ".pdf", ".svg")
_UNDATED = {
    ".pdf": {"CreationDate": None},
    ".svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
}
"""Metadata to leave out, so that the same figure always gives the same bytes."""

_Arguments = ParamSpec("_Arguments")


class ShownFigure(Figure):
    """A figure that notebooks display without pyplot, which would keep it in memory."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with any_letters():
            self.savefig(content, format="png", dpi="figure")
        return content.getvalue()


@contextlib.contextmanager
def any_letters() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters that the font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def in_paper_style(draw: Callable[_Arguments, Figure]) -> Callable[_Arguments, Figure]:
    """Make a drawing function return its figure in the style of a paper, whatever style is active when it is saved."""

    @wraps(draw)
    def styled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Figure:
        with matplotlib.rc_context(PAPER_STYLE), any_letters():
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # ticks take the style that is active when they are first drawn
        return figure

    return styled


def check_figure_path(path: Path | str) -> None:
    """Raise InputError if a figure cannot be written to this path."""
    check_output(path, "figure", FORMATS)


def save_figure(figure: Figure, path: Path | str) -> None:
    """Write a figure atomically."""
    path = Path(path)
    _save({path.name: figure}, path.parent)


def save_figures(figures: Mapping[str, Figure], folder: Path | str, formats: Sequence[str]) -> list[Path]:
    """Write figures into a folder, each as NAME.FORMAT in all formats (such as .pdf), and return the paths.

    The folder is created if necessary. Either all files are written or none.
    """
    folder = Path(folder)
    make_folder(folder)
    files = {f"{name}{suffix}": figure for name, figure in figures.items() for suffix in formats}
    _save(files, folder)
    return [folder / name for name in files]


def make_folder(folder: Path) -> None:
    """Create a folder for outputs if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from None


def _save(files: Mapping[str, Figure], folder: Path) -> None:
    """Render all figures, then write either all files or none."""
    contents: dict[Path, bytes] = {}
    with matplotlib.rc_context(_IN_FILES), any_letters():
        for name, figure in files.items():
            suffix, drawn = Path(name).suffix.lower(), io.BytesIO()
            figure.savefig(drawn, format=suffix[1:], dpi="figure", metadata=_UNDATED.get(suffix))
            contents[folder / name] = drawn.getvalue()
    write_all(contents)
