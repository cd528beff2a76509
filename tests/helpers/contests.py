"""A small contest, and made-up results of its runs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from lesson.experiments.contest.cases import cases_of
from lesson.experiments.contest.entries import Contest, load_contest
from lesson.experiments.naming import run_name
from lesson.experiments.results import Result, Results
from lesson.settings.settings import Settings

FILE = """
[rules]
dataset = "mnist"
betas = [0.1, 1.0]
tuning_seed = 100
seeds = [0, 1]
tuning_s = 400.0
final_s = 800.0
eval_every_s = 100.0
looks_s = [400.0, 800.0]
targets = [0.5, 0.7]

[groups.strategies]
title = "Strategies"
references = ["fedavg"]

[groups.deadlines]
title = "Deadlines"
references = ["lesson τ=10", "lesson τ=20"]

[[entries]]
name = "fedavg"
group = "strategies"
strategy = { name = "fedavg" }
grid = { "training.learning_rate" = [0.05, 0.1], "strategy.fraction" = [1.0, 0.5] }

[[entries]]
name = "lesson"
group = "strategies"
strategy = { name = "lesson" }
points = [{ "strategy.deadline_s" = 20.0 }, { "strategy.deadline_s" = 10.0 }]

[[entries]]
name = "lesson τ=10"
group = "deadlines"
strategy = { deadline_s = 10.0 }

[[entries]]
name = "lesson τ=20"
group = "deadlines"
strategy = { deadline_s = 20.0 }
"""


def small(folder: Path, text: str = FILE) -> Contest:
    """Return the contest described by this TOML text."""
    path = folder / "entries.toml"
    path.write_text(text, encoding="utf-8")
    return load_contest(path)


def made(settings: Settings, accuracies: list[float], stopped: str = "") -> Result:
    """Return a result with an evaluation every 100 s, and 5 rounds, 10 uploads and 2.5 kJ between evaluations."""
    count = np.arange(1, len(accuracies) + 1)
    curve = {"round": 5 * count, "time_s": 100.0 * count, "accuracy": accuracies, "uploads": 10 * count}
    return Result(settings, {"torch": "2"}, stopped, pd.DataFrame(curve | {"energy_j": 2500.0 * count}), pd.DataFrame())


def everything(contest: Contest, accuracies: Callable[[Settings], list[float]]) -> Results:
    """Return results of all runs of a contest."""
    cases = cases_of(contest.entries, contest.rules)
    tuned = [one for case in cases for one in case.tuning().values()]
    runs = {run_name(settings): made(settings, accuracies(settings)) for settings in tuned}
    finals = [one for case in cases for one in (case.finals(Results(runs)) or {}).values()]
    return Results(runs | {run_name(settings): made(settings, accuracies(settings)) for settings in finals})
