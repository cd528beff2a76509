"""An HTML page in one file: styles, scripts, Plotly and its numbers are inside, and it asks the network for nothing."""

import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lesson.core.files import write_whole
from lesson.core.version import __version__
from lesson.report.palette import TIER_ANCHORS

ASSETS = Path(__file__).parent / "assets"
_BREAKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def write_document(path: Path | str, title: str, scripts: Sequence[str], data: dict[str, Any]) -> None:
    """Write a page that `scripts`, names of assets, draw from `data`; the file appears whole or not at all."""
    path = Path(path)
    write_whole(path, document(title, scripts, data).encode())


def document(title: str, scripts: Sequence[str], data: dict[str, Any]) -> str:
    """The text of such a page."""
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
    """Numbers and words as JSON that can stand inside a script: what is not finite is null, no tag can begin in it."""
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
