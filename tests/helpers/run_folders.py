"""Folders of made-up finished runs: six rounds of 100 s with given accuracies."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import tomli_w

from lesson import Study, load
from lesson.experiments.folder import FORMAT, MARKER
from lesson.fleet.fleet import draw_fleet
from lesson.learn.metric import ACCURACY as ACCURACY_METRIC
from lesson.learn.metric import Metric
from lesson.runs.summary import clients_of, summarize
from lesson.settings.loading import FORMAT as SETTINGS_FORMAT
from lesson.settings.settings import Settings

ACCURACY = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
RMSE = Metric("rmse", higher_is_better=False, targets=(4.0, 2.0))
R2 = Metric("r2", targets=(0.5,))


def load_as_study(folder: Path) -> Study:
    study = load(folder)
    assert isinstance(study, Study)
    return study


def make_run(path: Path, *, joules: float | None = 50.0, better: float = 0.0, **sections: dict[str, Any]) -> None:
    """Write a finished run with these settings; each round has 4 uploads and consumes `joules`."""
    write_run(path, _settings(sections), joules=joules, better=better)


def make_run_of(path: Path, metric: Metric, values: Sequence[float], **sections: dict[str, Any]) -> None:
    """Write a finished run of a task without classes, with these values of its metric and with a second metric."""
    write_run(path, _settings(sections), metric=metric, values=values)


def _settings(sections: dict[str, dict[str, Any]]) -> Settings:
    run = {"time_budget_s": 600.0} | sections.pop("run", {})
    return Settings(run=run, **sections)


def write_run(
    path: Path,
    settings: Settings,
    *,
    joules: float | None = 50.0,
    better: float = 0.0,
    metric: Metric = ACCURACY_METRIC,
    values: Sequence[float] = ACCURACY,
) -> None:
    """Write a finished run with these settings, see `make_run`."""
    begin_run(path, settings)
    others = {} if metric.is_share else {"mae": 0.5}
    lines = [
        {"round": index + 1, "time_s": 100.0 * (index + 1), "uploads": 4, "bytes_up": 10, "bytes_down": 10}
        | {"energy_j": joules, "staleness": 0.0}
        | {metric.name: max(metric.bounds[0], value + better), **others, "loss": 1 - value}
        for index, value in enumerate(values)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    final = {metric.name: values[-1] + better, **others}
    summary = summarize(settings, path / "metrics.jsonl", metric, final, 0.1) | {"wall_s": 1.0, "wall_trainer": "fused"}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "clients.json").write_text(json.dumps(_clients(settings, 10 if metric.is_share else None)))


def begin_run(path: Path, settings: Settings) -> None:
    """Write what a run leaves that was interrupted in its first round."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text(tomli_w.dumps({"format": SETTINGS_FORMAT} | settings.to_sections()))
    (path / "metrics.jsonl").touch()


def _clients(settings: Settings, num_classes: int | None) -> dict[str, Any]:
    """Return the clients of a run; all have equal shares of every class, and the accuracy on each class is 0.5."""
    fleet = draw_fleet(settings).at_deadline(settings.strategy.deadline_s)
    evaluator = SimpleNamespace(
        num_classes=num_classes,
        class_names=(),
        class_accuracy=lambda _: np.full(10, 0.5),
        own_accuracy=lambda chosen, by_class: np.full(len(chosen), by_class.mean()),
    )
    return clients_of(fleet, cast(Any, evaluator), cast(Any, None))


def make_comparison(out: Path, strategies: tuple[str, ...] = ("lesson", "fedavg"), num_seeds: int = 3) -> None:
    """Write runs of strategies × seeds; the accuracy of seed s is higher by 0.01·s."""
    for name in strategies:
        for seed in range(num_seeds):
            folder = out / f"{name.replace(':', '.')}-seed{seed}"
            make_run(folder, better=0.01 * seed, strategy={"name": name}, run={"seed": seed})


def make_comparison_of(out: Path, metric: Metric, values: Sequence[float], worse: float, step: float = 0.01) -> None:
    """Write runs of two strategies with three seeds; FedAvg is worse by `worse`, and seed s differs by `step`·s."""
    for name, more in (("fedavg", worse), ("lesson", 0.0)):
        for seed in range(3):
            own = [value + more + step * seed for value in values]
            make_run_of(out / f"{name}-seed{seed}", metric, own, strategy={"name": name}, run={"seed": seed})


def make_sweep(out: Path) -> None:
    """Write a sweep of two strategies at two β with two seeds; one has an option, the other cannot be imported."""
    for beta in (0.1, 1.0):
        for seed in range(2):
            common: dict[str, Any] = {"data": {"beta": beta}, "run": {"seed": seed}}
            make_run(out / f"lesson-beta={beta}-seed{seed}", strategy={"name": "lesson", "late": "drop"}, **common)
            make_run(out / f"mine-beta={beta}-seed{seed}", strategy={"name": "nowhere:Mine"}, **common)
    axes = {"strategy.name": ["lesson", "nowhere:Mine"], "data.beta": [1, 0.1], "strategy.late": ["drop"]}
    names = [f"{who}-beta={beta}-seed{seed}" for who in ("lesson", "mine") for beta in (1.0, 0.1) for seed in range(2)]
    study: dict[str, Any] = {"format": FORMAT, "kind": "sweep", "by": list(axes), "failures": {"x": "no <reason>"}}
    study["runs"] = [{"name": name} for name in (*names, "x", "new")]
    asked = {"run": {"time_budget_s": 600.0}, "sweep": axes | {"seeds": 2}}
    (out / MARKER).write_text(tomli_w.dumps(asked | {"study": study}))
