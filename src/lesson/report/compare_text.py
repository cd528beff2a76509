"""The table at the end of a comparison."""

import math
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lesson.summary import TARGETS


def comparison_table(table: pd.DataFrame, frame: pd.DataFrame, title: str) -> Table:
    """A row per figure, a column per strategy: mean ± half the 95 % interval over seeds."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("mean ± 95 % interval")
    for strategy in table.index:
        shown.add_column(str(strategy), justify="right")

    def row(label: str, name: str, scale: float, digits: int) -> None:
        shown.add_row(label, *(_cell(table.loc[strategy], frame, name, scale, digits) for strategy in table.index))

    row("accuracy, last 10 (%)", "accuracy_last10", 100, 1)
    for target in TARGETS:
        row(f"time to {target:.0%} (s)", f"time_to_{target:g}", 1, 0)
    row("uploads", "uploads", 1, 0)
    row("uploaded (MB)", "bytes_up", 1e-6, 1)
    row("energy (kJ)", "energy_j", 1e-3, 1)
    return shown


def _cell(figures: Any, frame: pd.DataFrame, name: str, scale: float, digits: int) -> str:
    mean, half = scale * figures[name], scale * figures[f"{name}_ci95"]
    if math.isnan(mean):
        values = frame.loc[frame["strategy"] == figures.name, name]
        return f"{values.notna().sum()} of {len(values)} seeds" if values.notna().any() else "–"
    return f"{mean:,.{digits}f}" + ("" if math.isnan(half) else f" ± {half:,.{digits}f}")
