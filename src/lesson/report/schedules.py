"""The table of simulated schedules."""

import math
from collections.abc import Sequence

from lesson.planning.schedules import Schedule
from lesson.report.table import Column, Table


def schedule_table(schedules: Sequence[Schedule], title: str) -> Table:
    """Return a table with a row per strategy and seed; energies are omitted if none is known."""
    columns = [
        Column("strategy", lambda one: one.strategy, align="left"),
        Column("seed", lambda one: one.seed),
        Column("time (s)", lambda one: one.time_s, lambda value: _number(value, ",.0f" if value >= 100 else ".3g")),
        Column("versions", lambda one: one.versions, "{:,}".format),
        Column("updates / h", lambda one: one.updates_per_h, lambda value: _number(value, ",.0f")),
        Column("staleness", lambda one: one.staleness, _hundredths),
        Column("SD", lambda one: one.staleness_sd, _hundredths),
        Column("max", lambda one: one.staleness_max, lambda value: _number(value, ".0f")),
        Column("concurrency", lambda one: one.concurrency, lambda value: _number(value, ".1f")),
        Column("energy (J)", lambda one: one.energy_j, lambda value: _number(value, ",.0f")),
    ]
    if all(math.isnan(one.energy_j) for one in schedules):
        columns.pop()
    return Table(columns, schedules, title)


def _hundredths(value: float) -> str:
    return _number(value, ".2f")


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"
