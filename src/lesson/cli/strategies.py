"""The command `lesson strategies`."""

import sys
import textwrap
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.cli.console import PipedConsole
from lesson.cli.parser import STRATEGY, argument
from lesson.settings.reference import describe_options
from lesson.strategies import STRATEGIES, find_strategy

WIDTH = 120


@dataclass(frozen=True)
class StrategiesCommand:
    """List all strategies, or show one with its options.

    Example: lesson strategies lesson
    """

    name: str | None = argument("name", required=False, type=STRATEGY, metavar="[NAME]", help="Strategy to show.")

    def run(self) -> None:
        if self.name is None:
            table = Table("strategy", "what it does", box=SIMPLE_HEAD)
            for name, kind in sorted(STRATEGIES.items()):
                table.add_row(name, (kind.__doc__ or "").partition("\n")[0])
            PipedConsole().print(table)
            return
        kind = find_strategy(self.name)
        print((sys.modules[kind.__module__].__doc__ or "").strip())
        print("\nOptions:")
        for option in describe_options(kind):
            default = f"default {option.default}" if option.default else ""
            default = "set by --deadline" if option.name == "deadline_s" else default
            about = "; ".join(filter(None, [option.allowed, option.unit, default]))
            line = f"{option.name} ({about}): {option.meaning}".replace(" ()", "").removesuffix(": ")
            print(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      "))
