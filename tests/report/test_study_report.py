"""Figures, tables and progress of studies."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from helpers.run_folders import R2, RMSE, make_comparison, make_comparison_of, make_run, make_run_of, make_sweep
from lesson import InputError
from lesson.cli import main
from lesson.core.errors import RunStoppedError
from lesson.experiments.loading import load_study
from lesson.experiments.measures import Estimate
from lesson.experiments.study import Study
from lesson.learn.metric import ACCURACY
from lesson.report.figures import MAX_LINES, draw_figures, draw_metric
from lesson.report.files import save_figures
from lesson.report.palette import line_looks
from lesson.report.progress import RunProgress, StudyProgress
from lesson.report.results import cell, printed_table, results_table, score_cell
from lesson.settings.sections import RunSettings
from lesson.strategies import STRATEGIES

NAMES = ["accuracy_energy", "accuracy_round", "accuracy_time", "accuracy_uploads", "clients", "latency"]
NAMES += ["time_to_accuracy"]
FALLING = (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
RISING = (-2.0, -1.0, 0.0, 0.4, 0.6, 0.8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    make_comparison(out)
    return out


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study([folder])


def text_of(table: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(table)
    return file.getvalue()


def test_looks_of_lines() -> None:
    names = [*STRATEGIES, "mine:Own"]
    looks = dict(zip(names, line_looks([(name,) for name in names]), strict=True))
    assert len(set(looks.values())) == len(names)
    assert line_looks([("tifl",), ("lesson",)]) == [looks["tifl"], looks["lesson"]]
    grid = line_looks([(deadline_s, beta) for deadline_s in (10, 20, 30) for beta in (0.1, 1.0)])
    assert [len({look[place] for look in grid}) for place in (0, 1)] == [3, 2], "color: deadline, style: beta"
    assert grid[0][0] == grid[1][0] != grid[2][0]
    many = [(name, deadline_s, beta) for name in ("lesson", "fedcs") for deadline_s in (1, 2, 3) for beta in (1, 2)]
    assert len(set(line_looks(many))) == len(many)


def test_plot_is_the_mean_with_a_band(study: Study) -> None:
    """Seeds 0, 1, 2 differ by 0.01, 0.02: the mean is 0.01 above the first, at the times of evaluations."""
    axes = study.plot().axes[0]
    _, lesson = axes.lines
    assert lesson.get_xdata().tolist() == [100, 200, 300, 400, 500, 600]
    assert lesson.get_ydata().tolist() == pytest.approx([0.31, 0.51, 0.61, 0.71, 0.81, 0.91])
    assert len(axes.collections) == 2
    assert study.plot(by="round").axes[0].lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert study.runs[3].plot().axes[0].lines[0].get_ydata().tolist() == [0.3, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert len(study.plot(bands=False).axes[0].collections) == 0
    with pytest.raises(InputError, match="rounds"):
        study.plot(by="rounds")  # type: ignore[arg-type]


def test_panels_of_a_plot(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    study = load_study([tmp_path])
    figure = study.plot(facet="beta")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["β = 1", "β = 0.1"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 2
    with pytest.raises(InputError, match="gamma"):
        study.plot(facet="gamma")


def test_labels_may_contain_dollars(tmp_path: Path) -> None:
    for name in ("cheap", "$_{$ a month"):
        make_run(tmp_path / f"run{len(name)}", strategy={"name": f"own:{name}"})
    save_figures(draw_figures(load_study([tmp_path]), 3.5)[0], tmp_path / "figures", [".svg"])


@pytest.mark.slow
def test_study_without_runs_has_an_empty_plot() -> None:
    (axes,) = draw_metric(Study([]), "time", facet="strategy").axes
    assert not axes.lines


def test_plots_need_no_display_and_no_pyplot(folder: Path) -> None:
    code = (
        f"import sys, lesson; figure = lesson.load({str(folder)!r}).plot(); assert figure._repr_png_()[1:4] == b'PNG'; "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MPLBACKEND")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_notebooks_show_results_and_failures(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    study = load_study([tmp_path])
    assert "no &lt;reason&gt;" in study._repr_html_()
    assert "90.0" in study.runs[0]._repr_html_()


@pytest.mark.slow
def test_figures_have_the_requested_width_and_are_reproducible(folder: Path, tmp_path: Path) -> None:
    for out, formats in (("once", "pdf,svg,png"), ("again", "pdf")):
        flags = ["--figures", formats, "--width", "89mm", "--latex"]
        assert main(["report", str(folder), "--out", str(tmp_path / out), *flags]) == 0
    files = sorted(path.name for path in (tmp_path / "once").iterdir())
    figures = [f"{name}.{kind}" for name in NAMES for kind in ("pdf", "png", "svg")]
    assert files == sorted([*figures, "report.html", "table.tex"])
    for name in NAMES:
        path = tmp_path / "once" / name
        page, drawing = path.with_suffix(".pdf").read_bytes(), path.with_suffix(".svg").read_text()
        widths = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", page), re.search(r'<svg [^>]*width="([\d.]+)pt"', drawing)
        assert [float(width[1]) for width in widths if width] == pytest.approx([72 * 89 / 25.4] * 2, abs=0.01)
        assert imread(path.with_suffix(".png")).shape[1] == pytest.approx(300 * 89 / 25.4, abs=1)
        assert b"/Type3" not in page, "journals reject such fonts"
        assert (tmp_path / "again" / f"{name}.pdf").read_bytes() == page


def test_text_is_readable_and_inside_the_figure(study: Study, tmp_path: Path) -> None:
    make_sweep(tmp_path)
    for drawn in (study, load_study([tmp_path])):
        for name, figure in draw_figures(drawn, 3.5)[0].items():
            texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
            assert {text.get_fontsize() for text in texts} <= {7, 8}, name
            box = figure.get_tightbbox()
            assert min(box.x0, box.y0) > -0.02, name
            assert box.x1 < 3.52, name


def test_times_to_targets(tmp_path: Path) -> None:
    """Means of three from 300 s on: 0.47, 0.6, 0.7, 0.8, a hundredth more with each seed; 0.2 less of the slow."""
    make_comparison(tmp_path, ("lesson",))
    make_run(tmp_path / "slow", better=-0.2, strategy={"name": "fedavg"})
    figure = draw_figures(load_study([tmp_path]), 3.5)[0]["time_to_accuracy"]
    dots = {bar.get_label(): bar.lines[0].get_xdata().tolist() for bar in figure.axes[0].containers}
    assert dots["lesson"] == [400, 400, 500, 600]
    np.testing.assert_array_equal(dots["fedavg"], [500, 600, np.nan, np.nan])


def test_names_of_users_are_shown_as_they_are(tmp_path: Path) -> None:
    for name in ("_mine:_Strategy", "nowhere:A$_{B$"):
        make_run(tmp_path / name, strategy={"name": name})
    figures, _ = draw_figures(load_study([tmp_path]), 3.5)
    save_figures(figures, tmp_path, [".pdf"])
    names = [text.get_text().strip() for text in figures["time_to_accuracy"].legends[0].get_texts()]
    assert names == ["_mine:_Strategy", "nowhere:A$_{B$"]


def test_missing_figures_and_runs_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "poor", joules=None, better=-0.6)
    (tmp_path / "poor" / "clients.json").unlink()
    figures, notes = draw_figures(load_study([tmp_path / "poor"]), 3.5)
    assert sorted(figures) == NAMES[1:4]
    assert [word in note for word, note in zip(("targets", "clients.json"), notes, strict=True)] == [True, True]
    make_comparison(tmp_path / "study")
    (tmp_path / "study" / "lesson-seed1" / "summary.json").unlink()
    assert main(["report", str(tmp_path / "study")]) == 0
    assert "note: lesson-seed1 " in capsys.readouterr().out


def test_drawn_clients_come_from_the_run(tmp_path: Path) -> None:
    """Four clients of a hundred at τ = 20 s; the third is in tier 1 by promotion, the fourth unreachable."""
    make_run(tmp_path / "run", strategy={"ensure_first_tier": True})
    columns = {
        "number": [0, 7, 8, 99],
        "name": ["0", "7", "8", "99"],
        "accuracy": [0.9, 0.9, 0.9, None],
        "compute_s": [30.0, 40.0, 15.0, None],
        "upload_s": [11.0, 5.0, 5.0, None],
        "latency_s": [41.0, 45.0, 20.0, None],
        "x_km": [0.1, 0.2, 0.3, 0.4],
        "y_km": [0.0, 0.0, 0.5, -0.5],
    }
    rest = {"num_clients": 100, "class_accuracy": [0.9], "promoted": {"client": 8, "latency_s": 40.5}}
    (tmp_path / "run" / "clients.json").write_text(json.dumps(rest | {"clients": columns}))
    figures, notes = draw_figures(load_study([tmp_path / "run"]), 3.5)
    served, lost = figures["clients"].axes[0].collections[:2]
    assert np.asarray(served.get_offsets()).tolist() == [[0.1, 0.0], [0.2, 0.0], [0.3, 0.5]]
    assert np.asarray(lost.get_offsets()).tolist() == [[0.4, -0.5]]
    assert [text.get_text() for text in figures["clients"].legends[0].get_texts()] == ["tier 1 × 1", "tier 3 × 2"]
    lines = {str(line.get_label()): line.get_xdata() for line in figures["latency"].axes[0].lines}
    assert list(lines["latency (sum)"]) == [41.0, 45.0, 40.5]
    assert notes == []
    measured = columns | {"x_km": None, "y_km": None, "compute_s": [None] * 4, "upload_s": [None] * 4}
    (tmp_path / "run" / "clients.json").write_text(json.dumps(rest | {"clients": measured}))
    figures, _ = draw_figures(load_study([tmp_path / "run"]), 3.5)
    assert ("clients" in figures, "latency" in figures) == (False, True)


@pytest.mark.parametrize(("clients", "deadline_s"), [(1, 0.5), (7000, float("inf"))])
def test_unusual_fleets_are_drawn(clients: int, deadline_s: float, tmp_path: Path) -> None:
    make_run(tmp_path / "run", fleet={"num_clients": clients}, strategy={"deadline_s": deadline_s})
    assert {"clients", "latency"} <= set(draw_figures(load_study([tmp_path / "run"]), 3.5)[0])


def test_no_figure_is_written_if_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="taken"):
        save_figures({"a": Figure()}, tmp_path / "taken" / "in", [".pdf"])
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunStoppedError, match=r"b.pdf"):
        save_figures({"a": Figure(), "b": Figure()}, tmp_path / "out", [".pdf"])
    assert list((tmp_path / "out").iterdir()) == []


def of(*values: float) -> Estimate:
    return Estimate.of(np.array(values))


def test_cells_of_tables() -> None:
    """Intervals stay within what is possible: of 1, 2, 3 MB half is 2.48; of 0.7, 0.8, 0.99 it is 0.366 around 0.83."""
    assert score_cell(of(0.80, 0.81, 0.82), ACCURACY) == "81.0 ± 2.5"
    assert score_cell(of(0.70, 0.80, 0.99), ACCURACY) == "83.0 (46.4–100.0)"
    assert cell(of(1e6, 2e6, 3e6), 1e-6, 1) == "2.0 (0.0–4.5)"
    assert score_cell(of(0.93, 0.91), ACCURACY) == "91.0 / 93.0"
    assert score_cell(of(0.93), ACCURACY) == "93.0"
    assert cell(of(100.0, np.nan, 300.0)) == "2 of 3 seeds"
    assert cell(of(np.nan)) == "–"


def test_results_have_columns_for_what_happened(tmp_path: Path) -> None:
    """Means of three from 300 s on: 0.47, 0.6, 0.7, 0.8, a hundredth more with each seed."""
    make_comparison(tmp_path, num_seeds=2)
    for seed in range(2):
        path = tmp_path / f"fedavg-seed{seed}" / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"misses": seed}))
    table = results_table(load_study([tmp_path]))
    targets = [f"time to {target}% (s)" for target in (50, 60, 70, 80)]
    middle = ["accuracy at the end (%)", *targets, "uploads", "uploaded (MB)", "energy (kJ)"]
    assert table.headings == ["strategy", "seeds", *middle, "late updates"]
    rows = {cells[0]: cells[1:] for cells in table.cells}
    assert rows["lesson"][2:4] == ["400 / 400", "400 / 400"]
    assert rows["fedavg"][-1] == "0 / 1"
    assert table.to_data()["rows"][0][7][1] == 24, "six rounds with four uploads"


def test_a_comparison_of_many_strategies_is_printed_with_a_row_for_each(tmp_path: Path) -> None:
    make_comparison(tmp_path, num_seeds=1)
    few = load_study([tmp_path])
    assert printed_table(few).headings == ["strategy", *(cells[0] for cells in results_table(few).cells)]
    for place in range(15):
        make_run(tmp_path / "many" / f"own{place}", strategy={"name": f"own:S{place}"})
    many = load_study([tmp_path / "many"])
    assert printed_table(many).headings == results_table(many).headings


@pytest.mark.parametrize(
    ("metric", "values", "worse", "cells"),
    [
        (RMSE, FALLING, 1.0, ("2.010 ± 0.025", "1.010 ± 0.025")),
        (R2, RISING, -1.0, ("-0.1900 ± 0.0248", "0.8100 ± 0.0248")),
    ],
)
def test_tables_and_figures_of_other_metrics(
    tmp_path: Path, metric: Any, values: tuple[float, ...], worse: float, cells: tuple[str, str]
) -> None:
    """Seeds differ by 0.01, so half the interval is 4.303 · 0.01 / √3 = 0.02484."""
    make_comparison_of(tmp_path, metric, values, worse)
    study = load_study([tmp_path])
    shown = results_table(study).to_markdown()
    assert all(one in shown for one in cells)
    assert "accuracy" not in shown
    figures, _ = draw_figures(study, 3.5)
    axes = figures[f"{metric.name}_time"].axes[0]
    assert axes.lines[1].get_ydata().tolist() == pytest.approx([value + 0.01 for value in values])
    assert axes.get_ylim()[1] > max(values), "values above 1 are not cut off"


def test_only_the_best_lines_are_drawn(tmp_path: Path) -> None:
    for place in range(MAX_LINES + 2):
        values = [value + place for value in FALLING]
        make_run_of(tmp_path / f"run{place}", RMSE, values, data={"beta": 1.0 + place})
    axes = draw_metric(load_study([tmp_path]), "time").axes[0]
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == [1.0 + place for place in range(MAX_LINES)]


def test_progress_shows_runs_and_their_metric(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"metric": "rmse", "higher_is_better": False}
    line, progress = {"round": 3, "time_s": 60.0} | fields, StudyProgress()
    progress.report("lesson-seed0", {"limits": RunSettings(rounds=10)})
    progress.report("lesson-seed0", line | {"rmse": 12.3456})
    progress.report("lesson-seed0", line | {"round": 4})
    shown = text_of(progress.render())
    assert all(word in shown for word in ("1 running", "12.35", "rmse"))
    for event in ("killed", "postponed", "alone"):
        progress.report("lesson-seed0", {event: 1})
    assert "0 running" in text_of(progress.render())
    progress.report("lesson-seed0", {"done": True, "rmse": 12.3456, "time_s": 100.0} | fields)
    assert "rmse 12.35 after 100 s (1 of 1 runs)" in capsys.readouterr().err
    with RunProgress(RunSettings(rounds=10)) as one:
        one.report(line | {"rmse": 12.3456})
