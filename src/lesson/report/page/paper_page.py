"""The report page of a reproduction: the paper's claims with their verdicts, figures and tables."""

import base64
import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lesson.core.errors import InputError
from lesson.paper.items import Item
from lesson.paper.reproduce import read_scale
from lesson.paper.scale import FULL, Scale
from lesson.paper.verdicts import Outcome, Verdict
from lesson.report.page.document import write_document
from lesson.report.paper.items import command_of, items_in, read_item, read_text, unreadable, what_lines_show
from lesson.report.words import count
from lesson.runs.read_back import Shape, read_json


class _Part(Shape):
    label: str
    outcome: Outcome
    shown: str
    added: bool = False


class _Claim(Shape):
    statement: str
    paper: str
    seeds: int
    verdict: Verdict
    added: bool = False
    items: list[str]
    parts: list[_Part]


_CLAIMS: TypeAdapter[Any] = TypeAdapter(list[_Claim])


def holds_paper(folders: Sequence[Path | str]) -> bool:
    """Return whether the folder is a reproduction of the paper; raise if one is given along with other folders."""
    there = [folder for folder in folders if read_scale(folder) is not None]
    if there and len(folders) > 1:
        raise InputError(f"{there[0]} holds a reproduction of the paper and must be the only folder")
    return bool(there)


def write_paper_page(folder: Path | str, path: Path | str) -> None:
    """Atomically write the report page of an output folder of `lesson reproduce`."""
    folder, path = Path(folder), Path(path)
    scale = read_scale(folder) or FULL
    items = items_in(folder)
    claims: list[Any] = read_json(folder / "claims.json", _CLAIMS, "rerun lesson reproduce", [])
    data = {
        "what": _what(items, scale),
        "note": scale.note,
        "claims": claims,
        "counts": Counter(claim["verdict"] for claim in claims if not claim.get("added")),
        "items": [_item(item, folder, scale) for item in items],
    }
    write_document(path, "LESSON: reproduction of the paper", ["paper.js"], data)


def _what(items: list[Item], scale: Scale) -> str:
    return (
        "Reproduction of “Latency Aware Semi-synchronous Client Selection and Model Aggregation for Wireless Federated "
        f"Learning” (Yu, Sun, Albelaihi, Yi): {count(len(items), 'figure or table', 'figures and tables')}. "
        f"{what_lines_show(scale)} Unless stated otherwise, parameters are those of the preset released."
    )


def _item(item: Item, folder: Path, scale: Scale) -> dict[str, Any]:
    """Return a figure as a PNG image or a table as its rows, with the command that reproduces it."""
    shown = {"name": item.name, "title": f"{item.paper}: {item.title}", "command": command_of(item, scale)}
    picture, table = folder / f"{item.name}.png", folder / f"{item.name}.csv"
    if picture.exists():
        return shown | {"png": base64.b64encode(read_item(picture)).decode()}
    try:
        columns, *rows = csv.reader(io.StringIO(read_text(table), newline=""), strict=True)
    except csv.Error as error:
        raise unreadable(table, str(error)) from None
    return shown | {"columns": columns, "rows": rows}
