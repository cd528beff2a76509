"""Where commands print."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:  # torch comes with it, and takes seconds that --help need not
    from lesson.study import Study

MAX_NOTES = 5


class PipedConsole(Console):
    """A console whose reader may leave early, as head does, without that being an error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_notes(notes: Iterable[str]) -> None:
    """Different notes, a line each; of many the first."""
    different = list(dict.fromkeys(notes))
    for note in different[:MAX_NOTES]:
        print(f"note: {note}")
    if len(different) > MAX_NOTES:
        print("note: more are in metrics.jsonl")


def print_report(study: "Study", folder: Path) -> None:
    """Write the page of a study into its folder, and say where."""
    from lesson.report.page.study_page import REPORT, write_study_page

    with Console(stderr=True).status("Writing the report"):
        write_study_page(study, folder / REPORT)
    print(f"report: {folder / REPORT}")
