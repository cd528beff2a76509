"""Every example runs; tests/docs executes the code of pages."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import lesson
from lesson.cli import main
from lesson.experiments.grid import load_grid

pytestmark = pytest.mark.usefixtures("few_test_images")
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
APPS = [EXAMPLES / name for name in ("flower-app", "flower_deployment/app", "fleet-trial")]
SCRIPTS, FLEETS, NOTEBOOKS = (sorted(EXAMPLES.glob(f"*.{suffix}")) for suffix in ("py", "csv", "ipynb"))
SWEEPS = [path for path in sorted(EXAMPLES.glob("*.toml")) if "sweep" in tomllib.loads(path.read_text())]
SETTINGS = sorted(set(EXAMPLES.glob("*.toml")) - set(SWEEPS))
DEPLOYED = [
    *(app / "pyproject.toml" for app in APPS),
    *(path for app in APPS for path in sorted(app.glob("*/*.py"))),
    *sorted(EXAMPLES.glob("*_deployment/*.py")),
    EXAMPLES / "fleet-trial" / "trial.py",
    *sorted(EXAMPLES.glob("fleet-trial/recordings/*.jsonl")),
    *sorted(EXAMPLES.glob("*_deployment/*.sh")),
    *sorted(EXAMPLES.glob("*_deployment/systemd/*")),
]
"""Tested in tests/flower: test_deployment.py, test_example_apps.py and test_operations.py."""


def test_every_example_is_tested() -> None:
    files = {path for path in EXAMPLES.rglob("*.*") if path.suffix not in {".md", ".pyc"}}
    assert files == {*SCRIPTS, *FLEETS, *NOTEBOOKS, *SWEEPS, *SETTINGS, *DEPLOYED}


LAST_LINES = {
    "choose_deadline.py": r"chosen deadline: \d+ s",
    "new_strategy.py": r"new_strategy:Quorum +0\.\d+ +\d+\.\d",
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_example_scripts_run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--quick"])
    monkeypatch.syspath_prepend(path.parent)  # as Python does for a script
    runpy.run_path(str(path), run_name="__main__")
    assert re.fullmatch(LAST_LINES[path.name], capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.name)
def test_example_fleets_are_planned(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--latencies", str(path)]) == 0


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["client_app", "server_app"])
def test_apps_for_flower_are_made(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path)
    (file,) = path.glob(f"*/{name}.py")
    app = runpy.run_path(str(file))["app"]
    assert type(app).__name__ == {"client_app": "ClientApp", "server_app": "ServerApp"}[name]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), "strip its outputs"
    for cell in notebook.cells:
        cell.source = cell.source.replace("time_budget_s=1000.0", "time_budget_s=100.0")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert [data for data in shown if "image/png" in data], "the plot"
    assert (tmp_path / "runs" / "quickstart" / "lesson-seed1" / "summary.json").exists()


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_example_sweeps_run_two_rounds(path: Path, tmp_path: Path) -> None:
    for strategy, settings in {one.strategy.name: one for one in load_grid(path).runs.values()}.items():
        assert lesson.run(strategy, settings=settings, rounds=2, out=tmp_path / strategy).summary["rounds"] == 2


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.name)
def test_example_settings_run_two_rounds(path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "--scenario", str(path), "--rounds", "2", "--out", str(tmp_path / "out")]) == 0
