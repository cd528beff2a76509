"""The outputs of `lesson reproduce`: figures, tables, the claims with their verdicts, and a README."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from lesson.core.errors import InputError
from lesson.core.files import write_whole
from lesson.experiments.measures import MIN_SEEDS, Series
from lesson.paper.duration import estimated_minutes, missing_runs
from lesson.paper.items import NAMES, ON_REQUEST, Item, load_item
from lesson.paper.scale import Scale
from lesson.paper.verdicts import Finding
from lesson.report.files import save_figures
from lesson.report.paper import fleets as paper_fleets
from lesson.report.paper.curves import draw_accuracy, draw_limits
from lesson.report.paper.tables import (
    authors_table,
    choices_table,
    margins_table,
    mnist_table,
    parameters_table,
    round_lengths_table,
    sawtooth_table,
    what_if_table,
)
from lesson.report.shares_figure import draw_label_shares
from lesson.report.words import markdown

_FIGURES: dict[str, Callable[[Item, Series, Scale], Figure]] = {
    "accuracy": draw_accuracy,
    "limits": draw_limits,
    "schedule": lambda item, *_: paper_fleets.draw_schedule(**item.options),
    "latency_density": lambda item, *_: paper_fleets.draw_latency_density(**item.options),
    "label_shares": lambda item, *_: draw_label_shares(**item.options),
}
_TABLES: dict[str, Callable[[Item, Series, Scale], pd.DataFrame]] = {
    "parameters": parameters_table,
    "round_lengths": round_lengths_table,
    "authors": authors_table,
    "choices": choices_table,
    "margins": margins_table,
    "mnist": mnist_table,
    "what_if": what_if_table,
    "sawtooth": sawtooth_table,
}


def item_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return the table of an item as text."""
    return _TABLES[item.draw](item, results, scale)


def draw_item(item: Item, results: Series, scale: Scale) -> Figure | None:
    """Return the figure of an item; None if it is a table."""
    if item.draw in _TABLES:
        return None
    figure = _FIGURES[item.draw](item, results, scale)
    if scale.quick:
        figure.suptitle(scale.note, color="#b0202a", fontsize=7, family="STIXGeneral")
    return figure


def write_item(item: Item, results: Series, scale: Scale, out: Path | str) -> list[Path]:
    """Write a figure as PNG or a table as Markdown and CSV, and return the paths.

    The item's settings file is written last, so that its presence means that the item is complete.
    """
    out = Path(out)
    figure = draw_item(item, results, scale)
    if figure is None:
        table = item_table(item, results, scale)
        note = f"\n*{scale.note}*\n" if scale.quick else ""
        texts = {
            out / f"{item.name}.md": f"**{item.paper}: {item.title}**\n{note}\n{markdown(table)}",
            out / f"{item.name}.csv": table.to_csv(index=False),
        }
        for path, text in texts.items():
            write_whole(path, text.encode())
        paths = list(texts)
    else:
        paths = save_figures({item.name: figure}, out, [".png"])
    write_whole(out / item.path.name, scale.header(item.name).encode() + item.path.read_bytes())
    return paths


def write_claims(findings: Sequence[Finding], out: Path | str) -> list[Path]:
    """Write claims.json and claims.md, and return their paths."""
    out = Path(out)
    paths = [out / "claims.json", out / "claims.md"]
    values = [finding.to_dict() for finding in findings]
    write_whole(paths[0], (json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())
    write_whole(paths[1], markdown(claims_frame(findings)).encode())
    return paths


ADDED = " (added, does not count)"
"""Mark of a check that the paper does not make."""


def claims_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return a table of text with one row per claim."""
    return pd.DataFrame(
        {
            "claim": finding.statement + " (added)" * finding.added,
            "paper": finding.paper,
            "ours (mean ± 95 % confidence interval)": "<br>".join(
                f"{part.label}{ADDED * part.added}: {part.shown()}" for part in finding.parts
            ),
            "seeds": str(finding.seeds),
            "shown in": ", ".join(finding.items),
            "verdict": verdict_words(finding) + (f" ({finding.which})" if finding.which else ""),
        }
        for finding in findings
    )


def verdict_words(finding: Finding) -> str:
    """Return the verdict in Markdown."""
    return f"**{finding.verdict}**"


def items_in(out: Path | str) -> list[Item]:
    """Return the complete items in a folder: those with a settings file, which is written last."""
    out = Path(out)
    there = [name for name in NAMES if len(list(out.glob(f"{name}.*"))) > 1]
    return [load_item(name) for name in there if (out / f"{name}.toml").exists()]


def read_item(path: Path) -> bytes:
    """Return the content of a figure or table that `write_item` wrote; raise InputError if it is empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, str(error.strerror)) from None
    if not content.strip():
        raise unreadable(path, "it is empty")
    return content


def read_text(path: Path) -> str:
    """Return a table that `write_item` wrote; raise InputError if it is empty or not UTF-8."""
    try:
        return read_item(path).decode()
    except UnicodeDecodeError:
        raise unreadable(path, "it is not UTF-8") from None


def unreadable(path: Path, why: str) -> InputError:
    """The error for a damaged figure or table, with the command that rewrites it."""
    return InputError(f"{path} cannot be read: {why}; rewrite it with lesson reproduce {path.stem}")


def what_lines_show(scale: Scale) -> str:
    """Return a sentence that says what the lines and bands of a figure and the ± of a table are."""
    if scale.seeds == 1:
        return "Lines show a single seed."
    if scale.seeds < MIN_SEEDS:
        return f"Lines show the mean over {scale.seeds} seeds, ± in tables the 95 % confidence interval (Student's t)."
    return (
        f"Lines and bands show the mean and 95 % confidence interval over {scale.seeds} seeds (Student's t), "
        "as do numbers with ±."
    )


def command_of(item: Item, scale: Scale) -> str:
    """Return the command that reproduces an item."""
    return f"lesson reproduce {item.name}" + (" --quick" if scale.quick else "") + scale.flag


def write_page(items: Sequence[Item], scale: Scale, out: Path | str) -> Path:
    """Write README.md with these figures and tables and the settings and command of each; return its path."""
    out = Path(out)
    lines = ["# Reproduction of the paper", ""]
    lines += [f"*{scale.note}*", ""] if scale.quick else []
    lines += [
        f"{what_lines_show(scale)} Unless stated otherwise, parameters are those of the preset `released`. "
        "`runs.jsonl.gz` holds the evaluations, settings and versions of every run.",
        "",
    ]
    lines += (
        ["The paper's claims and their verdicts: [claims.md](claims.md).", ""] if (out / "claims.md").exists() else []
    )
    for item in items:
        lines += [f"## {item.paper}: {item.title}", ""]
        if item.draw in _TABLES:
            lines += [read_text(out / f"{item.name}.md").partition("\n\n")[2]]
        else:
            lines += [f"![{item.title}]({item.name}.png)", ""]
        lines += [f"Settings: [{item.path.name}]({item.path.name}). Command: `{command_of(item, scale)}`.", ""]
    if not scale.quick:
        lines += _not_run(items, scale)
    write_whole(out / "README.md", "\n".join(lines).encode())
    return out / "README.md"


def _not_run(there: Sequence[Item], scale: Scale) -> list[str]:
    """Return a table of the items on request that a folder does not have, as lines; empty if it has all of them."""
    rows = []
    for name in ON_REQUEST:
        item = load_item(name)
        if name not in {one.name for one in there}:
            runs = missing_runs(item, there, scale)
            rows.append(
                {
                    "item": f"{item.paper}: {item.title}",
                    "command": f"`{command_of(item, scale)}`",
                    "runs": f"{len(runs)}",
                    "minutes on an H200, estimated": f"{estimated_minutes(runs.values()):.1f}",
                }
            )
    return ["## Not run", "", markdown(pd.DataFrame(rows))] if rows else []
