"""Console output shared by the commands."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from lesson.core.errors import RunStoppedError

if TYPE_CHECKING:  # they import torch, which takes seconds and is not needed for --help
    from lesson.experiments.design import Design
    from lesson.experiments.engines import Engine
    from lesson.experiments.study import Study
    from lesson.report.progress import StudyProgress

MAX_NOTES = 5


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


def check_failed(study: "Study", num_runs: int, flags: str) -> None:
    """Raise RunStoppedError if runs of a study failed, with the reason of the first."""
    if study.failures:
        failed = f"{len(study.failures)} of {num_runs} runs failed, first {study.first_failure()}"
        raise RunStoppedError(f"{failed}; repeat the command with {flags} to retry them")


def execute_design(
    design: "Design", out: Path, engine: "Engine", flags: str, **how: Any
) -> "tuple[Study, StudyProgress]":
    """Execute the missing runs of a design and show progress; after Ctrl-C, say with which flags to continue."""
    from lesson import api
    from lesson.report.progress import StudyProgress

    progress, command = StudyProgress(), shlex.join(["lesson", *sys.argv[1:]])
    try:
        return api.execute_design(design, out, engine, progress=progress, command=command, **how), progress
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; repeat the command with {flags} to continue") from None


def print_report(study: "Study", folder: Path) -> None:
    """Write the report of a study to its folder and print its path."""
    from lesson.report.page.study_page import REPORT, write_study_page

    with Console(stderr=True).status("Writing the report"):
        write_study_page(study, folder / REPORT)
    print(f"report: {folder / REPORT}")
