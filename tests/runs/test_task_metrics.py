"""Runs of tasks with their own metrics."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import R2, RMSE
from helpers.runs import PARTS, settings
from lesson import load
from lesson.cli import main
from lesson.core.errors import DivergedError
from lesson.experiments.engines.trial import execute_trial
from lesson.experiments.run import Run
from lesson.learn.build import TrainingRun
from lesson.learn.metric import Metric
from lesson.learn.scores import Score
from lesson.runs.execute import execute
from lesson.runs.resolve import Resolved
from lesson.runs.summary import read_metrics, summarize
from lesson.settings.settings import Settings


def regression(resolved: Resolved, num_threads: int | None, diverges: bool = False) -> TrainingRun:
    """Build a run whose evaluator has no classes; the RMSE is 6, 5, 4, … over the evaluations."""
    run = resolved.build(num_threads)
    evaluator = run.evaluator
    count = iter(range(6, -100, -1))

    def begin_score(_: object) -> Callable[[], Score]:
        if diverges:
            raise DivergedError("the loss is no longer finite")
        rmse = float(next(count))
        return lambda: Score({"rmse": rmse, "mae": rmse / 2}, rmse**2)

    evaluator.metric, evaluator.is_cross_entropy, evaluator.num_classes = RMSE, False, None
    evaluator.begin_score = begin_score  # type: ignore[assignment,method-assign]
    return run


def test_metrics_are_written_under_their_names(tmp_path: Path) -> None:
    """Five evaluations and that of the final model, which replaces the one of the last line."""
    reported: list[dict[str, Any]] = []
    asked = settings(rounds=5, eval_every_s=0.001, client_scores_every_s=0.001)
    summary = execute(asked, tmp_path / "run", progress=reported.append, make=regression, **PARTS)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert (summary["metric"], summary["higher_is_better"]) == ("rmse", False)
    scores = [summary[name] for name in ("rmse", "rmse_last10", "metrics", "loss")]
    assert scores == [1.0, 1.0, {"mae": 0.5}, 1.0]
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(line["rmse"], line["mae"], line["loss"]) for line in lines[:2]] == [(6.0, 3.0, 36.0), (5.0, 2.5, 25.0)]
    assert reported[0] == lines[0] | {"metric": "rmse", "higher_is_better": False}
    # Means of three consecutive evaluations are 5, 4 and 3 up to the fourth line; the last line has 1 instead of 2.
    assert summary["time_to_s"] == {"4": lines[3]["time_s"], "2": None}
    run = load(tmp_path / "run")
    assert isinstance(run, Run)
    assert run.metric == RMSE
    assert run.to_frame()["rmse"].tolist() == [6.0, 5.0, 4.0, 3.0, 1.0]
    assert list(run.curve) == ["round", "time_s", "rmse", "loss", "uploads", "bytes_up", "energy_j"]
    assert list(run.clients) == ["round", "time_s", "global_loss"]
    assert main(["report", str(tmp_path / "run")]) == 0
    for name in ("summary.json", "metrics.jsonl", "clients.json"):
        assert "accuracy" not in (tmp_path / "run" / name).read_text()


def test_diverged_run_keeps_its_metric(tmp_path: Path) -> None:
    """Its folder has no summary, and it may have no evaluation."""

    def diverging(resolved: Resolved, num_threads: int | None) -> TrainingRun:
        return regression(resolved, num_threads, diverges=True)

    asked = settings(rounds=5, eval_every_s=0.001)
    event = execute_trial(tmp_path / "lost", asked, progress=None, make=diverging, **PARTS)
    assert event["kind"] == "DivergedError"
    run = Run.load_diverged(tmp_path / "lost", event["error"], Metric.of(event))
    assert run.metric == RMSE
    assert math.isnan(run.summary["rmse"])
    assert run.summary["time_to_s"] == {"4": None, "2": None}


def test_class_names_are_saved(tmp_path: Path) -> None:
    def named(resolved: Resolved, num_threads: int | None) -> TrainingRun:
        run = resolved.build(num_threads)
        run.evaluator.class_names = ("top", "bottom", "middle")
        return run

    execute(settings(rounds=2), tmp_path / "run", make=named, **PARTS)
    assert Run.load(tmp_path / "run").read_clients()["class_names"] == ["top", "bottom", "middle"]


@pytest.mark.parametrize(
    ("num_classes", "loss", "is_noted"),
    [(10, 24.0, True), (10, 23.0, False), (100, 24.0, False), (100, 47.0, True), (None, 1e9, False)],
)
def test_loss_far_above_that_of_guessing_is_noted(
    tmp_path: Path, num_classes: int | None, loss: float, is_noted: bool
) -> None:
    """Ten times ln(classes): 23.03 for ten and 46.05 for a hundred; other losses have no scale."""
    summary = summarize(Settings(), tmp_path / "none", R2, {"r2": 0.5}, loss, num_classes=num_classes)
    assert any("final loss" in note for note in summary["notes"]) == is_noted
