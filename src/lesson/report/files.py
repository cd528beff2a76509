"""How figures look and get onto the disk."""

import os
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lesson.errors import InputError

STYLE: Any = {
    "pdf.fonttype": 42,
    "svg.hashsalt": "lesson",
    "text.parse_math": False,  # a title may hold a file's name
    "axes.spines.top": False,
    "axes.spines.right": False,
}
FORMATS = (".png", ".pdf", ".svg")


def check_figure_path(path: Path) -> None:
    """Raise if no figure can be written there."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"figure must end in {', '.join(FORMATS)}, got '{path}'")
    try:
        taken = path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        raise InputError(f"figure cannot be written: '{path}': {error.strerror}") from None
    if not path.parent.is_dir():
        raise InputError(f"figure cannot be written: the folder '{path.parent}' does not exist; make it first")
    if taken:
        raise InputError(f"figure cannot be written: '{path}' is not a file one may write")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the file appears whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder) / path.name
            figure.savefig(whole, dpi=160, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
            whole.replace(path)
    except OSError as error:
        raise InputError(f"figure cannot be written: '{path}': {error.strerror}") from None
