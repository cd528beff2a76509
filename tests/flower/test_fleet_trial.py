"""The fleet trial: a plain app is recorded, replayed and switched to LESSON, on real SuperNodes in a short form."""

import re
import runpy
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from local_processes import find_all, wait

from helpers.local_grid import MakeGrid
from lesson.flight.recording import read_recording

ROOT = Path(__file__).parent.parent.parent
APP = ROOT / "examples" / "fleet-trial"
TUTORIAL = (ROOT / "docs" / "tutorials" / "fleet.md").read_text()


@pytest.fixture(scope="module")
def trial() -> dict[str, Any]:
    """The names of the script."""
    return runpy.run_path(str(APP / "trial.py"))


def test_the_app_is_plain(trial: dict[str, Any]) -> None:
    """Nothing of this package is in the app before it is recorded; the model stays what it is after the switch."""
    assert not [path for path in APP.glob("fleet_app/*.py") if "lesson" in path.read_text()]
    assert [file for file, *_ in trial["SWITCH"]] == ["server_app.py"] * 2


def test_tutorial_shows_the_lines_that_the_script_changes(trial: dict[str, Any]) -> None:
    added = [line for line in TUTORIAL.splitlines() if line.startswith("+")]
    for _, before, after in trial["RECORD"] + trial["SWITCH"]:
        new = [line for line in after.splitlines() if line not in before.splitlines() and "nodes = int(" not in line]
        assert all(any(shown.endswith(line) for shown in added) for line in new), new


def test_changes_that_do_not_fit_are_errors(trial: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape("server_app.py must have these lines once: 'FedProx('")):
        trial["copy_app"](tmp_path / "app", [("server_app.py", "FedProx(", "FedAvg(")])


def test_a_slow_device_is_slow_in_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, partition 0 takes 1.1 times as long after a quarter of 600 s, and 0.9 times after three."""
    monkeypatch.syspath_prepend(APP)
    client = import_module("fleet_app.client_app")
    monkeypatch.setattr(client.random, "gauss", lambda mean, _: mean)
    assert [round(client.slowness(0, now_s), 6) for now_s in (0.0, 150.0, 450.0)] == [1.0, 1.1, 0.9]
    assert client.slowness(3, 150.0) == pytest.approx(0.9)  # half a period later


def test_a_step_of_softmax_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """One image with a single bright pixel and label 3. All shares are 0.1, so the gradient is 0.1 − [label is 3]."""
    monkeypatch.syspath_prepend(APP)
    task = import_module("fleet_app.task")
    images = np.zeros((1, 784), np.float32)
    images[0, 5] = 1.0
    (weights, biases), loss = task.train(task.initial_model(), images, np.array([3], np.uint8), 1, lr=0.5)
    expected = np.full(10, -0.05)
    expected[3] = 0.45
    np.testing.assert_allclose(biases, expected, rtol=1e-5)
    np.testing.assert_allclose(weights[5], expected, rtol=1e-5)
    assert not weights[np.arange(784) != 5].any()
    assert loss == pytest.approx(np.log(10), abs=1e-5)
    assert task.accuracy([weights, biases], images, np.array([3])) == 1.0


@pytest.mark.parametrize("switched", [False, True])
def test_changed_apps_are_recorded(
    switched: bool, trial: dict[str, Any], make_grid: MakeGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds on two nodes in this process."""
    app = trial["copy_app"](tmp_path / "app", trial["RECORD"] + (trial["SWITCH"] if switched else []))
    monkeypatch.syspath_prepend(app)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fleet_app"]:
        monkeypatch.delitem(sys.modules, name)
    client, server = (import_module(f"fleet_app.{name}_app").app for name in ("client", "server"))
    config = {"num-server-rounds": 2, "min-nodes": 2, "learning-rate": 0.1, "local-steps": 2, "deadline": 0.5}
    config |= {"data": str(trial["DATA"]), "flight": str(tmp_path / "flight.jsonl")}
    grid = make_grid(client, 2, config)
    for context in grid.nodes.values():
        context.node_config |= {"data": str(trial["DATA"]), "slow-s": 0.0}
    server(grid=grid, context=Context(1, 1, {}, RecordDict(), config))
    recording = read_recording(tmp_path / "flight.jsonl")
    assert [one.round for one in recording.rounds] == [1, 2]
    assert len(recording.rounds[0].merged or ()) == 2
    assert np.isfinite(recording.jobs.compute_s[recording.jobs.round == 1]).all(), "clients report their times"


@pytest.mark.deployment
def test_short_trial_on_real_nodes(tmp_path: Path) -> None:
    """It ends with a predicted and a measured gain. On a busy machine the gain itself may be anything."""
    out = tmp_path / "trial"
    command = [sys.executable, str(APP / "trial.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    number = r"\d+\.\d\d times"
    assert re.search(f"s  updates per hour: predicted {number} .*, measured {number}", done.stdout)
    assert "all processes have ended" in done.stdout
    fedavg, switched = (read_recording(out / f"{name}.jsonl") for name in ("fedavg", "lesson"))
    assert fedavg.names == switched.names == ("phone-ana", "pi-roof", "tablet-lab")
    assert [len(one.merged or ()) for one in fedavg.rounds] == [3] * 4
    assert len(switched.rounds) >= len(fedavg.rounds)
    compute_s = [np.median(fedavg.jobs.compute_s[fedavg.jobs.client == client]) for client in range(3)]
    assert np.argsort(compute_s).tolist() == [0, 2, 1], "phone, tablet, Pi"


@pytest.mark.deployment
def test_interrupted_trial_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "trial"
    command = [sys.executable, str(APP / "trial.py"), "--quick", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    home = str(out / "federation" / "home")
    wait("the SuperLink", 300, lambda: bool(find_all("FLWR_HOME", home)), every_s=0.5)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 130, shown
    assert "stopped by Ctrl-C; all processes have ended" in shown
    assert not find_all("FLWR_HOME", home)
