"""Counts and tables as text, for Markdown and for the terminal."""

import re
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # takes a while to import; commands count runs before they need it
    import pandas as pd


def count(number: int, what: str, several: str = "") -> str:
    """Return a count with its noun, such as "1 round" or "2,000 rounds"; `several` is an irregular plural."""
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def markdown(table: "pd.DataFrame") -> str:
    """Return a table as Markdown."""
    escaped = "\\|"
    rows = [list(table.columns), ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "".join(f"| {' | '.join(cell.replace('|', escaped) for cell in row)} |\n" for row in rows)


def terminal_table(table: "pd.DataFrame", title: str) -> Table:
    """Return a table for the terminal: first column left-aligned, others right-aligned, no wrapped cells.

    Long headings such as "time to 70% (s)" take several lines.
    """
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.columns):
        heading = re.sub(r" (?=(at|to|gain) |\()", "\n", name)
        shown.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in table.astype(str).to_numpy().tolist():
        shown.add_row(*map(Text, row))
    return shown
