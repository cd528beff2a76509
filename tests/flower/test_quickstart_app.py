"""The example app in PyTorch: it trains, it can be built, and the documented command runs it as typed."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from local_processes import end_all, free_ports, output_of

from helpers.local_grid import MakeGrid

ROOT = Path(__file__).parent.parent.parent
APP = ROOT / "examples" / "flower-app"
PROJECT = tomllib.loads((APP / "pyproject.toml").read_text())
README = (APP / "README.md").read_text()
COMMAND = "flwr run examples/flower_app --stream"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which `flwr` starts its own SuperLink on free ports; otherwise as a user has it."""
    http, control = free_ports(2)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return variables | {
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
    }


def test_app_trains(
    make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], few_images: None
) -> None:
    """Two rounds on two nodes in this process; clients evaluate the model on their own data after the last."""
    monkeypatch.syspath_prepend(APP)
    client, server = (import_module(f"lesson_quickstart.{name}_app").app for name in ("client", "server"))
    config = PROJECT["tool"]["flwr"]["app"]["config"] | {"num-server-rounds": 2, "local-steps": 2}
    grid = make_grid(client, 2, config)
    grid.simulated = True
    server(grid=grid, context=Context(1, 1, {}, RecordDict(), config))
    shown = capsys.readouterr().out
    assert re.search(r"ClientApp-side Evaluate Metrics:\s+\{2: \{'eval_accuracy': .*'eval_loss': ", shown)
    assert re.search(r"ServerApp-side Evaluate Metrics:\s+\{ 0: .*\s+1: .*\s+2: ", shown)


def test_clients_hold_different_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 images for 7 clients: 8572 for three of them and 8571 for the others; a fifth of each is for testing."""
    monkeypatch.syspath_prepend(APP)
    task = import_module("lesson_quickstart.task")
    first = task.load_data(0, 7, 32)
    last = task.load_data(6, 7, 32)
    assert [task.num_examples(loader) for loader in (*first, *last)] == [6857, 1715, 6856, 1715]
    assert not first[0].dataset[0][0].equal(last[0].dataset[0][0])


def test_app_is_a_flower_bundle_of_format_1(env: dict[str, str], tmp_path: Path) -> None:
    """Flower checks the license file, the dependency on flwr, its target version and the names of app and folder."""
    app = PROJECT["tool"]["flwr"]["app"]
    assert (app["fab-format-version"], app["flwr-version-target"]) == (1, "1.41.0")
    assert any(dependency.endswith(">=1.41,<1.42") for dependency in PROJECT["project"]["dependencies"])
    for name in ("flower-app", "flower_app"):
        command = ["flwr", "build", "--app", str(ROOT / "examples" / name)]
        subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    (bundle,) = tmp_path.glob("lesson-fl.lesson-quickstart.1-0-0.*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    assert {"LICENSE", "README.md", "pyproject.toml", "lesson_quickstart/task.py"} <= names
    assert (APP / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_readme_shows_the_lines_that_are_marked_in_the_app() -> None:
    """The table of the README and the numbered comments of the app agree on three changed lines."""
    rows = re.findall(r"^\| `(\w+\.py)` \| `(.+)` \| `(.+)` \|$", README, re.MULTILINE)
    assert len(rows) == 3
    for number, (file, before, after) in enumerate(rows, 1):
        lines = (APP / "lesson_quickstart" / file).read_text().splitlines()
        (line,) = [line for line in lines if f"# {number}. was: " in line]
        now, was = (part.strip() for part in line.split(f"# {number}. was: "))
        assert was in before
        assert now.split("=")[0].split("(")[0] in after
    assert f"$ {COMMAND}\n" in README


@pytest.mark.deployment
def test_documented_command_works_as_typed(env: dict[str, str], tmp_path: Path) -> None:
    """In a clone, without settings for Flower: it installs nothing, trains and completes; its exit status is 0."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "examples", clone / "examples", symlinks=True)
    try:
        done = subprocess.run(
            COMMAND, shell=True, cwd=clone, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "round 5: 2 clients evaluated the model: eval_accuracy" in done.stdout, done.stdout
        assert "No additional application dependencies needed installation" in done.stdout
        (run,) = json.loads(output_of(["flwr", "ls", "--format", "json"], env))["runs"]
        assert run["status"] == "finished:completed"
    finally:
        end_all("FLWR_HOME", env["FLWR_HOME"])
