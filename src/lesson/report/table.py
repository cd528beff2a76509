"""Tables: defined once, by columns and rows, and written for terminals, Markdown, HTML pages and LaTeX."""

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.text import Text

_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${letter}$" for letter in "<>|"},  # other characters in the default font of LaTeX
    "[": "{[}",  # not the argument of the row before
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "δ": r"$\delta$",
    "→": r"$\to$",
    "σ": r"$\sigma$",
    "∞": r"$\infty$",
    "\u00a0": "~",
}


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the value of a row, and the format of values.

    `value` is a function of a row, or a key into it. Pages sort by values that are numbers or can be converted to them.
    """

    heading: str
    value: Callable[[Any], Any] | str
    format: Callable[[Any], str] = str
    align: Literal["left", "right"] = "right"

    def of(self, row: Any) -> Any:
        """Return the value of a row."""
        return row[self.value] if isinstance(self.value, str) else self.value(row)


@dataclass(frozen=True)
class Table:
    """A table: rows of any type, and the columns that show them."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    row_style: Callable[[Any], str] = lambda _: ""
    """The style of a row in a terminal, such as "bold"."""

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """The formatted values, row by row."""
        return [[column.format(column.of(row)) for column in self.columns] for row in self.rows]

    def transposed(self) -> "Table":
        """Return the table with the first column as the headings, and the others as rows."""
        headings, *rows = zip(self.headings, *self.cells, strict=True)
        columns = [
            Column(heading, itemgetter(place), align="right" if place else "left")
            for place, heading in enumerate(headings)
        ]
        return Table(columns, rows, self.title)

    def to_rich(self) -> rich.table.Table:
        """Return the table for a terminal."""
        table = rich.table.Table(
            title=Text(self.title, "bold", no_wrap=True, overflow="ignore") if self.title else None,
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=True,
        )
        for column in self.columns:
            table.add_column(Text(_narrow(column.heading)), justify=column.align, no_wrap=column.align == "right")
        for row, cells in zip(self.rows, self.cells, strict=True):
            table.add_row(*map(Text, cells), style=self.row_style(row))
        return table

    def parts(self, width: int) -> list["Table"]:
        """Split the columns into tables that fit a terminal of this width; each repeats the first column."""
        cells, parts, used = self.cells, list[list[int]](), 0
        texts = [[*_narrow(heading).split("\n"), *rows] for heading, *rows in zip(self.headings, *cells, strict=True)]
        widths = [max(map(len, lines)) + 2 for lines in texts]
        for place in range(1, len(widths)):
            if not parts or used + widths[place] > width:
                parts.append([0])
                used = widths[0]
            parts[-1].append(place)
            used += widths[place]
        columns = [
            [replace(self.columns[place], value=itemgetter(place), format=str) for place in part]
            for part in parts or [[0]]
        ]
        return [Table(part, cells, "" if number else self.title) for number, part in enumerate(columns)]

    def to_markdown(self) -> str:
        """Return the table in Markdown, without its title."""
        rules = ["---:" if column.align == "right" else "---" for column in self.columns]
        lines = [self.headings, rules, *self.cells]
        escaped = str.maketrans({"|": "\\|", "\n": "<br>"})
        return "".join(f"| {' | '.join(cell.translate(escaped) for cell in line)} |\n" for line in lines)

    def to_html(self) -> str:
        """Return the table as an HTML element."""
        aligned = [f'style="text-align:{column.align}"' for column in self.columns]
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in self.headings)
        lines = [
            "".join(f"<td {style}>{html.escape(cell)}</td>" for style, cell in zip(aligned, line, strict=True))
            for line in self.cells
        ]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_latex(self, label: str = "") -> str:
        r"""Return the table as a LaTeX float; it needs \usepackage{booktabs}."""
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in [self.headings, *self.cells]]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                *([rf"\caption{{{_latex(self.title)}}}"] if self.title else []),
                *([rf"\label{{{label}}}"] if label else []),
                rf"\begin{{tabular}}{{{''.join(column.align[0] for column in self.columns)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_data(self) -> dict[str, Any]:
        """Return the table for a page: headings, alignments, and rows of cells as [text, value to sort by or None]."""
        rows = [
            [[cell, _sort_key(column.of(row))] for column, cell in zip(self.columns, cells, strict=True)]
            for row, cells in zip(self.rows, self.cells, strict=True)
        ]
        align = [column.align for column in self.columns]
        return {"title": self.title, "columns": self.headings, "align": align, "rows": rows}


def _narrow(heading: str) -> str:
    """Return a heading on several lines, which keeps numeric columns narrow."""
    return re.sub(r" (?=(at|to|by|gain|per|of) |\(|/)", "\n", heading)


def _sort_key(value: Any) -> float | None:
    """Return a value as a finite float; None if this is impossible."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
