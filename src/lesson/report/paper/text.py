"""The claims of the paper as a table for the terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lesson.paper.verdicts import Finding

_STYLES = {"holds": "green", "holds in part": "yellow", "does not hold": "red"}
_MARKS = {"holds": "+", "open": "?", "fails": "-"}


def claims_table(findings: Sequence[Finding]) -> Table:
    """Return one row per claim; a number is marked + if it holds, - if it fails, ? if its interval leaves it open."""
    table = Table("claim", "ours, mean ± 95 % interval", "verdict", box=SIMPLE_HEAD, pad_edge=False)
    table.caption = "+ holds, - does not, ? the interval leaves it open"
    table.caption_justify = "left"
    for finding in findings:
        said = Text.assemble(finding.statement, "\n", (f"paper: {finding.paper}", "dim"))
        ours = "\n".join(f"{_MARKS[part.outcome]} {part.label}: {part.shown()}" for part in finding.parts)
        table.add_row(
            said, Text(ours), Text(finding.verdict + (" (open)" if finding.open else ""), _STYLES[finding.verdict])
        )
    return table
