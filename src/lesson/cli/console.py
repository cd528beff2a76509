"""Where commands print."""

from collections.abc import Iterable

from rich.console import Console

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
