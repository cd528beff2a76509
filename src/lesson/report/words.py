"""Numbers and tables in words, as Markdown and in the terminal."""

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def count(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown."""
    escaped = "\\|"
    rows = [list(table.columns), ["---"] * len(table.columns), *table.astype(str).to_numpy().tolist()]
    return "".join(f"| {' | '.join(cell.replace('|', escaped) for cell in row)} |\n" for row in rows)


def terminal_table(table: pd.DataFrame, title: str) -> Table:
    """The same in the terminal: the first column to the left, numbers to the right, never cut."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in table.astype(str).to_numpy().tolist():
        shown.add_row(*map(Text, row))
    return shown
