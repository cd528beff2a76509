"""Console output shared by the commands."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from lesson.core.errors import RunStoppedError

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.study import Study

MAX_NOTES, MIN_WIDTH = 5, 100


class PipedConsole(Console):
    """A console whose reader may stop early, like head, without causing an error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_notes(notes: Iterable[str]) -> None:
    """Print each distinct note on a line, up to MAX_NOTES."""
    different = list(dict.fromkeys(notes))
    for note in different[:MAX_NOTES]:
        print(f"note: {note}")
    if len(different) > MAX_NOTES:
        print("note: metrics.jsonl has more notes")


def check_ended(summaries: Iterable[dict[str, Any]]) -> None:
    """Raise RunStoppedError if runs ended before their limit, with the reason of the first."""
    early = [summary for summary in summaries if summary.get("ended_early")]
    if early:
        first, others = early[0], f" (and {len(early) - 1} more)" if len(early) > 1 else ""
        who = f"{first['strategy']} with seed {first['seed']}"
        raise RunStoppedError(f"{who} ended early, at {first['time_s']:g} s{others}: {first['ended_early']}")


def show_study(study: "Study") -> None:
    """Print the results of a study, and write its tables and its report to its folder; raise if runs failed."""
    from lesson.experiments.study import write_table
    from lesson.experiments.tuning.study import TunedStudy
    from lesson.report.page.study_page import REPORT, write_study_page
    from lesson.report.results import failure_table, printed_table
    from lesson.report.tuning import TUNING, write_tuning

    assert study.path is not None, "a study that was executed has a folder"
    console = PipedConsole()
    console.width = max(console.width, MIN_WIDTH)
    if study.failures:
        console.print(failure_table(study).to_rich())
    if study.runs:
        for part in printed_table(study).parts(console.width):
            console.print(part.to_rich())
    print_notes(note for run in study.runs for note in run.summary["notes"])
    write_table(study)
    if isinstance(study, TunedStudy):
        write_tuning(study)
        print(f"tables: {study.path / TUNING}")
    if study.runs:
        with Console(stderr=True).status("Writing the report"):
            write_study_page(study, study.path / REPORT)
        print(f"report: {study.path / REPORT}")
    print(f"folder: {study.path}")
    if study.failures:
        failed = f"{len(study.failures)} of {len(study.failures) + len(study.runs)} runs failed"
        raise RunStoppedError(f"{failed}; the first is {study.first_failure()}; repeat the command to retry them")
    check_ended(run.summary for run in study.runs if not run.diverged)
