"""Studies of tasks with their own metrics: tables, ranking, times to targets, archives and tuned comparisons."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.run_folders import R2, RMSE, make_run, make_run_of
from helpers.tuned import FILE, everything, small
from lesson import InputError
from lesson.cli import main
from lesson.experiments.archive import read_archive, write_archive
from lesson.experiments.loading import load_study
from lesson.experiments.measures import to_target, value_by
from lesson.experiments.naming import run_name
from lesson.experiments.run import Archived, Run, summary_of
from lesson.experiments.study import Study, write_table
from lesson.learn.metric import Metric
from lesson.report.tuned.write import write_tuned
from lesson.settings.settings import Settings

FALLING = np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])


def make_comparison_of(out: Path, metric: Metric = RMSE, worse: float = 1.0) -> Study:
    """Write runs of two strategies with three seeds; the values of fedavg are higher by `worse`."""
    for name, more in (("fedavg", worse), ("lesson", 0.0)):
        for seed in range(3):
            values = (FALLING + more + 0.1 * seed).tolist()
            make_run_of(out / f"{name}-seed{seed}", metric, values, strategy={"name": name}, run={"seed": seed})
    return load_study([out])


def test_a_table_has_the_columns_of_the_metric(tmp_path: Path) -> None:
    """Means of three of lesson: 5, 4, 3, 2 at 300 to 600 s for seed 0, and 0.1 and 0.2 more for the others."""
    study = make_comparison_of(tmp_path / "out")
    assert study.metric == RMSE
    table = study.table()
    assert list(table.columns[:5]) == ["seeds", "rmse_last10", "rmse_last10_ci95", "rmse_last10_min", "rmse_last10_max"]
    assert table["rmse_last10"].to_dict() == pytest.approx({"fedavg": 2.1, "lesson": 1.1})
    assert (table.loc["lesson", "time_to_4_seeds"], table.loc["lesson", "time_to_2_seeds"]) == (3, 1)
    assert table.loc["lesson", "time_to_4"] == pytest.approx((400 + 500 + 500) / 3)
    assert not any(name.startswith(("accuracy", "time_to_0")) for name in table)
    assert study.to_frame()["mae"].tolist() == [0.5] * 6, "further metrics are columns, too"
    assert "metrics" not in study.to_frame()
    assert list(study.curves())[:5] == ["strategy", "seed", "round", "time_s", "rmse"]
    write_table(study, tmp_path / "table.json")
    assert json.loads((tmp_path / "table.json").read_text())["lesson"]["rmse_last10"] == pytest.approx(1.1)


def test_runs_with_different_metrics_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They can be listed and filtered, as in a sweep over tasks."""
    make_run(tmp_path / "a-seed0", data={"dataset": "mnist"})
    make_run_of(tmp_path / "b-seed0", RMSE, FALLING.tolist(), data={"dataset": "cifar10"})
    study = load_study([tmp_path])
    assert len(study.to_frame()) == 2
    for use in (study.means, study.curves, study.plot, study._repr_html_):
        with pytest.raises(InputError, match=r"same metric to be compared, got accuracy \(higher.*\) and rmse \(lower"):
            use()
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert study.filter(dataset="cifar10").metric == RMSE
    other = replace(study.runs[1], summary=study.runs[1].summary | {"higher_is_better": True})
    with pytest.raises(InputError, match="same metric"):
        _ = Study([study.runs[1], other]).metric


def test_only_targets_that_all_runs_have_are_compared(tmp_path: Path) -> None:
    make_run_of(tmp_path / "a-seed0", RMSE, FALLING.tolist())
    make_run_of(tmp_path / "b-seed1", Metric("rmse", False, (3.0, 4.0)), FALLING.tolist(), run={"seed": 1})
    assert load_study([tmp_path]).metric.targets == (4.0,)


def test_measures_of_a_run_follow_its_metric(tmp_path: Path) -> None:
    make_run_of(tmp_path / "run", RMSE, FALLING.tolist())
    run = Run.load(tmp_path / "run")
    assert value_by(run, 500.0) == 3.0
    assert to_target(run, 4.0) == 400.0
    assert to_target(run, 4.0, "uploads") == 16.0
    assert math.isinf(to_target(run, 1.0))
    assert math.isnan(value_by(run, 50.0)), "there is no RMSE of guessing"


def test_an_archive_keeps_the_metric_and_unknown_values(tmp_path: Path) -> None:
    make_run_of(tmp_path / "done", R2, [-1.5, 0.25, 0.123456789, 0.5, 0.75, 0.8])
    make_run_of(tmp_path / "lost", R2, [-1.5, 0.25, 0.5])
    (tmp_path / "lost" / "summary.json").unlink()
    runs = [Run.load(tmp_path / "done"), Run.load_diverged(tmp_path / "lost", "no longer finite", R2)]
    assert math.isnan(runs[1].summary["r2"])
    write_archive(tmp_path / "runs.jsonl.gz", runs)
    done, lost = read_archive(tmp_path / "runs.jsonl.gz")
    assert done.metric == lost.metric == R2
    assert done.curve["r2"].tolist() == [-1.5, 0.25, 0.123457, 0.5, 0.75, 0.8]
    assert done.curve.equals(runs[0].curve)
    assert done.summary == {key: one for key, one in runs[0].summary.items() if key != "wall_s"}
    assert math.isnan(lost.summary["r2"])
    assert math.isnan(lost.summary["r2_last10"])
    assert "r2 – after" in repr(lost)
    rerun = tmp_path / "again.gz"
    write_archive(rerun, [done, lost])
    assert rerun.read_bytes() == (tmp_path / "runs.jsonl.gz").read_bytes()


RULES = FILE.replace("targets = [0.5, 0.7]", 'targets = [4.0, 2.0]\nmetric = "rmse"\nhigher_is_better = false')


def made_of_rmse(values: Callable[[Settings], list[float]]) -> Callable[[Settings, list[float]], Run]:
    def made(settings: Settings, _: list[float]) -> Run:
        rmse = values(settings)
        count = np.arange(1, len(rmse) + 1)
        scores: dict[str, Any] = {"round": 5 * count, "time_s": 100.0 * count, "rmse": np.array(rmse, dtype=float)}
        curve = pd.DataFrame(scores | {"uploads": 10 * count, "energy_j": 2500.0 * count})
        diverged = "" if rmse else "no longer finite"
        archived = Archived(run_name(settings), {"torch": "2"}, curve, pd.DataFrame())
        return Run(None, settings, summary_of(settings, curve, diverged, RMSE), diverged, archived=archived)

    return made


def test_a_tuned_comparison_chooses_the_lowest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LESSON is best at a deadline of 10 s, FedAvg with a rate of 0.1; a fraction of a half diverges."""

    def values(settings: Settings) -> list[float]:
        length = int(settings.run.time_budget_s / 100)
        if settings.strategy.name == "fedavg":
            if settings.strategy.options.get("fraction") == 0.5:
                return []
            return [5.0 if settings.training.learning_rate == 0.1 else 9.0] * length
        return [settings.strategy.deadline_s / 10 + 0.5] * length

    monkeypatch.setattr("helpers.tuned.made", made_of_rmse(values))
    design = small(tmp_path, RULES)
    done = everything(design, lambda _: [])
    study = design.study(done, {})
    chosen = {case.entry.name: case.chosen(done) for case in design.cases}
    assert chosen["fedavg"] == {"training.learning_rate": 0.1, "strategy.fraction": 1.0}
    assert chosen["lesson"] == {"strategy.deadline_s": 10.0}
    table = study.table().set_index(["entry", "beta"])
    row = table.loc[("lesson", 0.1)]
    assert (row["rmse_at_400"], row["rmse_at_800"], row["time_to_2"]) == (1.5, 1.5, 300.0)
    assert row["rmse_gain"] == 3.5, "the reference has 5.0: lower is better, so the gain is positive"
    assert math.isnan(table.loc[("fedavg", 0.1), "time_to_4"])
    assert set(table.loc["lesson τ=20", "reference"]) == {"lesson τ=10"}
    readme = write_tuned(study, tmp_path / "out").read_text()
    assert "the rmse gain is the final rmse\nof the reference minus its own." in readme
    assert "| entry | settings | rmse at 400 s | rmse at 800 s | time to rmse 4 (s) | time to rmse 2 (s) |" in readme
    assert "accuracy" not in readme.lower()
    assert (tmp_path / "out" / "rmse-strategies.png").exists()
    settings = (tmp_path / "out" / "settings.md").read_text()
    assert "| **1.500** | **1.500** |" in settings
    assert "A run that diverged counts as the worst." in settings


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[4.0, 2.0]", "[2.0, 4.0]"), r"targets must decrease, got \[2.0, 4.0\]"),
        (('"rmse"', '"loss"'), "must not be called 'loss'"),
        (("higher_is_better = false", "higher_is_better = 0"), "higher_is_better must be true or false"),
        (("targets = [4.0, 2.0]", "targets = [0.5, nan]"), "targets must be"),
        (('metric = "rmse"\nhigher_is_better = false', ""), "targets must"),
    ],
)
def test_rules_for_another_metric(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small(tmp_path, RULES.replace(*change))


def test_rules_must_name_the_metric_of_the_task(tmp_path: Path) -> None:
    design = small(tmp_path, RULES)
    with pytest.raises(InputError, match=r"the metric of the task is accuracy .*, not rmse; set metric"):
        everything(design, lambda settings: [0.5] * int(settings.run.time_budget_s / 100))
