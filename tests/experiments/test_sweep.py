"""The command `lesson sweep` on every engine: runs that fail, are killed or interrupted, and what comes after."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from helpers.engines import FakeEngine
from helpers.ray_cluster import needs_ray, running_cluster
from helpers.tensorboard import expected_scalars, needs_tensorboard, read_scalars
from lesson import InputError
from lesson.cli import main
from lesson.experiments.engines import InProcessEngine, RayEngine
from lesson.experiments.folder import MARKER, StudyFolder
from lesson.experiments.grid import make_grid
from lesson.experiments.missing import run_missing
from lesson.report.progress import StudyProgress
from lesson.report.study.sweep_text import sweep_table
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.settings.settings import Settings
from lesson.settings.toml_text import to_toml

SETTINGS = {
    "fleet": {"num_clients": 5},
    "data": {"samples_per_client": 100},
    "run": {"rounds": 8, "eval_every_s": 1e6, "checkpoint_every_s": 1e-9},
}
# FedAvg, but for what happens in round 6 unless a file says that it is mended.
STRATEGIES = """
import os
from pathlib import Path
from lesson import FedAvg


class Once(FedAvg):
    def open_round(self, view, rng):
        with Path("rounds.txt").open("a") as file:
            file.write(f"{view.round}\\n")
        if view.round == 6 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), 9)
        return super().open_round(view, rng)


class Raises(FedAvg):
    def open_round(self, view, rng):
        if view.round == 6 and not Path("mended").exists():
            raise ZeroDivisionError("nobody\\nthere")
        return super().open_round(view, rng)
"""


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "lesson.cli", "sweep", *argv]


def failures(out: Path) -> dict[str, str]:
    marker = StudyFolder(out).read()
    assert marker is not None
    return marker.failures


@pytest.mark.slow
def test_failed_and_killed_runs_do_not_stop_others_and_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "dies.py").write_text(STRATEGIES)
    names = ["dies:Raises", "dies:Once", "fedavg"]
    (tmp_path / "grid.toml").write_text(to_toml(SETTINGS | {"sweep": {"strategy.name": names}}))
    call = ["sweep", "grid.toml", "--out", "out"]
    assert main(call) == 3
    out, error = capsys.readouterr()
    *lines, last = error.splitlines()
    reason = "ZeroDivisionError: nobody there (dies.py, line 20)"
    assert last.startswith(f"lesson: 1 of 3 runs failed, first dies.Raises-seed0: {reason}; ")
    assert last.endswith("; repeat the command with --out out to retry them")
    counted = [line.rpartition("(")[2] for line in lines if line.endswith(" runs)")]
    assert counted == [f"{count} of 3 runs)" for count in (1, 2, 3)]
    assert out.startswith("note: the process of dies.Once-seed0 was killed once and replaced\n")
    assert "\n2 of 3 runs done\n" in out
    assert reason in out
    assert failures(tmp_path / "out") == {"dies.Raises-seed0": reason}
    # With a checkpoint after every round, the run resumes with the round it was killed in.
    rounds = [int(line) for line in (tmp_path / "rounds.txt").read_text().split()]
    assert rounds == [1, 2, 3, 4, 5, 6, 6, 7, 8]

    before = (tmp_path / "out" / "fedavg-seed0" / "summary.json").stat().st_mtime_ns
    (tmp_path / "mended").touch()
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
    assert main(call) == 0
    assert capsys.readouterr().out.startswith("3 of 3 runs done\n")
    assert (tmp_path / "out" / "fedavg-seed0" / "summary.json").stat().st_mtime_ns == before
    assert failures(tmp_path / "out") == {}
    execute(Settings(**SETTINGS | {"strategy": {"name": "fedavg"}}), tmp_path / "alone")
    for name in ("metrics.jsonl", "model.safetensors"):
        found = [path.read_bytes() for path in (tmp_path / "out").glob(f"*/{name}")]
        assert found == [(tmp_path / "alone" / name).read_bytes()] * 3, "not the same bits"
    assert len(pd.read_csv(tmp_path / "out" / "table.csv")) == 3


@pytest.mark.slow
@needs_ray
@needs_tensorboard
def test_an_interrupted_sweep_on_ray_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume from the checkpoint of the interrupt, the only one; the trackers of both calls see all rounds once.

    The cluster was started before the sweep and is still there after it.
    """
    sections = SETTINGS | {"run": {"rounds": 100, "eval_every_s": 1e6}}
    (tmp_path / "grid.toml").write_text(make_grid(sections, {"strategy.name": ["lesson"]}).toml)
    call = ["grid.toml", "--out", "out", "--engine", "ray", "--log", "tensorboard"]
    with running_cluster(monkeypatch) as address:
        call += ["--address", address]
        process = subprocess.Popen(command(*call), cwd=tmp_path, stderr=-1, text=True, start_new_session=True)
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("out/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
        assert told == "lesson: interrupted; repeat the command with --out out to continue\n"
        assert process.returncode == 130
        (folder,) = [RunFolder(path.parent) for path in tmp_path.glob("out/*/config.toml")]
        assert not folder.summary.exists(), "it has ended before"
        assert folder.checkpoint.exists()
        assert not list(tmp_path.glob("out/*/.lock"))
        second = subprocess.run(command(*call), cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert second.returncode == 0, second.stderr
        shown = read_scalars(folder.path)
        assert shown == expected_scalars(folder.path)
        assert len(shown["uploads/by round"]) == 100


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops both worker processes with a checkpoint; the same command finishes the runs."""
    monkeypatch.chdir(tmp_path)
    sections = SETTINGS | {"run": {"rounds": 120, "eval_every_s": 1e6}}
    (tmp_path / "grid.toml").write_text(make_grid(sections, {"strategy.name": ["lesson", "fedcs"]}).toml)
    call = ["grid.toml", "--out", "out"]
    process = subprocess.Popen(command(*call), cwd=tmp_path, stderr=-1, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("out/*/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "lesson: interrupted; repeat the command with --out out to continue\n"
    assert process.returncode == 130
    folders = [RunFolder(path.parent) for path in tmp_path.glob("out/*/config.toml")]
    assert any(folder.checkpoint.exists() for folder in folders)
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: InProcessEngine())
    assert main(["sweep", *call]) == 0
    assert all(folder.finished() for folder in folders)


def test_the_table_of_a_sweep_has_what_varies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: FakeEngine())
    axes = {"strategy.name": ["lesson", "fedavg"], "strategy.late": ["merge"], "data.beta": [0.5, 1]}
    grid = make_grid({"run": {"time_budget_s": 600.0}}, axes, 2)
    (tmp_path / "grid.toml").write_text(grid.toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("8 of 8 runs done\n")
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["data.beta"] for row in rows] == [0.5, 1.0, 0.5, 1.0]
    assert [row["strategy.late"] for row in rows] == ["merge", "merge", None, None]
    table = pd.read_csv(tmp_path / "out" / "table.csv")
    assert list(table)[:4] == [*axes, "seeds"]
    assert table["seeds"].tolist() == [2] * 4
    console = Console(width=160)
    with console.capture() as shown:
        console.print(sweep_table(run_missing(grid, tmp_path / "out", FakeEngine()), "title"))
    row = next(line for line in shown.get().splitlines() if "fedavg" in line)
    assert row.split()[:4] == ["fedavg", "–", "0.5", "2"]


def test_a_dry_run_counts_runs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lesson.experiments.estimate._seconds", lambda *_: 60.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    (tmp_path / "grid.toml").write_text(make_grid(SETTINGS, {"data.beta": [1]}, 4).toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "4 runs, 0 done"
    assert second.startswith("about 2 min in 2 processes, with ")
    assert not (tmp_path / "out").exists()


def test_study_toml_can_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its folder is the output folder."""
    engine = FakeEngine()
    monkeypatch.setattr("lesson.experiments.engines.make_engine", lambda *_, **__: engine)
    run_missing(make_grid({"run": {"time_budget_s": 600.0}}, {"data.beta": [1, 2]}), tmp_path, FakeEngine(at_most=1))
    assert main(["sweep", str(tmp_path / MARKER)]) == 0
    assert engine.asked == [["lesson-beta=2-seed0"]]
    assert main(["sweep", str(tmp_path / MARKER), "--set", "run.time_budget_s=700"]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "a sweep must be a .toml file, got 'grid'"),
        (["--engine", "rai"], "unknown engine 'rai'; did you mean 'ray'?"),
        (["--cpus-per-trial", "0"], "--cpus-per-trial must be >= 1, got 0"),
        (["--engine", "ray", "--gpus-per-trial", "-1"], "--gpus-per-trial must be >= 0, got -1.0"),
        (["--address", "auto"], "--address requires the engine ray"),
    ],
)
def test_bad_flags(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "grid", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"lesson: {message}")


@needs_ray
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--address", "somewhere"], "--address must be HOST:PORT of a cluster's head node, or auto, got 'somewhere'"),
        (["--address", "ray://there:10001"], "--address must be HOST:PORT of a cluster's head node, or auto, got 'ray"),
        (["--address", "127.0.0.1:1"], "--address '127.0.0.1:1' does not answer: "),
        (["--cpus-per-trial", "5000"], "--cpus-per-trial must be <= "),
        (["--gpus-per-trial", "5000"], "--gpus-per-trial must be <= "),
    ],
)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_bad_input_for_ray(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 1.0})
    (tmp_path / "grid.toml").write_text(make_grid(SETTINGS, {"data.beta": [1]}).toml)
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"), "--engine", "ray", *flags]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"lesson: {message}")
    assert (output.err.count("\n"), output.out) == (1, "")
    assert "--address" not in flags or not (tmp_path / "out").exists()


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray is not installed; run pip install 'lesson-fl\[ray\]'"):
        run_missing(make_grid(SETTINGS, {"data.beta": [1]}), tmp_path / "out", RayEngine())
    assert not (tmp_path / "out").exists()


def test_progress_counts_runs_and_shows_those_in_progress(capsys: pytest.CaptureFixture[str]) -> None:
    trials = make_grid({"run": {"rounds": 100}}, {"data.beta": [1, 2, 3, 4, 5]}).trials
    progress, names = StudyProgress(), list(trials)
    progress.report(names[0], {"done": True})
    for name in names[1:]:
        progress.report(name, {"limits": trials[name].run})
    progress.report(names[1], {"error": "out of luck", "kind": "RunStoppedError"})
    progress.report(names[2], {"killed": 1})
    progress.report(names[2], {"round": 40, "time_s": 800.0, "accuracy": 0.8125})
    progress.report(names[2], {"round": 60, "time_s": 1200.0})
    progress.report(names[3], {"round": 20, "time_s": 400.0})
    progress.report(names[3], {"postponed": 1})
    assert (
        "note: lesson-beta=4-seed0 ran out of memory; it continues when another run has ended"
        in capsys.readouterr().err
    )
    console = Console(width=120)
    with console.capture() as capture:
        console.print(progress.render())
    shown = capture.get()
    assert "1 done, 1 running, 1 failed, 2 waiting" in shown
    row = next(line for line in shown.splitlines() if "resumed 1×" in line).split()
    assert row[3:6] == ["60", "1200", "0.812"]
    assert "failed: lesson-beta=2-seed0: out of luck" in shown
