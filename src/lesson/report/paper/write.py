"""All outputs of `lesson reproduce`: figures, tables, claims, the README and the report page."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pydantic import TypeAdapter

from lesson.core.files import write_whole
from lesson.experiments.measures import MIN_SEEDS
from lesson.experiments.study import Study
from lesson.paper.claims import check_claims
from lesson.paper.items import NAMES, Item, load_item
from lesson.paper.reproduce import read_scale
from lesson.paper.scale import FULL, Scale
from lesson.paper.series import Series, by_series
from lesson.report.files import save_figures
from lesson.report.page import document
from lesson.report.page.study_page import REPORT, write_study_page
from lesson.report.paper import fleets
from lesson.report.paper.curves import draw_accuracy, draw_limits
from lesson.report.paper.shares import draw_label_shares
from lesson.report.paper.tables import (
    authors_table,
    choices_table,
    claims_table,
    mnist_table,
    parameters_table,
    round_lengths_table,
)
from lesson.report.table import Table
from lesson.runs.read_back import read_json

_FIGURES: dict[str, Callable[[Item, Series, Scale], Figure]] = {
    "accuracy": draw_accuracy,
    "limits": draw_limits,
    "schedule": lambda item, *_: fleets.draw_schedule(**item.options),
    "latency_density": lambda item, *_: fleets.draw_latency_density(**item.options),
    "label_shares": lambda item, *_: draw_label_shares(**item.options),
}
_TABLES: dict[str, Callable[[Item, Series, Scale], Table]] = {
    "parameters": parameters_table,
    "round_lengths": round_lengths_table,
    "authors": authors_table,
    "choices": choices_table,
    "mnist": mnist_table,
}
CLAIMS = (
    "Each claim has one or more checks. A check holds (✓) if its whole 95 % confidence interval meets the claim, fails "
    "(✗) if none of it does, and is inconclusive (?) otherwise. A claim holds, fails or is inconclusive if all of its "
    "checks do or are, and is mixed otherwise. Checks and claims that are not in the paper are marked as added; such "
    "checks do not count toward a verdict. Claims that hold by construction of the model are marked, too. If runs "
    "never reach a target, the check lists the value of each seed (> marks a lower bound), and its interval is that of "
    "the median by the sign test, which needs at least six seeds."
)
_CLAIMS: TypeAdapter[Any] = TypeAdapter(list[dict[str, Any]])

Claims = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reproduction:
    """Figures and tables of the paper, as returned by `lesson.reproduce`.

    Attributes:
        study: All runs.
        paths: The files that were written, by what they show.
        claims: The claims that one of the figures and tables shows, as in claims.json.
    """

    study: Study
    paths: dict[str, list[Path]]
    claims: Claims


def write_reproduction(
    items: Sequence[Item], scale: Scale, study: Study, out: Path, tell: Callable[[str], None] = lambda _: None
) -> Reproduction:
    """Write the items of a reproduction, whose runs must have finished, and the claims on all items in the folder."""
    paths: dict[str, list[Path]] = {}
    for item in items:
        tell(f"Drawing {item.name}")
        paths[item.name] = _write_item(item, by_series(study.runs), scale, out)
    tell("Checking claims")
    there = items_in(out)
    names = [item.name for item in there]
    claims = [] if scale.quick else check_claims(study.runs, names, scale)
    if claims:
        paths["claims"] = [out / "claims.json", out / "claims.md"]
        text = json.dumps(claims, indent=2, allow_nan=False, ensure_ascii=False)
        write_whole(paths["claims"][0], f"{text}\n".encode())
        write_whole(paths["claims"][1], claims_table(claims).to_markdown().encode())
    paths["page"] = [_write_readme(there, study, scale, out)]
    paths["report"] = [out / REPORT]
    write_paper_page(study, out, out / REPORT)
    chosen = {item.name for item in items}
    return Reproduction(study, paths, [claim for claim in claims if chosen & set(claim["items"])])


def write_paper_page(study: Study, folder: Path, path: Path) -> None:
    """Write the report page of a reproduction from the figures and claims in its folder, and its runs."""
    scale = read_scale(folder) or FULL
    about = _about(scale) + scale.quick * f" This is {scale.note}."
    sections = [document.Section("Figures and tables", about, _shown(items_in(folder), study, scale, folder))]
    if claims := read_json(folder / "claims.json", _CLAIMS, "rerun lesson reproduce", []):
        shown = document.Item("Verdicts", table=claims_table(claims))
        sections.insert(0, document.Section("The paper's claims", CLAIMS, [shown]))
    write_study_page(study, path, sections=sections, title="reproduction of the paper")


def draw_items(study: Study, folder: Path, out: Path, suffixes: Sequence[str]) -> list[Path]:
    """Draw the figures of a reproduction's folder into another folder, in these formats; return their paths."""
    series, scale = by_series(study.runs), read_scale(folder) or FULL
    drawn = {item.name: _draw(item, series, scale) for item in items_in(folder) if item.draw in _FIGURES}
    return save_figures(drawn, out, suffixes)


def items_in(out: Path | str) -> list[Item]:
    """Return the items in a folder."""
    there = {path.stem for path in Path(out).iterdir() if path.suffix in (".png", ".md")}
    return [load_item(name) for name in NAMES if name in there]


def _write_item(item: Item, results: Series, scale: Scale, out: Path) -> list[Path]:
    """Write a figure as PNG or a table as Markdown and CSV, and the item's settings file; return the paths."""
    write_whole(out / item.path.name, item.path.read_bytes())
    if item.draw in _FIGURES:
        return save_figures({item.name: _draw(item, results, scale)}, out, [".png"])
    table, paths = _TABLES[item.draw](item, results, scale), [out / f"{item.name}.md", out / f"{item.name}.csv"]
    write_whole(paths[0], f"**{item.paper}: {item.title}**\n{_note(scale)}\n{table.to_markdown()}".encode())
    write_whole(paths[1], pd.DataFrame(table.cells, columns=table.headings).to_csv(index=False).encode())
    return paths


def _draw(item: Item, results: Series, scale: Scale) -> Figure:
    figure = _FIGURES[item.draw](item, results, scale)
    if scale.quick and item.blocks:
        figure.suptitle(scale.note, color="#b0202a", fontsize=7, family="STIXGeneral")
    return figure


def _shown(items: Sequence[Item], study: Study, scale: Scale, folder: Path) -> list[document.Item]:
    """Return the figures and tables of a folder with the command that reproduces each."""
    series, shown = by_series(study.runs), []
    for item in items:
        table = _TABLES[item.draw](item, series, scale) if item.draw in _TABLES else None
        png = None if table else (folder / f"{item.name}.png").read_bytes()
        shown.append(document.Item(f"{item.paper}: {item.title}", _command_of(item, scale), table, png))
    return shown


def _write_readme(items: Sequence[Item], study: Study, scale: Scale, out: Path) -> Path:
    """Write README.md with these figures and tables and the command of each; return its path."""
    lines = [f"# Reproduction of the paper\n{_note(scale)}\n{_about(scale)}\n"]
    if (out / "claims.md").exists():
        lines.append("The paper's claims and their verdicts: [claims.md](claims.md).\n")
    for item, shown in zip(items, _shown(items, study, scale, out), strict=True):
        lines.append(f"## {shown.heading}\n")
        lines.append(shown.table.to_markdown() if shown.table else f"![{item.title}]({item.name}.png)\n")
        lines.append(f"Settings: [{item.path.name}]({item.path.name}). Command: `{shown.command}`.\n")
    write_whole(out / "README.md", "\n".join(lines).encode())
    return out / "README.md"


def _note(scale: Scale) -> str:
    return f"\n*{scale.note}*\n" if scale.quick else ""


def _about(scale: Scale) -> str:
    """Return a note that explains lines, bands and ±, and names the parameters of the runs."""
    seeds = f"the mean and 95 % confidence interval over {scale.seeds} seeds (Student's t), as do numbers with ±"
    if scale.seeds < MIN_SEEDS:
        seeds = "a single seed" if scale.seeds == 1 else f"the mean over {scale.seeds} seeds"
    return (
        f"Lines {'and bands ' * (scale.seeds >= MIN_SEEDS)}show {seeds}. Unless stated otherwise, parameters are those "
        "of the preset “released”. The archive runs.jsonl.gz holds the evaluations, settings and versions of every run."
    )


def _command_of(item: Item, scale: Scale) -> str:
    """Return the command that reproduces an item."""
    return f"lesson reproduce {item.name}" + " --quick" * scale.quick + scale.flag
