"""The command `lesson sweep` on every engine: runs that fail, are interrupted and resume."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from helpers.engines import FakeEngine
from helpers.ray_cluster import needs_ray, running_cluster
from helpers.tensorboard import expected_scalars, needs_tensorboard, read_scalars
from lesson import InputError
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine, RayEngine
from lesson.experiments.folder import MARKER
from lesson.experiments.grid import make_grid
from lesson.experiments.missing import run_missing
from lesson.runs.folder import RunFolder

SETTINGS = {
    "fleet": {"num_clients": 5},
    "data": {"samples_per_client": 100},
    "run": {"rounds": 120, "eval_every_s": 1e6},
}


def interrupt(call: list[str], folder: Path, num_runs: int) -> None:
    """Start a sweep in a folder and interrupt it when its runs have begun."""
    command = [sys.executable, "-m", "lesson.cli", "sweep", *call]
    process = subprocess.Popen(command, cwd=folder, stderr=-1, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("out/*/metrics.jsonl"))) < num_runs and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert error.startswith("lesson: interrupted")
    assert error.count("\n") == 1
    assert not list(folder.glob("out/*/.lock"))


@pytest.mark.slow
@needs_ray
@needs_tensorboard
def test_interrupted_sweep_on_ray_resumes(tmp_path: Path) -> None:
    """From the checkpoint of the interrupt, the only one; the trackers of both calls see all rounds once.

    The cluster was started before the sweep and is still there after it.
    """
    (tmp_path / "grid.toml").write_text(make_grid(SETTINGS, {"strategy.name": ["lesson"]}).toml)
    call = ["grid.toml", "--out", "out", "--engine", "ray", "--log", "tensorboard"]
    with running_cluster() as address:
        call += ["--address", address]
        interrupt(call, tmp_path, 1)
        (folder,) = [RunFolder(path.parent) for path in tmp_path.glob("out/*/config.toml")]
        assert not folder.summary.exists(), "it has ended before"
        assert folder.checkpoint.exists()
        command = [sys.executable, "-m", "lesson.cli", "sweep", *call]
        second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert second.returncode == 0, second.stderr
        shown = read_scalars(folder.path)
        assert shown == expected_scalars(folder.path)
        assert len(shown["uploads/by round"]) == 120


@pytest.mark.slow
def test_interrupted_sweep_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops both worker processes with a checkpoint; the same command finishes the runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(make_grid(SETTINGS, {"strategy.name": ["lesson", "fedcs"]}).toml)
    call = ["grid.toml", "--out", "out"]
    interrupt(call, tmp_path, 2)
    folders = [RunFolder(path.parent) for path in tmp_path.glob("out/*/config.toml")]
    assert any(folder.checkpoint.exists() for folder in folders)
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
    assert main(["sweep", *call]) == 0
    assert all(folder.finished() for folder in folders)


def test_table_shows_varied_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: FakeEngine())
    axes = {"strategy.name": ["lesson", "fedavg"], "strategy.late": ["merge"], "data.beta": [0.5, 1]}
    (tmp_path / "grid.toml").write_text(make_grid({"run": {"time_budget_s": 600.0}}, axes, 2).toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["data.beta"] for row in rows] == [0.5, 1.0, 0.5, 1.0]
    assert [row["strategy.late"] for row in rows] == ["merge", "merge", None, None]
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    assert list(table)[:4] == [*axes, "seeds"]
    assert table["seeds"].tolist() == [2] * 4


def test_failed_runs_are_named_with_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """study.toml can be given again, and its folder is the output folder."""
    engine = FakeEngine({"lesson-beta=2-seed0": {"error": "it broke", "kind": "RunStoppedError"}})
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: engine)
    (tmp_path / "grid.toml").write_text(make_grid({"run": {"time_budget_s": 600.0}}, {"data.beta": [1, 2]}).toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]) == 3
    assert "lesson-beta=2-seed0: it broke" in capsys.readouterr().err.splitlines()[-1]
    engine.errors = {}
    assert main(["sweep", str(tmp_path / "out" / MARKER)]) == 0
    assert engine.asked[1:] == [["lesson-beta=2-seed0"]]
    assert main(["sweep", str(tmp_path / "out" / MARKER), "--set", "run.time_budget_s=700"]) == 2


@needs_ray
@pytest.mark.parametrize("flags", [["--address", "somewhere"], ["--cpus-per-trial", "5000"]])
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_invalid_option_for_ray(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 1.0})
    (tmp_path / "grid.toml").write_text(make_grid(SETTINGS, {"data.beta": [1]}).toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"), "--engine", "ray", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_error_without_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"lesson-fl\[ray\]"):
        run_missing(make_grid(SETTINGS, {"data.beta": [1]}), tmp_path / "out", RayEngine())
    assert not (tmp_path / "out").exists()
