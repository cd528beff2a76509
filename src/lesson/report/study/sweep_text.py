"""The tables at the end of a sweep."""

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lesson.experiments.naming import short_name
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.metric_words import metric_column, target_text, unit_of
from lesson.report.study.compare_text import cell, reached_targets, what_is_shown
from lesson.report.study.groups import labels_in_words

MAX_TARGETS = 2
Column = tuple[str, float, int | None]
"""Name of a measure, the factor to multiply it by, and the number of decimal places, see `cell`."""


def sweep_table(study: Study, title: str) -> Table:
    """Return one row per combination of swept values and one column per measure, as means ± half the 95 % intervals."""
    table = study.means()
    columns = columns_of(table, study.metric)
    shown = _table(f"{title}, {what_is_shown(table)}", [*map(short_name, study.by), "seeds", *columns])
    for labels, figures in table.iterrows():
        said = labels_in_words(labels if isinstance(labels, tuple) and len(study.by) > 1 else (labels,))
        shown.add_row(*said, f"{int(figures['seeds'])}", *(cell(figures, *figure) for figure in columns.values()))
    return shown


def columns_of(table: pd.DataFrame, metric: Metric) -> dict[str, Column]:
    """Return the columns for the main measures, by heading."""
    targets = reached_targets(table, metric)[-MAX_TARGETS:]
    columns: dict[str, Column] = {f"{metric.name} at\nthe end{unit_of(metric)}": metric_column(metric, metric.last10)}
    columns |= {f"time to\n{target_text(metric, target)} (s)": (f"time_to_{target:g}", 1.0, 0) for target in targets}
    return columns | {"uploads": ("uploads", 1.0, 0), "energy\n(kJ)": ("energy_j", 1e-3, 1)}


def failure_table(study: Study) -> Table:
    """Return one row per failed run, with the reason."""
    shown = Table("run", "reason", box=SIMPLE_HEAD, pad_edge=False)
    for name, reason in study.failures.items():
        shown.add_row(Text(name), Text(reason))
    return shown


def _table(title: str, headings: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    return table
