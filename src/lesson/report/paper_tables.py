"""The paper's tables, and two of this project's own, as text for people."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lesson.arrays import FloatArray
from lesson.paper import fleets
from lesson.paper.items import Item, Scale
from lesson.paper.measures import last_accuracy, per_seed, reached
from lesson.paper.parameters import parameters
from lesson.paper.results import Results
from lesson.study import half_interval

STEP_SIZES = {"0.1": "", "0.02": "-learning_rate=0.02"}
CALLED = {"lesson": "LESSON", "fedavg": "FedAvg", "fedcs": "FedCS"}


def parameters_table(*_: object) -> pd.DataFrame:
    """Table I: what the paper says beside the two presets."""
    return parameters()


def round_lengths_table(item: Item, *_: object) -> pd.DataFrame:
    """Table II: seconds of a round by scenario and strategy, beside the paper's."""
    draws = fleets.with_intervals(fleets.round_lengths(**item.options), ["scenario", "strategy", "paper_s"])
    return pd.DataFrame(
        {
            "scenario": row["scenario"],
            "strategy": CALLED[row["strategy"]],
            "paper (s)": f"{row['paper_s']:g}",
            f"ours (s) over {row['draws']} draws": f"{row['round_s']:.1f} ± {row['round_s_ci95']:.1f}",
        }
        for row in draws.to_dict("records")
    )


def what_if_table(item: Item, *_: object) -> pd.DataFrame:
    """Latencies of `released` after one change at a time."""
    draws = fleets.with_intervals(fleets.what_if(**item.options), ["change"])
    return pd.DataFrame(
        {
            "choice": row["change"],
            "slowest client (s)": f"{row['slowest_s']:,.1f} ± {row['slowest_s_ci95']:,.1f}",
            "median client (s)": f"{row['median_s']:,.1f} ± {row['median_s_ci95']:,.1f}",
            "in tier 1 at τ = 20 s": f"{row['tier_1_share']:.1%}",
        }
        for row in draws.to_dict("records")
    )


def authors_table(item: Item, results: Results, scale: Scale) -> pd.DataFrame:
    """The authors' released accuracies beside ours at both step sizes."""
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


def choices_table(item: Item, results: Results, scale: Scale) -> pd.DataFrame:
    """Accuracy and time to a target of each strategy under other choices."""
    return pd.DataFrame(
        {"setting": f"{row['label']}, {row['rounds']:,} rounds"}
        | {
            f"{called}: accuracy; time to target": _outcome(results, scale, f"{name}-{row['series']}", row)
            if name in row.get("strategies", CALLED)
            else "–"
            for name, called in CALLED.items()
        }
        for row in item.rows
    )


def _outcome(results: Results, scale: Scale, series: str, row: Mapping[str, Any]) -> str:
    name, target = scale.series(series), row["target"]
    times_s = per_seed(results, name, lambda run: reached(run, target, "time_s", row["rounds"]))
    met = int(np.isfinite(times_s).sum())
    when = f"{_with_interval(times_s, '{:,.0f}')} s" if met == len(times_s) else f"{met} of {len(times_s)} seeds"
    return f"{_accuracy(results, scale, series, row['rounds'])}; {target:.0%}: {when}"


def _accuracy(results: Results, scale: Scale, series: str, rounds: int) -> str:
    return _with_interval(last_accuracy(results, scale.series(series), rounds), "{:.3f}")


def _with_interval(values: FloatArray, form: str) -> str:
    return f"{form.format(values.mean())} ± {form.format(half_interval(values))}"
