"""The command `lesson tasks`."""

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.cli.console import PipedConsole


@dataclass(frozen=True)
class TasksCommand:
    """List the built-in tasks: data, network and options.

    Example: lesson tasks
    """

    def run(self) -> None:
        from lesson.learn.tasks import BUILT_IN

        table = Table("task", "data and network", "parameters", r"options of \[task]", box=SIMPLE_HEAD)
        table.columns[2].justify = "right"
        for name, task in BUILT_IN.items():
            num_parameters = sum(one.numel() for one in task.network().parameters())
            options = ", ".join(f"{option} = {default}" for option, default in task.options.items())
            table.add_row(name, task.about, f"{num_parameters:,}", options or "–")
        PipedConsole().print(table)
        print("Use one with --dataset NAME, and set its options with --set task.OPTION=VALUE.")
