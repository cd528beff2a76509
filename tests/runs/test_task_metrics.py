"""Runs of tasks with their own metrics: what they write, and what is accepted when it is read back."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import R2, RMSE, make_run, make_run_of
from helpers.runs import PARTS, settings
from helpers.tensorboard import needs_tensorboard, read_scalars
from lesson import InputError, load
from lesson.cli import main
from lesson.core.errors import DivergedError
from lesson.experiments.engines.trial import execute_trial
from lesson.experiments.run import Run
from lesson.learn.build import TrainingRun, build
from lesson.learn.metric import Metric
from lesson.learn.scores import Known, Score
from lesson.runs.execute import execute
from lesson.runs.summary import read_metrics, summarize
from lesson.runs.trackers import TensorBoard
from lesson.settings.settings import Settings


def regression(settings: Settings, diverges: bool = False, **parts: Any) -> TrainingRun:
    """Build a run whose evaluator has no classes; the RMSE is 6, 5, 4, … over the evaluations."""
    run = build(settings, **parts)
    evaluator = run.evaluator
    count = iter(range(6, -100, -1))

    def begin_score(_: object) -> Known[Score]:
        if diverges:
            raise DivergedError("the loss is no longer finite")
        rmse = float(next(count))
        return Known(Score({"rmse": rmse, "mae": rmse / 2}, rmse**2))

    evaluator.metric, evaluator.is_cross_entropy, evaluator.num_classes = RMSE, False, None
    evaluator.begin_score = begin_score  # type: ignore[assignment,method-assign]
    return run


def test_a_run_writes_its_metrics_under_their_names(tmp_path: Path) -> None:
    """Five evaluations and that of the final model, which replaces the one of the last line."""
    told: list[dict[str, Any]] = []
    asked = settings(rounds=5, eval_every_s=0.001, client_scores_every_s=0.001)
    summary = execute(asked, tmp_path / "run", progress=told.append, make=regression, **PARTS)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert (summary["metric"], summary["higher_is_better"]) == ("rmse", False)
    assert (summary["rmse"], summary["rmse_last10"], summary["metrics"], summary["loss"]) == (
        1.0,
        1.0,
        {"mae": 0.5},
        1.0,
    )
    assert "accuracy" not in summary
    assert "accuracy_last10" not in summary
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl", RMSE)
    assert [(line["rmse"], line["mae"], line["loss"]) for line in lines[:2]] == [(6.0, 3.0, 36.0), (5.0, 2.5, 25.0)]
    assert "client_loss" in lines[0]
    assert "client_accuracy" not in lines[0]
    assert told[0] == lines[0] | {"metric": "rmse", "higher_is_better": False}
    # Means of three consecutive evaluations are 5, 4 and 3 up to the fourth line; the last line has 1 instead of 2.
    assert summary["time_to_s"] == {"4": lines[3]["time_s"], "2": None}
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert "class_accuracy" not in clients
    assert "accuracy" not in clients["clients"]
    run = load(tmp_path / "run")
    assert isinstance(run, Run)
    assert run.metric == RMSE
    assert run.to_frame()["rmse"].tolist() == [6.0, 5.0, 4.0, 3.0, 1.0]
    assert run.to_frame()["mae"].tolist()[-1] == 0.5
    assert list(run.curve) == ["round", "time_s", "rmse", "loss", "uploads", "energy_j"]
    assert "rmse 1.000 after 5 rounds" in repr(run)
    assert list(run.clients) == ["round", "time_s", "global_loss"]
    assert main(["report", str(tmp_path / "run")]) == 0


def test_the_engine_learns_the_metric_of_a_run_that_diverged(tmp_path: Path) -> None:
    """Its folder has no summary, and it may have no evaluation."""
    asked = settings(rounds=5, eval_every_s=0.001)

    def diverging(settings: Settings, **parts: Any) -> TrainingRun:
        return regression(settings, diverges=True, **parts)

    event = execute_trial(tmp_path / "lost", asked, progress=None, make=diverging, **PARTS)
    assert event["kind"] == "DivergedError"
    assert Metric.of(event) == RMSE
    run = Run.load_diverged(tmp_path / "lost", event["error"], Metric.of(event))
    assert math.isnan(run.summary["rmse"])
    assert run.summary["time_to_s"] == {"4": None, "2": None}
    done = execute_trial(tmp_path / "done", asked, progress=None, make=regression, **PARTS)
    assert done["done"]
    assert done["rmse"] == 1.0
    assert done["metric"] == "rmse"


@needs_tensorboard
def test_tensorboard_shows_the_metrics_of_the_task(tmp_path: Path) -> None:
    asked = settings(rounds=3, eval_every_s=0.001)
    execute(asked, tmp_path / "run", trackers=[TensorBoard()], make=regression, **PARTS)
    tags = {tag.partition("/")[0] for tag in read_scalars(tmp_path / "run")}
    assert tags == {"rmse", "mae", "loss", "uploads", "bytes_up", "bytes_down", "energy_j", "staleness"}


def test_the_names_of_classes_are_kept(tmp_path: Path) -> None:
    def named(settings: Settings, **parts: Any) -> TrainingRun:
        run = build(settings, **parts)
        run.evaluator.class_names = ("top", "bottom", "middle")
        return run

    execute(settings(rounds=2), tmp_path / "run", make=named, **PARTS)
    assert json.loads((tmp_path / "run" / "clients.json").read_text())["class_names"] == ["top", "bottom", "middle"]
    assert main(["report", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("num_classes", "loss", "said"),
    [
        (10, 24.0, "24, is far above 2.3, that of guessing among ten classes"),
        (10, 23.0, ""),
        (100, 24.0, ""),
        (100, 47.0, "47, is far above 4.6, that of guessing among 100 classes"),
        (None, 1e9, ""),
    ],
)
def test_a_loss_far_above_that_of_guessing_is_noted(
    tmp_path: Path, num_classes: int | None, loss: float, said: str
) -> None:
    """Ten times ln(classes): 23.03 for ten and 46.05 for a hundred; other losses have no scale."""
    summary = summarize(Settings(), tmp_path / "none", R2, {"r2": 0.5}, loss, num_classes=num_classes)
    told = [note for note in summary["notes"] if "final loss" in note]
    assert len(told) == bool(said)
    assert said in "".join(told)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("summary.json", {"metric": "loss"}, r"metric: a metric must not be called 'loss'"),
        ("summary.json", {"metric": "../../x"}, r"metric: the name of a metric must start with a letter"),
        ("summary.json", {"metric": 5}, r"\(metric: "),
        ("summary.json", {"metric": "mape"}, r"\(mape is missing\); remove the folder"),
        ("summary.json", {"higher_is_better": "no"}, r"\(higher_is_better: "),
        ("summary.json", {"rmse": None}, r"\(rmse is missing\)"),
        ("summary.json", {"rmse": "x"}, r"\(rmse must be a finite number, got 'x'\)"),
        ("summary.json", {"rmse": True}, r"\(rmse must be a finite number, got True\)"),
        ("summary.json", {"rmse": 10**400}, r"\(rmse must be a finite number, got 10000"),
        ("summary.json", {"rmse_last10": -1e308}, r"\(rmse_last10 must be a finite number, got -1e\+308\)"),
        ("summary.json", {"metrics": {"mae": "x"}}, r"\(metrics.mae: "),
        ("summary.json", {"metrics": {"a b": 1.0}}, r"the name of a metric must start"),
        ("summary.json", {"metrics": {f"m{place}": 1.0 for place in range(101)}}, r"\(metrics: .*at most 100"),
        ("summary.json", {"time_to_s": {"x": 1.0}}, r"\(time_to_s must have numbers as keys, got 'x'\)"),
        ("summary.json", {"time_to_s": {"nan": 1.0}}, r"\(time_to_s must have numbers as keys, got 'nan'\)"),
        ("summary.json", {"time_to_s": {"1_0": 1.0}}, r"\(time_to_s must have numbers as keys, got '1_0'\)"),
        ("summary.json", {"time_to_s": {f"{place}": None for place in range(101)}}, r"\(time_to_s: .*at most 100"),
        ("metrics.jsonl", {"rmse": "x"}, r"line 3 is damaged \(rmse must be a finite number, got 'x'\)"),
        ("metrics.jsonl", {"rmse": None}, r"line 3 is damaged \(rmse must be a finite number, got None\)"),
        ("clients.json", {"class_accuracy": [0.5]}, r"class_accuracy and clients.accuracy must both be given"),
    ],
)
def test_files_with_impossible_metrics_are_rejected(
    tmp_path: Path, name: str, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    make_run_of(folder, RMSE, [6, 5, 4, 3, 2, 1])
    lines = (folder / name).read_text().splitlines()
    place = 2 if name == "metrics.jsonl" else 0
    lines[place] = json.dumps(json.loads(lines[place]) | change)
    (folder / name).write_text("\n".join(lines) + "\n")
    assert main(["report", str(folder)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    with pytest.raises(InputError, match=said):
        raise InputError(told)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a"], "class_names must have 10 values, as many as class_accuracy, got 1"),
        (["a" * 201] * 10, r"class_names.0: .*at most 200"),
        ([5] * 10, r"class_names.0: "),
    ],
)
def test_names_of_classes_that_do_not_fit_are_rejected(tmp_path: Path, names: list[Any], said: str) -> None:
    make_run(tmp_path / "run")
    path = tmp_path / "run" / "clients.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_names": names}))
    with pytest.raises(InputError, match=said):
        Run.load(tmp_path / "run").read_clients()


def test_accuracy_may_have_other_targets_and_further_metrics(tmp_path: Path) -> None:
    own = Metric("accuracy", targets=(0.25, 0.5))
    summary = summarize(Settings(), tmp_path / "none", own, {"accuracy": 0.5, "top5": 0.9}, 0.1)
    assert (summary["metric"], summary["accuracy"], summary["metrics"]) == ("accuracy", 0.5, {"top5": 0.9})
    assert summary["time_to_s"] == {"0.25": None, "0.5": None}
    assert Metric.of(summary) == own
