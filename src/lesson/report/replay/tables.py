"""The tables of a replay: the recorded run and the simulated strategies, the clients, and the check of predictions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lesson.flight.check import Check, Prediction
from lesson.flight.fit import listed
from lesson.flight.outcomes import Spread
from lesson.flight.replay import Replay
from lesson.report.table import Column, Table
from lesson.report.words import count, digits, percent

MAX_NAMED = 3


def strategy_table(result: Replay) -> Table:
    """Return a table of the recorded run and the simulated strategies; updates per hour have an interval."""
    names, reality = result.fitted.names, result.reality
    rows = [
        {"strategy": label, "not_served": [names[client] for client in not_served], **spreads}
        for label, spreads, not_served in result.rows
    ]
    columns = [
        Column("strategy", "strategy", align="left"),
        Column("round (s)", "round_s", _mean),
        Column("updates / h", "updates_per_h", _with_interval),
        Column("staleness", "staleness", lambda spread: _number(spread.mean, ".2f")),
        Column("on time", "on_time", _share),
        Column("wasted", "wasted", _share),
        Column("J per update", "joules", _mean),
        Column("not served", "not_served", lambda names: listed(names, MAX_NAMED) or "–", align="left"),
    ]
    if np.isnan(result.fitted.energy_j).all():
        columns = [column for column in columns if column.value != "joules"]
    clients, rounds = count(len(names), "client"), count(reality.num_rounds, "round")
    title = f"{result.fitted.recording.name}: {clients}, {result.fitted.duration_s:.0f} s, {rounds}"
    return Table(columns, rows, title, row_style=lambda row: "bold" if row is rows[0] else "")


def client_table(clients: Sequence[dict[str, Any]], labels: Sequence[str]) -> Table:
    """Return a table of the recorded clients, and of how many of their updates each strategy aggregates."""

    def merged(index: int) -> Callable[[dict[str, Any]], float | None]:
        return lambda client: client["merged"][index]

    columns = [
        Column(
            "client", lambda client: f"{client['name']}{' (few replies)' if client['pooled'] else ''}", align="left"
        ),
        Column("median (s)", "median_s", _tenths),
        Column("replies", "replies"),
        Column("failures", "failures"),
        *(Column(label, merged(index), _tenths) for index, label in enumerate(labels)),
    ]
    return Table(columns, clients, "Mean number of aggregated updates of each client in a simulation")


def check_table(check: Check, name: str) -> Table:
    """Return a table that compares the second half of a recording with its prediction from the first."""
    columns = [
        Column("", lambda row: row.what, align="left"),
        Column("predicted", lambda row: _value(row, row.predicted.mean)),
        Column("95 % interval", lambda row: f"{_value(row, row.predicted.low)} – {_value(row, row.predicted.high)}"),
        Column("measured", lambda row: _value(row, row.measured)),
        Column("error", lambda row: row.error, lambda error: "–" if math.isnan(error) else percent(error)),
        Column("covered", lambda row: "yes" if row.is_covered else "no"),
    ]
    title = f"{name}: the second half, predicted from the first ({check.strategy})"
    return Table(columns, check.predictions, title)


def _mean(spread: Spread) -> str:
    return _number(spread.mean)


def _with_interval(spread: Spread) -> str:
    interval = "" if math.isnan(spread.low) else f" ({_number(spread.low)}–{_number(spread.high)})"
    return f"{_number(spread.mean)}{interval}"


def _share(spread: Spread) -> str:
    return "–" if math.isnan(spread.mean) else percent(min(max(spread.mean, 0.0), 1.0))


def _value(prediction: Prediction, value: float) -> str:
    return percent(value) if prediction.what.startswith("share") else f"{digits(value)} {prediction.unit}".strip()


def _number(value: float, digits: str = ".3g") -> str:
    """Return a number with three digits, or more if it is larger than 1000."""
    if not math.isfinite(value):
        return "–"
    return format(value, ".0f" if value >= 100 and digits == ".3g" else digits)


def _tenths(value: float | None) -> str:
    return "–" if value is None else _number(value, ".1f")
