"""The paper's tables, and further ones of this project, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lesson.core.arrays import FloatArray
from lesson.experiments.measures import Series, half_interval, last_accuracy, per_seed, to_target
from lesson.experiments.run import Run
from lesson.paper import fleets
from lesson.paper.claims.accuracies import SIMILAR
from lesson.paper.claims.base import CALLED, DATASETS
from lesson.paper.items import STEP_SIZES, Item
from lesson.paper.parameters import parameters
from lesson.paper.scale import Scale
from lesson.paper.verdicts import Finding, Part, near


def parameters_table(*_: object) -> pd.DataFrame:
    """Return Table I: the paper's parameters next to those of both presets."""
    return parameters()


def round_lengths_table(item: Item, *_: object) -> pd.DataFrame:
    """Return Table II: round length in seconds by scenario and strategy, next to the paper's."""
    draws = fleets.with_intervals(fleets.round_lengths(**item.options), ["scenario", "strategy", "paper_s"])
    ours = f"ours (s), mean ± 95 % confidence interval over {draws['draws'].iloc[0]} draws"
    return pd.DataFrame(
        {
            "preset": row["scenario"],
            "strategy": row["strategy"].replace(strategy, CALLED[strategy]),
            "paper (s)": f"{row['paper_s']:g}",
            ours: f"{row['round_s']:.1f} ± {row['round_s_ci95']:.1f}",
        }
        for row in draws.to_dict("records")
        for strategy in [row["strategy"].partition(", ")[0]]
    )


def what_if_table(item: Item, *_: object) -> pd.DataFrame:
    """Return the latencies under `released` after one change at a time."""
    draws = fleets.with_intervals(fleets.what_if(**item.options), ["change"])
    return pd.DataFrame(
        {
            "change": row["change"],
            "slowest client (s)": f"{row['slowest_s']:,.1f} ± {row['slowest_s_ci95']:,.1f}",
            "median client (s)": f"{row['median_s']:,.1f} ± {row['median_s_ci95']:,.1f}",
            "in tier 1 at τ = 20 s": f"{row['tier_1_share']:.1%}",
        }
        for row in draws.to_dict("records")
    )


def authors_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return the authors' released accuracies next to ours at both step sizes."""
    rows = []
    for row in item.rows:
        low, high = row["released"]
        ours = {
            f"ours, δ = {rate}": _accuracy(results, scale, row["series"] + suffix, row["rounds"])
            if rate in row.get("step_sizes", STEP_SIZES)
            else "–"
            for rate, suffix in STEP_SIZES.items()
        }
        rows.append(
            {
                "setting": scale.title(row["label"]),
                "released": f"{low:.3f}" if low == high else f"{low:.2f} – {high:.2f}",
            }
            | ours
        )
    return pd.DataFrame(rows)


def choices_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return the accuracy of each strategy and its time to a target under alternative settings."""
    return pd.DataFrame(
        {"setting": scale.title(row["label"]), "rounds": f"{_rounds(results, scale, row):,}"}
        | {
            f"{called}: accuracy; time to target": _outcome(results, scale, f"{name}-{row['series']}", row)
            if name in row.get("strategies", CALLED)
            else "–"
            for name, called in CALLED.items()
        }
        for row in item.rows
    )


def margins_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return whether LESSON counts as similar to FedAvg, by the margin up to which a difference counts as similar."""
    differences = {}
    for row in item.rows:
        lesson, fedavg = (
            last_accuracy(results, scale.series(f"{name}-{row['series']}"), row["rounds"])
            for name in ("lesson", "fedavg")
        )
        differences[scale.title(row["label"])] = lesson - fedavg
    rows = []
    for margin in item.options["margins"]:
        parts = [Part(label, values, near(0, margin), "points") for label, values in differences.items()]
        used = [label for label, name in DATASETS.items() if SIMILAR[name] == margin]
        rows.append(
            {"margin (points)": f"{100 * margin:g}", "used for": ", ".join(used) or "–"}
            | {f"{part.label}: {part.shown()}": part.outcome for part in parts}
        )
    return pd.DataFrame(rows)


def mnist_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return the accuracies of the three strategies by step size, β and split, below the authors' released ones."""
    released = {called: f"{item.options['released'][name]:.3f}" for name, called in CALLED.items()}
    return pd.DataFrame(
        [{"setting": "released, β = 1"} | released]
        + [
            {"setting": row["label"]}
            | {
                called: _accuracy(results, scale, f"{name}-{row['series']}", row["rounds"])
                for name, called in CALLED.items()
            }
            for row in item.rows
        ]
    )


def _rounds(results: Series, scale: Scale, row: Mapping[str, Any]) -> int:
    """Return the number of rounds that a row is about; a quick look has fewer."""
    made = results[scale.series(f"lesson-{row['series']}")][0].settings.run.rounds
    return min(int(row["rounds"]), made or int(row["rounds"]))


def sawtooth_table(item: Item, results: Series, scale: Scale) -> pd.DataFrame:
    """Return LESSON's mean accuracy after even and after odd rounds."""
    rows = []
    for row in item.rows:
        runs = [_late(run, item, scale) for run in results[scale.series(row["series"])]]
        even, odd = (
            np.array([curve[curve["round"] % 2 == odd]["accuracy"].mean() for curve in runs]) for odd in (0, 1)
        )
        rows.append(
            {
                "setting": row["label"],
                "even rounds": _with_interval(even, "{:.3f}"),
                "odd rounds": _with_interval(odd, "{:.3f}"),
                "even − odd (points)": _with_interval(100 * (even - odd), "{:.1f}"),
                "median of even − odd (points)": f"{100 * np.median(even - odd):.1f}",
            }
        )
    return pd.DataFrame(rows)


def _late(run: Run, item: Item, scale: Scale) -> pd.DataFrame:
    """Return the rounds of a curve that an item is about; a quick look has no late rounds and keeps the early ones."""
    curve = run.up_to(item.options["last_round"])
    return curve if scale.quick else curve[curve["round"] > item.options["first_round"]]


def _outcome(results: Series, scale: Scale, series: str, row: Mapping[str, Any]) -> str:
    """Describe a series: its accuracy, time to a target or how many seeds reach it, and how many runs diverged."""
    name, target = scale.series(series), row["target"]
    times_s = per_seed(results, name, lambda run: to_target(run, target, "time_s", row["rounds"]))
    met, lost = int(np.isfinite(times_s).sum()), sum(bool(run.diverged) for run in results[name])
    when = f"{_with_interval(times_s, '{:,.0f}')} s" if met == len(times_s) else f"{met} of {len(times_s)} seeds"
    told = f"; {lost} of {len(times_s)} diverged" if lost else ""
    return f"{_accuracy(results, scale, series, row['rounds'])}; {target:.0%}: {when}{told}"


def _accuracy(results: Series, scale: Scale, series: str, rounds: int) -> str:
    return _with_interval(last_accuracy(results, scale.series(series), rounds), "{:.3f}")


def _with_interval(values: FloatArray, form: str) -> str:
    return f"{form.format(values.mean())} ± {form.format(half_interval(values))}"


_STYLES = {"holds": "green", "fails": "red", "inconclusive": "yellow", "mixed": "yellow"}
_MARKS = {"holds": "+", "fails": "-", "inconclusive": "?"}


def claims_table(findings: Sequence[Finding]) -> Table:
    """Return one row per claim; a number is marked + if it holds, - if it fails, ? if it is inconclusive."""
    table = Table("claim", "ours (mean ± 95 % confidence interval)", "verdict", box=SIMPLE_HEAD, pad_edge=False)
    table.caption = "+ holds, - fails, ? inconclusive; added: not in the paper, does not count"
    table.caption_justify = "left"
    for finding in findings:
        said = Text.assemble(finding.statement, "\n", (f"paper: {finding.paper}", "dim"))
        ours = "\n".join(
            f"{_MARKS[part.outcome]} {part.label}{' (added)' * part.added}: {part.shown()}" for part in finding.parts
        )
        table.add_row(said, Text(ours), Text(finding.verdict, _STYLES[finding.verdict]))
    return table
