"""The command `lesson settings`."""

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lesson.cli.console import PipedConsole
from lesson.cli.parser import argument
from lesson.settings.reference import Description, describe_section, find_descriptions
from lesson.settings.settings import SECTIONS

UNSET = "unset"


@dataclass(frozen=True)
class SettingsCommand:
    """List all settings, or show one with its unit and bounds.

    Example: lesson settings noise_dbm
    """

    name: str | None = argument(
        "name",
        required=False,
        metavar="[NAME]",
        help="Setting (noise_dbm, radio.noise_dbm) or section (radio) to show.",
    )

    def run(self) -> None:
        if self.name is not None:
            details = "\n\n".join(map(_details, find_descriptions(self.name)))
            print(details or "[task] holds the options of the task; 'lesson tasks' lists them")
            return
        console = PipedConsole()
        for section in SECTIONS:
            console.print(_table(section))
        print("Details of a setting: lesson settings NAME. Options of a strategy: lesson strategies NAME.")


def _table(section: str) -> Table:
    """Return a section as a table with a line per setting; meanings are truncated to the width of the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in (f"[{section}]", "default", "unit"):
        table.add_column(Text(heading), no_wrap=True)
    table.add_column("meaning")
    for setting in describe_section(section):
        short = (setting.name, setting.default or UNSET, setting.unit)
        table.add_row(*map(Text, short), Text(setting.meaning, no_wrap=True, overflow="ellipsis"))
    return table


def _details(setting: Description) -> str:
    rows = {
        "unit": setting.unit,
        "default": setting.default or UNSET,
        **{f"in preset {preset}": value for preset, value in setting.presets.items()},
        "allowed": setting.allowed,
        "set it with": f"--set {setting.example}",
    }
    lines = [f"  {label:17}  {text}" for label, text in rows.items() if text]
    return "\n".join([setting.full_name, f"  {setting.meaning}", *lines])
