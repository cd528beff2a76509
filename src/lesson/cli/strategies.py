"""The command `lesson strategies`."""

import dataclasses
import sys
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.cli.console import PipedConsole
from lesson.cli.parser import STRATEGY, argument
from lesson.strategies import STRATEGIES, find_strategy


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
                table.add_row(name, kind.__doc__)
            PipedConsole().print(table)
            return
        kind = find_strategy(self.name)
        print((sys.modules[kind.__module__].__doc__ or "").strip())
        for setting in dataclasses.fields(kind):  # type: ignore[arg-type]  # every registered strategy is a dataclass
            if setting.init:
                default = "required" if setting.default is dataclasses.MISSING else f"default {setting.default}"
                print(f"  {setting.name} ({default})")
