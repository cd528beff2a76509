"""The results of a tuned comparison: means over seeds with 95 % intervals, and paired comparisons with a reference."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lesson.experiments.measures import means, to_target, value_by
from lesson.experiments.run import Run
from lesson.experiments.tuned.cases import Case, Done
from lesson.experiments.tuned.collapse import has_collapsed
from lesson.experiments.tuned.entries import Group, point_words
from lesson.experiments.tuned.rules import Rules

RATIO = "time_ratio"
COLLAPSED = "collapsed"


def value_names(rules: Rules) -> list[str]:
    """Return the names of the columns with values of the metric, one per time."""
    return [f"{rules.metric}_at_{time_s:.0f}" for time_s in rules.looks_s]


def gain_name(rules: Rules) -> str:
    """Return the name of the column that says by how much the metric is better than that of the reference."""
    return f"{rules.metric}_gain"


def time_names(rules: Rules) -> list[str]:
    """Return the names of the columns for times to targets, and for uploads and energy to the last target."""
    last = f"{rules.targets[-1]:g}"
    return [*(f"time_to_{target:g}" for target in rules.targets), f"uploads_to_{last}", f"energy_to_{last}"]


def measure(run: Run, rules: Rules) -> dict[str, float]:
    """Return all numbers of a run; NaN for a target that it never reaches. A run that has collapsed reaches none."""
    wanted = [(target, "time_s") for target in rules.targets]
    wanted += [(rules.targets[-1], "uploads"), (rules.targets[-1], "energy_j")]
    lost = has_collapsed(run, rules.final_s)
    times = [math.inf if lost else to_target(run, target, column) for target, column in wanted]
    return {
        name: value_by(rules.checked(run), time_s)
        for name, time_s in zip(value_names(rules), rules.looks_s, strict=True)
    } | {name: math.nan if math.isinf(time) else time for name, time in zip(time_names(rules), times, strict=True)}


def by_seed(case: Case, done: Done) -> pd.DataFrame:
    """Return the numbers of a case's final runs and whether each has collapsed, one row per seed."""
    rows = [measure(run, case.rules) | {COLLAPSED: has_collapsed(run, case.rules.final_s)} for run in case.made(done)]
    return pd.DataFrame(rows, index=[run.seed for run in case.made(done)])


def to_targets(runs: Sequence[Run], rules: Rules) -> list[dict[str, float]]:
    """Return for each target how many runs reach it, as `seeds`, and the medians of what they spend until then.

    These are time_s, uploads, bytes_up and energy_j. A run that never reaches the target, or that has collapsed, counts
    as infinite, so a median is infinite unless more than half of the runs reach the target. It is NaN if unknown.
    """
    found = []
    lost, sizes = [has_collapsed(run, rules.final_s) for run in runs], [upload_bytes(run) for run in runs]
    for target in rules.targets:
        spent = {
            name: [math.inf if bad else to_target(run, target, name) for run, bad in zip(runs, lost, strict=True)]
            for name in ("time_s", "uploads", "energy_j")
        }
        spent["bytes_up"] = [size * number for size, number in zip(sizes, spent["uploads"], strict=True)]
        row = {"target": target, "seeds": sum(map(math.isfinite, spent["time_s"]))}
        found.append(row | {name: float(np.median(values)) for name, values in spent.items()})
    return found


def upload_bytes(run: Run) -> float:
    """Return the size of an upload in bytes; NaN if it depends on the model and the summary lacks it."""
    if run.summary.get("bytes_up") and run.summary["uploads"]:
        return float(run.summary["bytes_up"] / run.summary["uploads"])
    bits = run.settings.upload.model_bits
    return math.nan if isinstance(bits, str) else math.ceil(bits / 8)


def accuracy_of_others(run: Run) -> float:
    """Return the last accuracy of the clients beyond tier 1 on their own data; NaN if it was not recorded."""
    recorded = run.clients.get("accuracy_others")
    return math.nan if recorded is None or not len(recorded) else float(recorded.iloc[-1])


def table(
    rules: Rules, groups: Sequence[Group], all_cases: Sequence[Case], done: Done, runs: Sequence[Run]
) -> pd.DataFrame:
    """Return one row per β and complete entry, by group: means over seeds and, as NAME_ci95, half their 95 % intervals.

    Only the entries and seeds of `runs`, which are labeled, are included.

    Values of the metric are means over the runs that have not collapsed; `collapsed` counts the others. A time is NaN
    unless every seed reaches the target; NAME_seeds says how many do. `time_ratio` is the time to the last target
    divided by that of the reference, `accuracy_gain` the last accuracy minus that of the reference (for a metric whose
    lower values are better, that of the reference minus its own), both paired over seeds. `accuracy_gain_seeds` counts
    the pairs in which neither run has collapsed.
    """
    rows = []
    kept = {(run.labels["group"], run.labels["entry"], run.settings.data.beta, run.seed) for run in runs}
    incomplete = {case.entry.name for case in all_cases if case.num_missing(done)}
    cases = {(case.entry.name, case.beta): case for case in all_cases if case.entry.name not in incomplete}
    frames = {key: by_seed(case, done) for key, case in cases.items()}
    for group, beta in itertools.product(groups, rules.betas):
        at_beta = {name: frame for (name, at), frame in frames.items() if at == beta}
        reference = _reference(group, at_beta, rules)
        for name, frame in at_beta.items():
            seeds = [seed for seed in frame.index if (group.name, name, beta, seed) in kept]
            if seeds:
                numbers = _numbers(frame.loc[seeds], at_beta.get(reference), rules) | {"reference": reference}
                rows.append(_labels(cases[name, beta], done, seeds) | numbers)
    return pd.DataFrame(rows)


def _labels(case: Case, done: Done, seeds: Sequence[int]) -> dict[str, object]:
    settings = point_words(case.chosen(done) or {})
    diverged = sum(bool(run.diverged) for run in case.made(done) if run.seed in seeds)
    labels = {"group": case.entry.group, "beta": case.beta, "entry": case.entry.name}
    return labels | {"settings": settings, "diverged": diverged}


def _numbers(ours: pd.DataFrame, theirs: pd.DataFrame | None, rules: Rules) -> dict[str, object]:
    gain, lost = gain_name(rules), ours[COLLAPSED].astype(bool)
    values, times = means(ours[~lost], value_names(rules), []), means(ours, [], time_names(rules))
    time, last = time_names(rules)[len(rules.targets) - 1], value_names(rules)[-1]
    known = ours.astype(float) * math.nan if theirs is None else theirs.loc[ours.index]
    more = ours[last] - known[last]
    ratios = pd.DataFrame({RATIO: ours[time] / known[time]})
    gains = pd.DataFrame({gain: more if rules.higher_is_better else -more})[~lost & (known[COLLAPSED] != 1)]
    ratio, gained = means(ratios, [RATIO], []), means(gains, [gain], [])
    number, pairs = times.pop("seeds"), gained.pop("seeds")
    counts = {"seeds": number, COLLAPSED: int(lost.sum())}
    return {**values, **times, **ratio, **gained, f"{gain}_seeds": pairs, **counts}


def _reference(group: Group, frames: dict[str, pd.DataFrame], rules: Rules) -> str:
    """Return the group's reference: the entry that is fastest to the last target.

    If none of them reaches it with every seed, return the one with the fewest collapsed runs, of several the best.
    """
    time, last = time_names(rules)[len(rules.targets) - 1], value_names(rules)[-1]

    def rank(name: str) -> tuple[float, int, float]:
        times, lost = frames[name][time], frames[name][COLLAPSED].astype(bool)
        return (
            float(times.mean()) if times.notna().all() else math.inf,
            int(lost.sum()),
            rules.measured.cost(frames[name][last][~lost].mean()),
        )

    return min((name for name in group.references if name in frames), key=rank, default="")
