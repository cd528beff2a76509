"""HTML pages in a single file that includes styles, scripts, Plotly and data, and that needs no network."""

import base64
import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesson.core.files import write_whole
from lesson.core.version import __version__
from lesson.report.palette import TIER_ANCHORS
from lesson.report.table import Table

ASSETS = Path(__file__).parent / "assets"
_BREAKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Item:
    """A table or a picture in a section of a page, with its heading and the command that reproduces it."""

    heading: str
    command: str = ""
    table: Table | None = None
    png: bytes | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the item for a page."""
        return {
            "heading": self.heading,
            "command": self.command,
            "table": self.table and self.table.to_data(),
            "png": self.png and base64.b64encode(self.png).decode(),
        }


@dataclass(frozen=True)
class Section:
    """A section of a page with tables or pictures."""

    title: str
    lead: str = ""
    items: Sequence[Item] = ()

    def to_data(self) -> dict[str, Any]:
        """Return the section for a page."""
        return {"title": self.title, "lead": self.lead, "items": [item.to_data() for item in self.items]}


def write_document(path: Path | str, title: str, scripts: Sequence[str], data: dict[str, Any]) -> None:
    """Write a page atomically; `scripts` are the names of the assets that draw it from `data`."""
    path = Path(path)
    write_whole(path, document(title, scripts, data).encode())


def document(title: str, scripts: Sequence[str], data: dict[str, Any]) -> str:
    """Return the HTML of a page, see `write_document`."""
    inside = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "version": html.escape(__version__),
        "data": as_json(data | {"title": title, "tier_anchors": TIER_ANCHORS}),
        "scripts": "\n".join(
            f"<script>\n{_asset(name)}\n</script>" for name in ("plotly-basic.min.js", "common.js", *scripts)
        ),
    }
    return re.sub(r"{{(\w+)}}", lambda found: inside[found[1]], _asset("page.html"))


def as_json(data: Any) -> str:
    """Return data as JSON that is safe inside a script element: tags are escaped, NaN and infinity become null."""
    text = json.dumps(_known(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for letter, escaped in _BREAKS.items():
        text = text.replace(letter, escaped)
    return text


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
