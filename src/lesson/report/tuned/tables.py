"""The results of a tuned comparison as tables of text."""

import pandas as pd

from lesson.experiments.tuned.cases import Case, Done
from lesson.experiments.tuned.entries import point_words
from lesson.experiments.tuned.measures import RATIO, gain_name, time_names, value_names
from lesson.experiments.tuned.rules import Rules
from lesson.experiments.tuned.study import TunedStudy
from lesson.report.study.compare_text import cell


def group_table(figures: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """Return one row per entry: means ± half their 95 % intervals, or how many seeds reach a target.

    `figures` are those of one group at one β. The last two columns compare an entry with the reference: the ratio of
    the times to the last target, and by how much the final metric is better, in points for accuracy.
    """
    metric = rules.measured
    times, last = len(rules.targets), metric.target(rules.targets[-1])
    columns: dict[str, tuple[str, float, int | None]] = {
        f"{metric.name} at {time_s:,.0f} s{metric.unit}": metric.column(name)
        for name, time_s in zip(value_names(rules), rules.looks_s, strict=True)
    }
    columns |= {
        f"time to {metric.target(target)} (s)": (name, 1.0, 0)
        for name, target in zip(time_names(rules), rules.targets, strict=False)
    }
    uploads, energy = time_names(rules)[times:]
    columns |= {f"uploads to {last}": (uploads, 1.0, 0), f"energy to {last} (kJ)": (energy, 1e-3, 1)}
    gain = f"{metric.name} gain{' (points)' if metric.is_share else ''}"
    columns |= {"time ratio": (RATIO, 1.0, 2), gain: metric.column(gain_name(rules))}
    rows = []
    for row in figures.to_dict("records"):
        lost = f" ({row['diverged']} of {row['seeds']} diverged)" if row["diverged"] else ""
        said = {heading: cell(row, name, scale, digits) for heading, (name, scale, digits) in columns.items()}
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


def _score(case: Case, done: Done, place: int) -> str:
    """Return the tuning result of the candidate settings at this index as text."""
    if not case.tuning():
        return "not tuned"
    name, score = list(case.tuning())[place], case.scores(done)[place]
    if score is None:
        return "–"
    said = "diverged" if done[name].diverged else case.rules.measured.text(score)
    return f"**{said}**" if case.chosen(done) == case.entry.points[place] else said
