"""Every setting, from the classes that check them: `<!-- settings: run -->` becomes the table of a section.

`<!-- settings: strategies -->` becomes the options of all strategies.
"""

import dataclasses
import re
from typing import Any

from lesson.settings.presets import PRESETS
from lesson.settings.settings import Settings
from lesson.strategies import STRATEGIES

MARK = re.compile(r"<!-- settings: (\w+) -->")
KINDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
BOUNDS = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its tables."""
    return MARK.sub(lambda mark: _strategies() if mark[1] == "strategies" else _section(mark[1]), markdown)


def _section(section: str) -> str:
    kind: Any = Settings.model_fields[section].annotation
    properties = kind.model_json_schema()["properties"]
    printed = PRESETS["printed"] | {"preset": "printed"} if section == "scenario" else {}
    rows = [["name", "meaning", "allowed", "default"], ["---"] * 4]
    for name, field in kind.model_fields.items():
        schema = properties[name]
        kinds = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
        default = field.get_default(call_default_factory=True)
        preset = f"<br>printed: {_value(printed[name])}" if name in printed else ""
        rows.append([f"`{name}`", field.description or "", " or ".join(map(_allowed, kinds)), _value(default) + preset])
    return _table(rows)


def _strategies() -> str:
    rows = [["strategy", "option", "default"], ["---"] * 3]
    for name, kind in sorted(STRATEGIES.items()):
        for option in dataclasses.fields(kind):  # type: ignore[arg-type]  # every registered strategy is a dataclass
            if option.init and option.name != "deadline_s":
                rows.append([f"[{name}](strategies.md#{name})", f"`{option.name}`", _value(option.default)])
    return _table(rows)


def _allowed(schema: dict[str, Any]) -> str:
    """The type of a setting and the bounds of its values."""
    if "prefixItems" in schema:
        return f"[low, high], each a {_allowed(schema['prefixItems'][0])}"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    bounds = [f"{word}{schema[bound]:,}" for bound, word in BOUNDS.items() if bound in schema]
    return f"{KINDS[schema['type']]} {', '.join(bounds)}".strip()


def _value(value: Any) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{one:g}' for one in value)}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _table(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
