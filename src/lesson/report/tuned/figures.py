"""The figures of a tuned comparison: the metric over simulated time, and time to the last target with intervals."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesson.experiments.run import Run
from lesson.experiments.tuned.cases import Case, Done
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.design import TunedComparison
from lesson.experiments.tuned.entries import Group
from lesson.experiments.tuned.measures import time_names, value_names
from lesson.experiments.tuned.study import TunedStudy
from lesson.learn.metric import IN_A_ROW
from lesson.report.bands import Points, draw_band, points_of
from lesson.report.files import PAGE_IN, in_paper_style
from lesson.report.metric_words import target_text
from lesson.report.palette import line_looks


@in_paper_style
def draw_curves(study: TunedStudy, group: Group, figures: pd.DataFrame) -> Figure:
    """Draw one panel per β, with a line and a 95 % band per complete entry.

    Runs that have collapsed are left out, unless all have. The look of an entry does not depend on which other entries
    are complete.
    """
    design, metric = study.design, study.design.rules.measured
    figure = Figure(figsize=(PAGE_IN, 3.0), layout="constrained")
    panels = figure.subplots(1, len(design.rules.betas), sharey=True, squeeze=False)[0]
    names = [entry.name for entry in design.entries if entry.group == group.name]
    looks = dict(zip(names, line_looks(names), strict=True))
    for beta, axes in zip(design.rules.betas, panels, strict=True):
        for name in dict.fromkeys(figures["entry"]):
            [case] = [one for one in design.cases if (one.entry.name, one.beta) == (name, beta)]
            draw_band(axes, case_points(case, study.done), looks[name][0], name, looks[name][1], metric)
        axes.set(xlabel="simulated time (1000 s)", title=f"β = {beta:g}", xlim=(0, design.rules.final_s / 1000))
        axes.grid(alpha=0.25, linewidth=0.4)
    panels[0].set_ylabel(f"test {metric.name}, mean of {IN_A_ROW} evaluations")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


@in_paper_style
def draw_times(design: TunedComparison, figures: pd.DataFrame) -> Figure:
    """Draw one panel per β with a row per entry, the fastest at the top.

    If not every seed of an entry reaches the target, the row says how many do.
    """
    rules = design.rules
    order = _order(figures, design)
    figure = Figure(figsize=(PAGE_IN, 0.9 + 0.2 * len(order)), layout="constrained")
    panels = figure.subplots(1, len(rules.betas), sharey=True, sharex=True, squeeze=False)[0]
    for beta, axes in zip(rules.betas, panels, strict=True):
        _draw_dots(axes, figures[figures["beta"] == beta].set_index("entry").loc[order], _time(design))
        axes.set(xlabel=f"time to {target_text(rules.measured, rules.targets[-1])} (1000 s)", title=f"β = {beta:g}")
        axes.set_xlim(0, rules.final_s / 1000)
        axes.grid(alpha=0.25, linewidth=0.4)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(len(order) - 0.5, -0.5)
    return figure


def case_points(case: Case, done: Done) -> list[Points]:
    """Return the smoothed curves of the final runs of a case, without collapsed runs unless all have collapsed."""
    rules, made = case.rules, case.made(done)
    runs = [run for run in made if not has_collapsed(run, rules.final_s)] or made
    ends = [rules.final_s if run.diverged else None for run in runs]
    return [points_of(_smoothed(run), "time_s", end, rules.measured) for run, end in zip(runs, ends, strict=True)]


def _smoothed(run: Run) -> pd.DataFrame:
    """Return the curve with every value averaged over the last IN_A_ROW evaluations, as for times to targets."""
    name = run.metric.name
    return run.curve.assign(**{name: run.curve[name].astype(float).rolling(IN_A_ROW, min_periods=1).mean()})


def _time(design: TunedComparison) -> str:
    return time_names(design.rules)[len(design.rules.targets) - 1]


def _order(figures: pd.DataFrame, design: TunedComparison) -> list[str]:
    """Return the entries by their time at the last β, followed by those without a time, by the metric."""
    last = figures[figures["beta"] == design.rules.betas[-1]]
    cost = last[value_names(design.rules)[-1]].map(design.rules.measured.cost)
    ranked = last.assign(cost=cost).sort_values([_time(design), "cost"], na_position="last", kind="stable")
    return list(ranked["entry"])


def _draw_dots(axes: Axes, rows: pd.DataFrame, time: str) -> None:
    for place, row in enumerate(rows.to_dict("records")):
        if math.isnan(row[time]):
            said = f"{row[f'{time}_seeds']} of {row['seeds']} seeds reach it"
            axes.text(0.98, place, said, transform=axes.get_yaxis_transform(), ha="right", va="center", color="0.4")
        else:
            half = np.nan_to_num(row[f"{time}_ci95"]) / 1000
            axes.errorbar(row[time] / 1000, place, xerr=half, fmt="o", color="#0072B2", capsize=2, linewidth=0.8)
