"""A small tuned comparison, and made-up runs of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from lesson.experiments import loading
from lesson.experiments.folder import FORMAT, Marker, StudyFolder
from lesson.experiments.naming import run_name
from lesson.experiments.run import Archived, Run, summary_of
from lesson.experiments.tuning.file import Tuning
from lesson.experiments.tuning.study import KIND, TunedStudy
from lesson.experiments.tuning.tune import plan_tuning
from lesson.learn.metric import ACCURACY, Metric
from lesson.settings.settings import Settings

FILE = """
[rules]
dataset = "mnist"
betas = [0.1, 1.0]
tuning_seeds = [100]
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


def small(folder: Path, text: str = FILE) -> Tuning:
    """Return the tuned comparison that this TOML text describes."""
    path = folder / "entries.toml"
    path.write_text(text, encoding="utf-8")
    return Tuning.load(path)


def made(settings: Settings, values: list[float], diverged: str = "", metric: Metric = ACCURACY) -> Run:
    """Return a run with an evaluation every 100 s, and 5 rounds, 10 uploads and 2.5 kJ between evaluations."""
    count = np.arange(1, len(values) + 1)
    scores = {"round": 5 * count, "time_s": 100.0 * count, metric.name: np.array(values, dtype=float)}
    curve = pd.DataFrame(scores | {"uploads": 10 * count, "energy_j": 2500.0 * count})
    archived = Archived(run_name(settings), {"torch": "2"}, curve, pd.DataFrame())
    return Run(None, settings, summary_of(settings, curve, diverged, metric), diverged, archived=archived)


Values = Callable[[Settings], list[float]]


def everything(tuning: Tuning, values: Values, metric: Metric = ACCURACY) -> dict[str, Run]:
    """Return all runs of a tuned comparison by name, with these values; a run without values has diverged."""
    done: dict[str, Run] = {}
    while missing := {name: one for name, one in plan_tuning(tuning, done).runs.items() if name not in done}:
        found = {name: (one, values(one)) for name, one in missing.items()}
        done |= {name: made(one, its, "" if its else "no longer finite", metric) for name, (one, its) in found.items()}
    return done


def study_of(folder: Path, values: Values, text: str = FILE, metric: Metric = ACCURACY) -> TunedStudy:
    """Return the finished tuned comparison that this TOML text describes, with these values."""
    tuning = small(folder, text)
    done, there = everything(tuning, values, metric), StudyFolder(folder)
    marker = there.write(plan_tuning(tuning, done), Marker(format=FORMAT, kind=KIND))
    study = loading.study_of(there, marker, done)
    assert isinstance(study, TunedStudy)
    return study
