"""Reports of tasks with their own metrics: text, notebook cards, figures and the data of the page."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.run_folders import R2, RMSE, make_run, make_run_of
from lesson.cli import main
from lesson.experiments.loading import load_study
from lesson.experiments.run import Run
from lesson.experiments.study import Study
from lesson.learn.metric import Metric
from lesson.report.page.study_data import study_data
from lesson.report.progress import RunProgress, StudyProgress
from lesson.report.study.compare_text import comparison_table
from lesson.report.study.figures import draw_figures
from lesson.report.study.metric_figure import MAX_LINES, draw_metric
from lesson.report.study.notebook import run_card, study_card
from lesson.report.study.sweep_text import sweep_table
from lesson.settings.sections import RunSettings

FALLING = (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
RISING = (-2.0, -1.0, 0.0, 0.4, 0.6, 0.8)


def make_study(out: Path, metric: Metric = RMSE) -> Study:
    """Write runs of two strategies with three seeds; the errors of fedavg are higher by 1, its R² is lower by 1."""
    values, worse = (FALLING, 1.0) if metric is RMSE else (RISING, -1.0)
    for name, more in (("fedavg", worse), ("lesson", 0.0)):
        for seed in range(3):
            own = [value + more + 0.01 * seed for value in values]
            make_run_of(out / f"{name}-seed{seed}", metric, own, strategy={"name": name}, run={"seed": seed})
    return load_study([out])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("rmse"))


def text_of(table: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_tables_show_plain_numbers(study: Study) -> None:
    """Seeds differ by 0.01, so half the interval is 4.303 · 0.01 / √3 = 0.02484, with the decimals of the mean."""
    told = text_of(comparison_table(study.table(), study.metric, "title"))
    [row] = [line.split("  ") for line in told.splitlines() if "at the end" in line]
    assert [part.strip() for part in row if part.strip()] == ["rmse at the end", "2.010 ± 0.025", "1.010 ± 0.025"]
    assert "time to rmse 4 (s)" in told
    assert "accuracy" not in told
    assert "%" not in told.replace("95 %", "")
    swept = text_of(sweep_table(study, "title"))
    assert "1.010 ± 0.025" in swept
    assert "accuracy" not in swept


def test_values_may_be_negative(tmp_path: Path) -> None:
    """The interval of R² around -0.19 is not cut off at 0."""
    told = text_of(comparison_table(make_study(tmp_path, R2).table(), R2, "title"))
    assert "-0.1900 ± 0.0248" in told
    assert "0.8100 ± 0.0248" in told


def test_notebook_cards(study: Study) -> None:
    card = run_card(study.runs[3])
    assert "final rmse" in card
    assert "1.000; mean of the last evaluations 1.000" in card
    assert "rmse 4 at 400 s, rmse 2 at 600 s" in card
    assert "final mae" in card
    assert "1.010 ± 0.025" in study_card(study)
    assert "accuracy" not in card + study_card(study)


def test_figures_are_named_after_the_metric(study: Study, tmp_path: Path) -> None:
    figures, notes = draw_figures(study, 3.5)
    assert sorted(figures) == [
        "clients",
        "latency",
        "rmse_energy",
        "rmse_round",
        "rmse_time",
        "rmse_uploads",
        "time_to_rmse",
    ]
    assert not any("target" in note for note in notes)
    axes = figures["rmse_time"].axes[0]
    assert axes.get_ylabel() == "test rmse"
    fedavg, lesson = axes.lines
    assert lesson.get_ydata().tolist() == pytest.approx([value + 0.01 for value in FALLING])
    assert axes.get_ylim()[1] > 7.0, "values above 1 are not cut off, nor are their bands"
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(7.01 + 0.0248, abs=1e-3)
    assert fedavg.get_ydata()[0] == pytest.approx(7.01)
    plot = study.plot().axes[0]
    assert plot.get_ylim()[1] > 7.0
    reached = figures["time_to_rmse"].axes[0]
    assert [label.get_text() for label in reached.get_yticklabels()] == ["rmse 4", "rmse 2"]
    assert main(["report", str(study.runs[0].path), "--figures", str(tmp_path), "--format", "png"]) == 0
    assert (tmp_path / "rmse_time.png").exists()


def test_a_task_without_targets_has_no_figure_of_times(tmp_path: Path) -> None:
    make_run_of(tmp_path / "run", Metric("r2", targets=()), RISING)
    study = Study([Run.load(tmp_path / "run")])
    figures, notes = draw_figures(study, 3.5)
    assert not any(name.startswith("time_to") for name in figures)
    assert not any("target" in note for note in notes)
    assert study_data(study, "")["costs"] == [[]]
    assert "targets reached" not in run_card(study.runs[0])


def test_the_lowest_lines_are_drawn(tmp_path: Path) -> None:
    for place in range(MAX_LINES + 2):
        values = [value + place for value in FALLING]
        make_run_of(tmp_path / f"run{place}", RMSE, values, data={"beta": 1.0 + place})
    axes = draw_metric(load_study([tmp_path]), "time").axes[0]
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == [1.0 + place for place in range(MAX_LINES)]
    assert f"the best {MAX_LINES} of {MAX_LINES + 2}" in axes.get_title()


def test_the_page_ranks_by_the_lowest(study: Study) -> None:
    data = study_data(study, "")
    assert data["metric"] == {"name": "rmse", "higher_is_better": False}
    assert data["verdict"]["columns"][:4] == ["seeds", "rmse", "to rmse 4 (s)", "to rmse 2 (s)"]
    assert data["verdict"]["rows"][1][:3] == ["lesson", "3", "1.010 ± 0.025"]
    best, *costs = data["verdict"]["cards"]
    assert best == {
        "label": "Lowest rmse",
        "value": "1.010 ± 0.025",
        "who": "lesson",
        "note": "fedavg: 2.010 ± 0.025",
    }
    assert [(card["label"], card["value"]) for card in costs] == [
        ("Shortest time to rmse 4", "467 s"),
        ("Least energy to rmse 4", "0.2 kJ"),
        ("Fewest uploads to rmse 4", "19"),
    ]
    assert [row["target"] for row in data["costs"][0]] == [4.0, 2.0]
    assert data["curves"][1]["time_s"]["mean"] == pytest.approx([value + 0.01 for value in FALLING])
    assert data["curves"][0]["time_s"]["high"][0] == pytest.approx(7.01 + 0.0248, abs=1e-4)
    assert all(one["classes"] == [] for one in data["fairness"])


def test_a_run_that_diverged_is_ranked_last(study: Study) -> None:
    """It has no value, so neither has the mean of its strategy."""
    lost = study.runs[3]
    summary = lost.summary | {"rmse": math.nan, "rmse_last10": math.nan, "time_to_s": {"4": None, "2": None}}
    runs = [*study.runs[:3], replace(lost, summary=summary, diverged="no longer finite"), *study.runs[4:]]
    data = study_data(Study(runs), "")
    assert data["verdict"]["cards"][0]["value"] == "2.010 ± 0.025"
    assert data["verdict"]["cards"][0]["who"].startswith("fedavg")
    assert data["verdict"]["cards"][0]["note"] == "lesson: –"


def test_classes_have_their_names(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    path = tmp_path / "run" / "clients.json"
    names = [f"class {place}" for place in range(10)]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class_names": names}))
    [fairness] = study_data(Study([Run.load(tmp_path / "run")]), "")["fairness"]
    assert (fairness["names"], fairness["classes"]) == (names, [0.5] * 10)


def test_progress_names_the_metric(capsys: pytest.CaptureFixture[str]) -> None:
    limits = RunSettings(rounds=10)
    fields = {"metric": "rmse", "higher_is_better": False}
    line = {"round": 3, "time_s": 60.0} | fields
    progress = StudyProgress()
    progress.report("lesson-seed0", {"limits": limits})
    progress.report("lesson-seed0", line | {"rmse": 12.3456})
    progress.report("lesson-seed0", line | {"round": 4})
    told = text_of(progress.render())
    assert "12.35" in told
    assert "rmse" in told
    assert "accuracy" not in told
    progress.report("lesson-seed0", {"done": True, "rmse": 12.3456, "time_s": 100.0} | fields)
    assert "lesson seed 0: rmse 12.35 after 100 s (1 of 1 runs)" in capsys.readouterr().err
    with RunProgress(limits) as shown:
        shown.report(line)
        assert "rmse –" in shown._progress.tasks[0].description
        shown.report(line | {"rmse": 12.3456})
        assert "rmse 12.35" in shown._progress.tasks[0].description


def test_the_command_names_the_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that has finished is read, not executed again."""
    make_run_of(tmp_path / "run", RMSE, FALLING)
    assert main(["run", "--scenario", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "lesson on mnist: rmse 1.000 (1.000 averaged over the last evaluations) after 6 rounds" in told


def test_the_page_says_that_clients_hold_unequal_numbers(tmp_path: Path) -> None:
    make_run_of(tmp_path / "one", RMSE, FALLING, data={"split": "quantity-skew", "beta": 0.5})
    assert "that hold different amounts of IID data (β = 0.5)" in study_data(load_study([tmp_path]), "")["what"]
