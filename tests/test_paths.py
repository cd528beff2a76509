"""Whatever takes a path takes text as well."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lesson
from helpers.run_folders import make_comparison, make_run
from helpers.runs import PARTS, settings
from lesson import Settings
from lesson.experiments.engines import LocalEngine, RayEngine
from lesson.experiments.folder import StudyFolder
from lesson.experiments.grid import load_grid, make_grid, read_asked
from lesson.experiments.loading import load_study
from lesson.experiments.missing import run_missing
from lesson.experiments.run import Run
from lesson.experiments.study import write_table
from lesson.experiments.tuned.design import FILE, TunedComparison
from lesson.fleet.traces import read_positions, read_presence, read_work
from lesson.learn.build import build
from lesson.learn.data import load_dataset
from lesson.learn.data.dataset import MNIST_DIR, data_dir
from lesson.learn.data.idx import read_idx_folder
from lesson.planning.plan import make_plan
from lesson.report.page.plan_page import Origin, write_plan_page
from lesson.report.page.study_page import write_study_page
from lesson.report.plan.figure import draw_plan
from lesson.report.study.metric_figure import draw_comparison
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.summary import read_metrics
from lesson.settings.loading import load_settings

pytestmark = pytest.mark.usefixtures("few_test_images")
FLEET = "client,latency_s\n0,1\n1,2\n"
AS = pytest.mark.parametrize("as_given", [Path, str])


@AS
def test_files_that_are_read(tmp_path: Path, as_given: Callable[[Path], Path | str]) -> None:
    def file(name: str, text: str) -> Any:
        (tmp_path / name).write_text(text)
        return as_given(tmp_path / name)

    assert len(lesson.read_fleet(file("fleet.csv", FLEET), Settings())) == 2
    read_work(file("trace.csv", "client,round,compute_s,upload_s\n0,1,1,1\n1,1,1,1\n"), [0, 1])
    read_presence(file("presence.csv", "client,from_s,to_s\n0,0,9\n"), [0, 1])
    read_positions(file("positions.csv", "client,time_s,x_km,y_km\n0,0,1,1\n1,0,1,1\n"), [0, 1], 2.0)
    assert Settings(trace=as_given(tmp_path / "trace.csv")).fleet.trace == str(tmp_path / "trace.csv")
    assert load_settings(file("settings.toml", "[run]\nrounds = 3\n")).run.rounds == 3
    assert len(load_grid(file("sweep.toml", "[sweep]\ndata.beta = [1, 2]\n")).trials) == 2
    assert read_asked(as_given(tmp_path / "sweep.toml")).axes == {"data.beta": [1, 2]}
    assert TunedComparison.load(as_given(FILE)).entries
    assert read_metrics(as_given(tmp_path / "none.jsonl")) == []
    assert data_dir(as_given(tmp_path)) == tmp_path
    assert len(read_idx_folder(as_given(MNIST_DIR))) == 4
    shutil.copytree(MNIST_DIR, tmp_path / "fashion-mnist")
    assert load_dataset("fashion-mnist", as_given(tmp_path)).num_classes == 10


@AS
def test_folders_of_runs(tmp_path: Path, as_given: Callable[[Path], Path | str]) -> None:
    make_comparison(tmp_path / "compared", num_seeds=1)
    make_run(tmp_path / "run")
    assert len(lesson.load(as_given(tmp_path / "compared")).runs) == 2
    assert len(load_study([as_given(tmp_path / "compared")]).runs) == 2
    run = Run.load(as_given(tmp_path / "run"))
    assert run.path == tmp_path / "run"
    assert RunFolder(as_given(tmp_path / "run")).finished() is not None
    assert len(StudyFolder(as_given(tmp_path / "compared")).runs()) == 2
    study = lesson.load(as_given(tmp_path / "compared"))
    write_study_page(study, as_given(tmp_path / "page.html"))
    write_table(study, as_given(tmp_path / "table.json"))
    draw_comparison(study, "title", as_given(tmp_path))
    fleet = lesson.draw_fleet(Settings(num_clients=5))
    write_plan_page(as_given(tmp_path / "plan.html"), fleet, 20.0, Origin("here"))
    draw_plan(make_plan(fleet, 20.0), "title", as_given(tmp_path / "plan.png"))
    written = {"page.html", "table.json", "plan.html", "plan.png", "accuracy_time.png"}
    assert written <= {path.name for path in tmp_path.iterdir()}


def test_folders_of_runs_to_be_executed(tmp_path: Path) -> None:
    """As text; most other tests pass paths."""
    few = settings(rounds=2)
    assert execute(few, str(tmp_path / "run"), data_dir=str(tmp_path), **PARTS)["rounds"] == 2
    parts = {"task": PARTS["task"], "data_dir": str(tmp_path), "num_processes": 1}
    compared = lesson.compare(["lesson"], num_seeds=1, settings=few, out=str(tmp_path / "compared"), **parts)
    assert len(compared.runs) == 1
    grid = make_grid({"run": {"rounds": 1}, "fleet": {"num_clients": 5}}, {"data.beta": [1]})
    assert run_missing(grid, str(tmp_path / "sweep"), LocalEngine(1, str(tmp_path))).failures == {}


def test_no_public_signature_wants_a_path_object() -> None:
    """Where a parameter says Path, it says str, too."""
    public = [one for name in lesson.__all__ if inspect.isfunction(one := getattr(lesson, name))]
    public += [
        load_grid,
        TunedComparison.load,
        execute,
        run_missing,
        build,
        StudyFolder,
        RunFolder,
        LocalEngine,
        RayEngine,
        load_dataset,
        write_study_page,
        write_plan_page,
        draw_plan,
        Run.load,
    ]
    for function in public:
        for name, parameter in inspect.signature(function).parameters.items():
            assert "Path" not in str(parameter.annotation) or "str" in str(parameter.annotation), (function, name)
