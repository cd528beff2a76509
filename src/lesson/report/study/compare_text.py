"""The table at the end of a comparison."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.learn.metric import Metric
from lesson.report.metric_words import metric_column, plain_number, target_text, unit_of


def comparison_table(table: pd.DataFrame, metric: Metric, title: str, failed: Mapping[str, int] | None = None) -> Table:
    """Return one row per measure and one column per strategy.

    Cells have the mean ± half the 95 % interval over seeds, or both values of two seeds. `failed` counts the failed
    runs of strategies that have any; these runs do not contribute to the other rows.
    """
    failed = failed or {}
    without_runs = [name for name in failed if name not in table.index]
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column(what_is_shown(table))
    for strategy in [*table.index, *without_runs]:
        shown.add_column(str(strategy), justify="right")

    def row(label: str, name: str, scale: float, digits: int | None) -> None:
        cells = [cell(table.loc[strategy], name, scale, digits) for strategy in table.index]
        shown.add_row(label, *cells, *("–" for _ in without_runs))

    if failed:
        shown.add_row("failed runs", *(f"{failed.get(str(name), 0)}" for name in [*table.index, *without_runs]))
    if not len(table):
        return shown
    row(f"{metric.name} at the end{unit_of(metric)}", *metric_column(metric, metric.last10))
    for target in reached_targets(table, metric):
        row(f"time to {target_text(metric, target)} (s)", f"time_to_{target:g}", 1, 0)
    row("uploads", "uploads", 1, 0)
    row("uploaded (MB)", "bytes_up", 1e-6, 1)
    row("energy (kJ)", "energy_j", 1e-3, 1)
    for label, name in surprises(table).items():
        row(label, name, 1, 0)
    return shown


def what_is_shown(table: pd.DataFrame) -> str:
    """Return a heading that says what the cells of a table hold."""
    numbers = {int(number) for number in table["seeds"]} if len(table) else set()
    if numbers == {1}:
        return "one seed"
    if numbers == {2}:
        return "values of both seeds"
    over = f"{numbers.pop()} seeds" if len(numbers) == 1 else "seeds"
    return f"mean ± 95 % confidence interval over {over}"


def surprises(table: pd.DataFrame) -> dict[str, str]:
    """Return the columns that count problems such as late or rejected updates, by label, if there were any."""
    told = {
        "late updates": "misses",
        "tier changes": "retiered",
        "lost updates": "lost",
        "rejected updates": "rejected",
    }
    return {label: name for label, name in told.items() if name in table and (table[name] > 0).any()}


def reached_targets(table: pd.DataFrame, metric: Metric) -> list[float]:
    """Return the targets that at least one run of a study reached, given the study's table; the hardest comes last."""
    return [target for target in metric.targets if table.get(f"time_to_{target:g}_seeds", pd.Series([0])).any()]


def cell(figures: Any, name: str, scale: float, digits: int | None) -> str:
    """Return a measure of a study's table as text: mean and interval, both of two values, or how many seeds have one.

    An interval that extends beyond the possible values is clipped and written with its ends. Without `digits`, a value
    may be any number and has as many decimal places as the mean has with four significant digits.
    """
    mean, half = figures[name], figures[f"{name}_ci95"]
    if math.isnan(mean):
        reached = int(figures.get(f"{name}_seeds", 0))
        return f"{reached} of {int(figures['seeds'])} seeds" if reached else "–"

    def said(value: float) -> str:
        return plain_number(scale * value, scale * mean) if digits is None else f"{scale * value:,.{digits}f}"

    if figures["seeds"] == 2:
        return f"{said(figures[f'{name}_min'])} / {said(figures[f'{name}_max'])}"
    if math.isnan(half):
        return said(mean)
    lowest, highest = (-math.inf, math.inf) if digits is None else _possible(name)
    if lowest <= mean - half and mean + half <= highest:
        return f"{said(mean)} ± {said(half)}"
    return f"{said(mean)} ({said(max(lowest, mean - half))}–{said(min(highest, mean + half))})"


def _possible(name: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a measure."""
    if name == "accuracy_gain":  # a difference
        return -math.inf, math.inf
    return 0.0, 1.0 if name.startswith("accuracy") else math.inf
