"""The table at the end of a comparison."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.runs.summary import TARGETS


def comparison_table(table: pd.DataFrame, title: str, failed: Mapping[str, int] | None = None) -> Table:
    """A row per figure, a column per strategy: mean ± half the 95 % interval over seeds, or both values of two.

    `failed` counts the failed runs of strategies that have some; they have no share in the other figures.
    """
    failed = failed or {}
    without_runs = [name for name in failed if name not in table.index]
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column(what_is_shown(table))
    for strategy in [*table.index, *without_runs]:
        shown.add_column(str(strategy), justify="right")

    def row(label: str, name: str, scale: float, digits: int) -> None:
        cells = [cell(table.loc[strategy], name, scale, digits) for strategy in table.index]
        shown.add_row(label, *cells, *("–" for _ in without_runs))

    if failed:
        shown.add_row("failed runs", *(f"{failed.get(str(name), 0)}" for name in [*table.index, *without_runs]))
    if not len(table):
        return shown
    row("accuracy at the end (%)", "accuracy_last10", 100, 1)
    for target in reached_targets(table):
        row(f"time to {target:.0%} (s)", f"time_to_{target:g}", 1, 0)
    row("uploads", "uploads", 1, 0)
    row("uploaded (MB)", "bytes_up", 1e-6, 1)
    row("energy (kJ)", "energy_j", 1e-3, 1)
    for label, name in surprises(table).items():
        row(label, name, 1, 0)
    return shown


def what_is_shown(table: pd.DataFrame) -> str:
    """What the cells of a table hold."""
    return "both seeds" if len(table) and (table["seeds"] == 2).all() else "mean ± 95 % interval over seeds"


def surprises(table: pd.DataFrame) -> dict[str, str]:
    """What to tell of what went wrong, by what it is called in the table: nothing where nothing did."""
    told = {"late uploads": "misses", "changes of tier": "retiered", "work lost": "lost", "rejected": "rejected"}
    return {label: name for label, name in told.items() if name in table and (table[name] > 0).any()}


def reached_targets(table: pd.DataFrame) -> list[float]:
    """The targets that some seed of some group of a study reached, by its table."""
    return [target for target in TARGETS if table.get(f"time_to_{target:g}_seeds", pd.Series([0])).any()]


def cell(figures: Any, name: str, scale: float, digits: int) -> str:
    """A figure of a study's table: its mean and interval, both values of two seeds, or how many seeds have one.

    An interval that leaves what is possible is cut there and written with its ends.
    """
    mean, half = figures[name], figures[f"{name}_ci95"]
    if math.isnan(mean):
        reached = int(figures.get(f"{name}_seeds", 0))
        return f"{reached} of {int(figures['seeds'])} seeds" if reached else "–"

    def said(value: float) -> str:
        return f"{scale * value:,.{digits}f}"

    if figures["seeds"] == 2:
        return f"{said(figures[f'{name}_min'])} / {said(figures[f'{name}_max'])}"
    if math.isnan(half):
        return said(mean)
    lowest, highest = _possible(name)
    if lowest <= mean - half and mean + half <= highest:
        return f"{said(mean)} ± {said(half)}"
    return f"{said(mean)} ({said(max(lowest, mean - half))}–{said(min(highest, mean + half))})"


def _possible(name: str) -> tuple[float, float]:
    """The least and the most that a figure can be."""
    if name == "accuracy_gain":  # a difference
        return -math.inf, math.inf
    return 0.0, 1.0 if name.startswith("accuracy") else math.inf
