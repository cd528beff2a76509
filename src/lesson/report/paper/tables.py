"""The paper's tables, further ones of this project, and the table of claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lesson.experiments.measures import Estimate, spent_until
from lesson.paper import fleets
from lesson.paper.claims.base import CALLED
from lesson.paper.items import STEP_SIZES, Item, base_settings
from lesson.paper.parameters import PARAMETERS
from lesson.paper.scale import Scale
from lesson.paper.series import Series, last_accuracy
from lesson.report.table import Column, Table

MARKS = {"holds": "✓", "fails": "✗", "inconclusive": "?"}
_STYLES = {"holds": "green", "fails": "red", "inconclusive": "yellow", "mixed": "yellow"}


def claims_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row per claim of claims.json; each part has a line with its outcome."""

    def statement(claim: Mapping[str, Any]) -> str:
        marks = " (added)" * claim["added"] + " (by construction)" * claim.get("constructed", False)
        return f"{claim['statement']}{marks}\npaper ({', '.join(claim['items'])}): {claim['paper']}"

    def ours(claim: Mapping[str, Any]) -> str:
        return "\n".join(
            f"{MARKS[part['outcome']]} {part['label']}{' (added)' * part['added']}: {part['text']}"
            for part in claim["parts"]
        )

    columns = [
        Column("claim", statement, align="left"),
        Column("ours (mean ± 95 % confidence interval)", ours, align="left"),
        Column("seeds", "seeds"),
        Column("verdict", "verdict", align="left"),
    ]
    return Table(columns, claims, row_style=lambda claim: _STYLES[claim["verdict"]])


def parameters_table(*_: object) -> Table:
    """Return Table I: the paper's parameters next to those of both presets."""
    printed, released = base_settings("printed"), base_settings("released")
    columns = [
        Column("parameter", lambda row: row.name, align="left"),
        Column("setting", lambda row: ", ".join(row.fields), align="left"),
        Column("paper", lambda row: row.paper, align="left"),
        Column("printed", lambda row: row.show(printed), align="left"),
        Column("released", lambda row: row.show(released), align="left"),
    ]
    return Table(columns, PARAMETERS)


def round_lengths_table(item: Item, *_: object) -> Table:
    """Return Table II: round length in seconds by scenario and strategy, next to the paper's."""
    draws = fleets.round_lengths(**item.options).groupby(["scenario", "strategy", "paper_s"], sort=False)["round_s"]
    rows = [(*key, Estimate.of(lengths.to_numpy())) for key, lengths in draws]

    def strategy(row: Sequence[Any]) -> str:
        name = row[1].partition(", ")[0]
        return str(row[1].replace(name, CALLED[name]))

    columns = [
        Column("preset", lambda row: row[0], align="left"),
        Column("strategy", strategy, align="left"),
        Column("paper (s)", lambda row: row[2], "{:g}".format),
        Column(
            f"ours (s), mean ± 95 % confidence interval over {item.options['num_draws']} draws",
            lambda row: row[3],
            lambda ours: ours.text("{:.1f}"),
        ),
    ]
    return Table(columns, rows)


def authors_table(item: Item, results: Series, scale: Scale) -> Table:
    """Return the authors' released accuracies next to ours at both step sizes."""

    def released(row: Mapping[str, Any]) -> str:
        low, high = row["released"]
        return f"{low:.3f}" if low == high else f"{low:.2f} – {high:.2f}"

    def ours(rate: str) -> Column:
        def accuracy(row: Mapping[str, Any]) -> Estimate | None:
            if rate not in row.get("step_sizes", STEP_SIZES):
                return None
            return _accuracy(results, scale, row["series"] + STEP_SIZES[rate], row["rounds"])

        return Column(f"ours, δ = {rate}", accuracy, _share)

    columns = [Column("setting", "label", align="left"), Column("released", released), *map(ours, STEP_SIZES)]
    return Table(columns, item.rows)


def choices_table(item: Item, results: Series, scale: Scale) -> Table:
    """Return the accuracy of each strategy and its time to a target under alternative settings."""

    def rounds(row: Mapping[str, Any]) -> int:
        """Return the number of rounds that a row is about; a quick look has fewer."""
        made = results[scale.series(f"lesson-{row['series']}")][0].settings.run.rounds
        return min(int(row["rounds"]), made or int(row["rounds"]))

    def outcome(name: str) -> Column:
        def of(row: Mapping[str, Any]) -> str:
            if name not in row.get("strategies", CALLED):
                return "–"
            return _outcome(results, scale, f"{name}-{row['series']}", row)

        return Column(f"{CALLED[name]}: accuracy; time to target", of)

    columns = [
        Column("setting", "label", align="left"),
        Column("rounds", rounds, "{:,}".format),
        *map(outcome, CALLED),
    ]
    return Table(columns, item.rows)


def mnist_table(item: Item, results: Series, scale: Scale) -> Table:
    """Return the accuracies of the three strategies by step size, β and split, below the authors' released ones."""

    def accuracy(name: str) -> Column:
        def of(row: Mapping[str, Any]) -> Estimate:
            if "series" not in row:
                return Estimate.of(np.array([row[name]]))
            return _accuracy(results, scale, f"{name}-{row['series']}", row["rounds"])

        return Column(CALLED[name], of, _share)

    released = {"label": "released, β = 1", **item.options["released"]}
    return Table([Column("setting", "label", align="left"), *map(accuracy, CALLED)], [released, *item.rows])


def _outcome(results: Series, scale: Scale, series: str, row: Mapping[str, Any]) -> str:
    """Describe a series: its accuracy, time to a target or how many seeds reach it, and how many runs diverged."""
    runs, target = results[scale.series(series)], row["target"]
    spent = spent_until(runs, target, rounds=row["rounds"])
    when = f"{len(runs) - sum(spent.is_bound)} of {len(runs)} seeds"
    when = when if spent.is_bound.any() else spent.text("{:,.0f}", " s")
    lost = sum(bool(run.diverged) for run in runs)
    told = f"; {lost} of {len(runs)} diverged" if lost else ""
    return f"{_share(_accuracy(results, scale, series, row['rounds']))}; {target:.0%}: {when}{told}"


def _accuracy(results: Series, scale: Scale, series: str, rounds: int) -> Estimate:
    return Estimate.of(last_accuracy(results, scale.series(series), rounds))


def _share(estimate: Estimate | None) -> str:
    return "–" if estimate is None else estimate.text("{:.3f}")
