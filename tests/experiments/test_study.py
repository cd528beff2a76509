"""Studies: filters, frames and tables, of runs in folders and of archived ones, for any metric."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import RMSE, make_comparison, make_comparison_of, make_run, make_run_of
from helpers.tuned import made
from lesson import InputError, Settings, Study, load
from lesson.cli import main
from lesson.experiments.archive import write_archive
from lesson.experiments.loading import load_study
from lesson.experiments.measures import to_target, value_by
from lesson.experiments.study import write_table
from lesson.learn.metric import Metric

FALLING = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


@pytest.fixture(scope="module", params=["folders", "archive"])
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """LESSON and FedAvg from three seeds, whose accuracies differ by 0.01."""
    out = tmp_path_factory.mktemp("study")
    make_comparison(out / "folders")
    if request.param == "archive":
        (out / "archive").mkdir()
        write_archive(out / "archive" / "runs.jsonl.gz", load_study([out / "folders"]).runs)
    found = load(out / request.param)
    assert isinstance(found, Study)
    return found


def test_frame_has_one_row_per_run(study: Study) -> None:
    frame = study.to_frame()
    assert frame["strategy"].tolist() == ["fedavg"] * 3 + ["lesson"] * 3
    assert frame["seed"].tolist() == [0, 1, 2] * 2
    assert frame["accuracy"].tolist() == pytest.approx([0.9, 0.91, 0.92] * 2)
    assert frame["time_to_0.6"].tolist() == [400.0, 400.0, 400.0] * 2  # (0.5 + 0.6 + 0.7) / 3
    assert frame["time_to_0.95"].isna().all()


def test_curves_have_one_row_per_evaluation(study: Study) -> None:
    curves = study.curves()
    columns = ["round", "time_s", "accuracy", "loss", "uploads", "bytes_up", "energy_j"]
    assert list(curves) == ["strategy", "seed", *columns]
    curve = curves[(curves["strategy"] == "lesson") & (curves["seed"] == 1)]
    assert curve["accuracy"].tolist() == pytest.approx([0.31, 0.51, 0.61, 0.71, 0.81, 0.91])
    assert curve["uploads"].tolist() == [4, 8, 12, 16, 20, 24]
    assert curve["energy_j"].iloc[-1] == 300.0


def test_table_has_means_extremes_and_intervals(study: Study, tmp_path: Path) -> None:
    """0.9, 0.91, 0.92: half the interval is 4.3027 · 0.01 / √3 = 0.02484."""
    table = study.table()
    assert list(table.index) == ["fedavg", "lesson"]
    row = table.loc["lesson"]
    assert (row["accuracy_last10"], row["accuracy_last10_ci95"]) == pytest.approx((0.91, 0.02484), rel=1e-3)
    assert (row["accuracy_last10_min"], row["accuracy_last10_max"]) == pytest.approx((0.9, 0.92))
    assert (row["uploads"], row["energy_j"], row["time_to_0.6_seeds"], row["time_to_0.95_seeds"]) == (24, 300.0, 3, 0)
    assert math.isnan(row["time_to_0.95"])
    write_table(replace(study, path=tmp_path))
    written = json.loads((tmp_path / "table.json").read_text(), parse_constant=pytest.fail)
    assert (list(written), written["lesson"]["time_to_0.95"]) == (["fedavg", "lesson"], None)


@pytest.fixture(scope="module")
def varied() -> Study:
    """β = 0.1 and 1 from two seeds; LESSON drops late updates in one run, FedAvg does not know the option."""
    parts: list[dict[str, Any]] = [
        {"data": {"beta": beta}, "strategy": strategy, "run": {"seed": seed, "rounds": 50}}
        for strategy in ({"name": "lesson", "late": "drop"}, {"name": "lesson"}, {"name": "fedavg"})
        for beta in (0.1, 1.0)
        for seed in (0, 1)
    ]
    runs = [made(Settings(**one, fleet={"cpu_hz": (1e9, 2e9)}), [0.5] * 4) for one in parts]
    return Study(runs, ("strategy.name", "data.beta", "strategy.late"), {"x": "it broke"})


@pytest.mark.parametrize(
    ("conditions", "num_runs"),
    [
        ({}, 12),
        ({"strategy": "lesson", "beta": 0.1, "seed": 1}, 2),
        ({"data.beta": [0.1, 0.5]}, 6),
        ({"seed": range(1, 5)}, 6),
        ({"beta": lambda beta: beta > 0.5}, 6),
        ({"late": "drop"}, 4),
        ({"strategy.late": None}, 8),
        ({"cpu_hz": (1e9, 2e9)}, 12),
        ({"cpu_hz": [[1e9, 2e9], [1e9, 3e9]]}, 12),
        ({"strategy": "tifl"}, 0),
    ],
)
def test_filters(conditions: dict[str, Any], num_runs: int, varied: Study) -> None:
    found = varied.filter(**conditions)
    assert len(found.runs) == num_runs
    assert (found.by, found.failures) == (varied.by, {})
    assert len(found.table()) == len(found.groups())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("bet", "'beta'"), ("learning_rate", "training"), ("date.beta", "'data'"), ("data.bet", "'beta'")],
)
def test_filter_by_an_unknown_name_is_an_error(name: str, reason: str, varied: Study) -> None:
    with pytest.raises(InputError, match=reason):
        varied.filter(**{name: 1})


def test_study_without_runs_is_empty() -> None:
    empty = Study([])
    assert len(empty.to_frame()) == len(empty.curves()) == len(empty.table()) == 0


def test_table_has_the_columns_of_the_metric(tmp_path: Path) -> None:
    """Means of three of lesson: 5, 4, 3, 2 at 300 to 600 s for seed 0, and 0.1 and 0.2 more for the others."""
    make_comparison_of(tmp_path, RMSE, FALLING, worse=1.0, step=0.1)
    study = load_study([tmp_path])
    assert study.metric == RMSE
    table = study.table()
    assert list(table.columns[:5]) == ["seeds", "rmse_last10", "rmse_last10_ci95", "rmse_last10_min", "rmse_last10_max"]
    assert table["rmse_last10"].to_dict() == pytest.approx({"fedavg": 2.1, "lesson": 1.1})
    assert (table.loc["lesson", "time_to_4_seeds"], table.loc["lesson", "time_to_2_seeds"]) == (3, 1)
    assert table.loc["lesson", "time_to_4"] == pytest.approx((400 + 500 + 500) / 3)
    assert not any(name.startswith(("accuracy", "time_to_0")) for name in table)
    assert study.to_frame()["mae"].tolist() == [0.5] * 6, "further metrics are columns, too"
    run = study.filter(strategy="lesson", seed=0).runs[0]
    assert (value_by(run, 500.0), to_target(run, 4.0), to_target(run, 4.0, "uploads")) == (3.0, 400.0, 16.0)
    assert math.isinf(to_target(run, 1.0))
    assert math.isnan(value_by(run, 50.0)), "there is no RMSE of guessing"


def test_runs_with_different_metrics_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They can be listed and filtered, as in a sweep over tasks."""
    make_run(tmp_path / "a-seed0", data={"dataset": "mnist"})
    make_run_of(tmp_path / "b-seed0", RMSE, FALLING, data={"dataset": "cifar10"})
    study = load_study([tmp_path])
    assert len(study.to_frame()) == 2
    for use in (study.table, study.curves, study.plot, study._repr_html_):
        with pytest.raises(InputError, match="same metric"):
            use()
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert study.filter(dataset="cifar10").metric == RMSE


def test_only_common_targets_are_compared(tmp_path: Path) -> None:
    make_run_of(tmp_path / "a-seed0", RMSE, FALLING)
    make_run_of(tmp_path / "b-seed1", Metric("rmse", False, (3.0, 4.0)), FALLING, run={"seed": 1})
    assert load_study([tmp_path]).metric.targets == (4.0,)
