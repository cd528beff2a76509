"""The results of a tuned comparison as tables of text."""

import pandas as pd

from lesson.experiments.tuned.cases import Case, Done
from lesson.experiments.tuned.entries import point_words
from lesson.experiments.tuned.measures import COLLAPSED, RATIO, gain_name, time_names, value_names
from lesson.experiments.tuned.rules import Rules
from lesson.experiments.tuned.study import TunedStudy
from lesson.report.metric_words import metric_column, metric_text, target_text, unit_of
from lesson.report.study.compare_text import cell


def group_table(figures: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """Return one row per entry: means ± half their 95 % intervals, or how many seeds reach a target.

    Runs that have collapsed are counted after the entry's name; values of the metric are those of the other runs.
    `figures` are those of one group at one β. The last two columns compare an entry with the reference: the ratio of
    the times to the last target, and by how much the final metric is better, in points for accuracy.
    """
    metric = rules.measured
    times, last = len(rules.targets), target_text(metric, rules.targets[-1])
    values: dict[str, tuple[str, float, int | None]] = {
        f"{metric.name} at {time_s:,.0f} s{unit_of(metric)}": metric_column(metric, name)
        for name, time_s in zip(value_names(rules), rules.looks_s, strict=True)
    }
    columns = values | {
        f"time to {target_text(metric, target)} (s)": (name, 1.0, 0)
        for name, target in zip(time_names(rules), rules.targets, strict=False)
    }
    uploads, energy = time_names(rules)[times:]
    columns |= {f"uploads to {last}": (uploads, 1.0, 0), f"energy to {last} (kJ)": (energy, 1e-3, 1)}
    gain = f"{metric.name} gain{' (points)' if metric.is_share else ''}"
    columns |= {"time ratio": (RATIO, 1.0, 2), gain: metric_column(metric, gain_name(rules))}
    rows = []
    for row in figures.to_dict("records"):
        diverged = f", {row['diverged']} diverged" if row["diverged"] else ""
        lost = f" ({row[COLLAPSED]} of {row['seeds']} collapsed{diverged})" if row[COLLAPSED] else ""
        counts = dict.fromkeys(values, row["seeds"] - row[COLLAPSED]) | {gain: row[f"{gain_name(rules)}_seeds"]}
        said = {
            heading: cell(row | {"seeds": counts.get(heading, row["seeds"])}, name, scale, digits)
            for heading, (name, scale, digits) in columns.items()
        }
        if row["entry"] == row["reference"]:
            said |= dict.fromkeys(list(columns)[-2:], "reference")
        rows.append({"entry": f"{row['entry']}{lost}", "settings": row["settings"]} | said)
    return pd.DataFrame(rows)


def settings_table(study: TunedStudy) -> pd.DataFrame:
    """Return one row per entry and candidate settings: the tuning result at each β, in bold for the chosen ones."""
    rows = []
    for entry in study.design.entries:
        cases = [case for case in study.design.cases if case.entry is entry]
        for place, point in enumerate(entry.points):
            row = {"entry": entry.name, "settings": point_words(point)}
            rows.append(row | {f"β = {case.beta:g}": _score(case, study.done, place) for case in cases})
    return pd.DataFrame(rows)


def at_ends(study: TunedStudy, key: str) -> dict[tuple[str, float], bool]:
    """Return whether the chosen value of a setting is the smallest or largest of its list, by entry and β.

    Only tuned cases whose list has at least three numbers are included.
    """
    found = {}
    for case in study.design.cases:
        values, chosen = case.entry.grid.get(key, []), case.chosen(study.done)
        if len(values) >= 3 and chosen is not None and all(isinstance(value, (int, float)) for value in values):
            found[case.entry.name, case.beta] = chosen[key] in (min(values), max(values))
    return found


def _score(case: Case, done: Done, place: int) -> str:
    """Return the tuning result of the candidate settings at this index as text."""
    if not case.tuning():
        return "not tuned"
    if (score := case.scores(done)[place]) is None:
        return "–"
    said = metric_text(case.rules.measured, score.value)
    if score.diverged == score.seeds:
        said = "diverged"
    elif score.collapsed:
        said += " (collapsed)" if score.seeds == 1 else f" ({score.collapsed} of {score.seeds} collapsed)"
    return f"**{said}**" if case.chosen(done) == case.entry.points[place] else said
