"""The results of a tuned comparison as tables of text."""

import pandas as pd

from lesson.experiments.tuned.cases import Case, Done
from lesson.experiments.tuned.entries import point_words
from lesson.experiments.tuned.measures import GAIN, RATIO, accuracy_names, time_names
from lesson.experiments.tuned.rules import Rules
from lesson.experiments.tuned.study import TunedStudy
from lesson.report.study.compare_text import cell


def group_table(figures: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """Return one row per entry: means ± half their 95 % intervals, or how many seeds reach a target.

    `figures` are those of one group at one β. The last two columns compare an entry with the reference: the ratio of
    the times to the last target, and the difference of the final accuracies in points.
    """
    times, last = len(rules.targets), f"{rules.targets[-1]:.0%}"
    columns = {
        f"accuracy at {time_s:,.0f} s (%)": (name, 100.0, 1)
        for name, time_s in zip(accuracy_names(rules), rules.looks_s, strict=True)
    }
    columns |= {
        f"time to {target:.0%} (s)": (name, 1.0, 0)
        for name, target in zip(time_names(rules), rules.targets, strict=False)
    }
    uploads, energy = time_names(rules)[times:]
    columns |= {f"uploads to {last}": (uploads, 1.0, 0), f"energy to {last} (kJ)": (energy, 1e-3, 1)}
    columns |= {"time ratio": (RATIO, 1.0, 2), "accuracy gain (points)": (GAIN, 100.0, 1)}
    rows = []
    for row in figures.to_dict("records"):
        lost = f" ({row['diverged']} of {row['seeds']} diverged)" if row["diverged"] else ""
        said = {heading: cell(row, name, scale, digits) for heading, (name, scale, digits) in columns.items()}
        if row["entry"] == row["reference"]:
            said |= dict.fromkeys(list(columns)[-2:], "reference")
        rows.append({"entry": f"{row['entry']}{lost}", "settings": row["settings"]} | said)
    return pd.DataFrame(rows)


def settings_table(study: TunedStudy) -> pd.DataFrame:
    """Return one row per entry and candidate settings: the tuning accuracy at each β, in bold for the chosen ones."""
    rows = []
    for entry in study.design.entries:
        cases = [case for case in study.design.cases if case.entry is entry]
        for place, point in enumerate(entry.points):
            row = {"entry": entry.name, "settings": point_words(point)}
            rows.append(row | {f"β = {case.beta:g}": _score(case, study.done, place) for case in cases})
    return pd.DataFrame(rows)


def _score(case: Case, done: Done, place: int) -> str:
    """Return the tuning accuracy of the candidate settings at this index as text."""
    if not case.tuning():
        return "not tuned"
    name, score = list(case.tuning())[place], case.scores(done)[place]
    if score is None:
        return "–"
    said = "diverged" if done[name].diverged else f"{score:.1%}"
    return f"**{said}**" if case.chosen(done) == case.entry.points[place] else said
