"""Where commands print."""

from rich.console import Console


class PipedConsole(Console):
    """A console whose reader may leave early, as head does, without that being an error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
