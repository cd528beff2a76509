"""Tables of settings, from the classes that validate them: `<!-- settings: run -->` becomes the table of a section.

`<!-- settings: strategies -->` becomes the options of all strategies.
"""

import dataclasses
import re
from typing import Any

from lesson.settings.reference import Description, as_text, describe_section
from lesson.strategies import STRATEGIES

MARK = re.compile(r"<!-- settings: (\w+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with its tables."""
    return MARK.sub(lambda mark: _strategies() if mark[1] == "strategies" else _section(mark[1]), markdown)


def _section(section: str) -> str:
    rows = [["name", "default", "unit", "allowed values", "meaning"], ["---"] * 5]
    rows += [
        [f"`{setting.name}`", _default(setting), setting.unit, setting.allowed, setting.meaning]
        for setting in describe_section(section)
    ]
    return _table(rows)


def _default(setting: Description) -> str:
    return _code(setting.default) + (f"<br>printed: `{setting.printed}`" if setting.printed else "")


def _strategies() -> str:
    rows = [["strategy", "option", "default"], ["---"] * 3]
    for name, kind in sorted(STRATEGIES.items()):
        rows += [
            [f"[{name}](strategies.md#{name})", f"`{option.name}`", _code(as_text(option.default))]
            for option in dataclasses.fields(kind)  # type: ignore[arg-type]  # every registered strategy is a dataclass
            if option.init and option.name != "deadline_s"
        ]
    return _table(rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else "unset"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
