"""Writing settings as TOML: the standard library only reads it."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 50
"""Levels of lists and tables inside an option."""


def to_toml(tables: Mapping[str, Any]) -> str:
    """Return tables of plain values as TOML; values outside a table come first."""
    lines = [f"{_toml_key(name)} = {_toml_value(one)}" for name, one in tables.items() if not isinstance(one, Mapping)]
    lines += [""] if lines else []
    for section, values in tables.items():
        if not isinstance(values, Mapping):
            continue
        lines += [
            f"[{_toml_key(section)}]",
            *(f"{_toml_key(name)} = {_toml_value(value)}" for name, value in values.items()),
            "",
        ]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple) and value and all(isinstance(one, dict) for one in value):
        return "\n".join(["[", *(f"  {_toml_value(one)}," for one in value), "]"])
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml_key(name)} = {_toml_value(one)}' for name, one in value.items())}}}"
    if isinstance(value, str):
        return _toml_text(value)
    return repr(int(value) if isinstance(value, int) else float(value))


def _toml_key(name: str) -> str:
    """Return a key as it is, or in quotes if it has characters other than letters, digits, _ and -."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_text(name)


def _toml_text(text: str) -> str:
    """Return text in quotes. JSON escapes everything that TOML requires, except DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def storable(value: Any, depth: int = 0) -> Any:
    """Return a plain value as it reads back from a settings file; raise TypeError or ValueError if it cannot be stored.

    NaN cannot: it does not equal itself, so a run with it could never be resumed.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(repr(int(value)))  # Python rejects to print and to read numbers of thousands of digits
    if isinstance(value, float) and not math.isnan(value):
        return float(value)
    if isinstance(value, str):
        return "".join(value).encode().decode()
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [storable(one, depth + 1) for one in value]
    if isinstance(value, dict) and depth < MAX_DEPTH and all(isinstance(name, str) for name in value):
        return {storable(name): storable(one, depth + 1) for name, one in value.items()}
    raise TypeError
