"""The command `lesson strategies`."""

import dataclasses
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.cli.console import PipedConsole
from lesson.cli.parser import STRATEGY, argument
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
        meanings = _meanings(kind)
        print("\nOptions:")
        for setting in dataclasses.fields(kind):  # type: ignore[arg-type]  # every registered strategy is a dataclass
            if setting.init:
                required = "set by --deadline" if setting.name == "deadline_s" else "required"
                default = required if setting.default is dataclasses.MISSING else f"default {setting.default}"
                line = f"{setting.name} ({default}): {meanings.get(setting.name, '')}".removesuffix(": ")
                print(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      "))


def _meanings(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say about each option under "Args:"."""
    found = {}
    for one in reversed(kind.__mro__):
        _, _, described = inspect.cleandoc(one.__doc__ or "").partition("\nArgs:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", described, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found
