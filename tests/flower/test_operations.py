"""The unit files and helper scripts for fleets; test_deployment.py uses them on a federation."""

import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import supervise_run
from back_up import back_up
from check_run import CONTENT, check
from federation import APP, NAME
from lesson.flower.config import check_config
from local_processes import wait

from lesson.clock.rejections import OF_CONTENT

FOLDER = APP.parent / "flower_deployment"


def call(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_unit_files(tmp_path: Path) -> None:
    """They start scripts of the repository, and systemd accepts them."""
    copies = []
    for unit in sorted((FOLDER / "systemd").glob("lesson-*")):
        text = unit.read_text().replace("/opt/lesson/venv", str(tmp_path))
        assert all((FOLDER / script).is_file() for script in re.findall(r"/opt/lesson/flower_deployment/(\S+)", text))
        for program in re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE):
            Path(program).parent.mkdir(exist_ok=True)
            Path(program).touch(0o755)
        copies.append(tmp_path / unit.name.replace("@.", "@x."))
        copies[-1].write_text(text)
    assert len(copies) > 3
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = call("systemd-analyze", "verify", "--man=no", *copies)
    assert not [line for line in done.stderr.splitlines() if str(tmp_path) in line or "lesson-" in line]
    assert done.returncode == 0, done.stderr


def test_example_settings_fit_the_units(tmp_path: Path) -> None:
    folder, run = FOLDER / "systemd", FOLDER / "systemd" / "run1.toml"
    given = set(re.findall(r"^(\w+)=", (folder / "node0.env").read_text(), re.MULTILINE))
    assert given == set(re.findall(r"\$\{(\w+)\}", (folder / "lesson-supernode@.service").read_text()))
    connections = tomllib.loads((folder / "flwr-config.toml").read_text())["superlink"]
    assert f"flower-ready-app {connections['default']} " in (folder / "lesson-run@.service").read_text()
    check_config(tomllib.loads(run.read_text()))
    assert supervise_run.config_problem(run) == ""
    for text, problem in (('out = "/data/run"\n', "resume must"), ('out = "run"\nresume = true\n', "out must")):
        (tmp_path / "run.toml").write_text(text)
        assert supervise_run.config_problem(tmp_path / "run.toml").startswith(problem)


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="openssl or ssh is missing")
def test_certificates_are_signed_and_never_overwritten(tmp_path: Path) -> None:
    script, host = FOLDER / "certificates.sh", "server.example"
    assert call(script, "server", tmp_path, host).returncode == 2, "there is no authority yet"
    assert call(script, "ca", tmp_path).returncode == 0
    assert call(script, "server", tmp_path, host).returncode == 0
    verify = ("openssl", "verify", "-verify_hostname", host, "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt")
    assert call(*verify).returncode == 0
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    assert call(script, "server", tmp_path, host).returncode == 2, "the key is there"
    assert call(script, "node", tmp_path, "node0").returncode == 0
    (tmp_path / "node0").unlink()
    assert call(script, "node", tmp_path, "node0").returncode == 2, "the public key is still there"


def test_backup_has_the_files_of_the_run_and_the_database(tmp_path: Path) -> None:
    run, names = tmp_path / "run", ["checkpoint.safetensors", "config.toml", "metrics.jsonl"]
    run.mkdir()
    for name in (*names, ".lock"):
        (run / name).write_text(name)
    database = sqlite3.connect(tmp_path / "state.db")
    database.execute("create table nodes (id)")
    database.close()
    folder = back_up(run, tmp_path / "backups", tmp_path / "state.db")
    assert sorted(path.name for path in (folder / "run").iterdir()) == names
    copy = sqlite3.connect(folder / "state.db")
    assert copy.execute("select count(*) from nodes").fetchone() == (0,)
    copy.close()
    (tmp_path / "state.db").write_text("not a database" * 100)
    done = call(sys.executable, FOLDER / "back_up.py", run, tmp_path / "new", "--database", tmp_path / "state.db")
    assert (done.returncode, list((tmp_path / "new").iterdir())) == (3, [])


def line(round: int, clients: list[int], latency_s: float = 10.0, **fields: Any) -> dict[str, Any]:
    """A line of metrics in which these clients are aggregated."""
    end_s = 20.0 * round
    return {
        "round": round,
        "uploads": len(clients),
        "staleness": 0.0 if clients else None,
        "merged": clients,
        "merged_started_s": [end_s - latency_s] * len(clients),
        "merged_arrived_s": [end_s] * len(clients),
        **fields,
    }


WELL = [line(round, [0, 1]) for round in range(1, 41)]


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        (WELL, ""),
        (WELL + [line(round, []) for round in range(41, 51)], "no update"),
        ([*WELL, line(41, [0], rejections={"no reply": [1] * 6})], "13%"),
        ([*WELL, line(41, [0, 1], excluded=[7])], "excluded client 7"),
        (WELL + [line(round, [0]) for round in range(41, 62)], "client 1: no update"),
        (WELL + [line(round, [0], 25.0) for round in range(41, 44)], "client 0: latency 25 s, was 10 s"),
    ],
)
def test_check_reports_problems(lines: list[dict[str, Any]], finding: str) -> None:
    findings = [message for _, message in check(lines, window=20, empty=10, rejected=0.1, slower=2.0)]
    assert len(findings) == bool(finding)
    assert all(finding in message for message in findings)
    assert CONTENT == OF_CONTENT


def test_stalled_run_is_critical(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[strategy]\ndeadline_s = 60.0\n")
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(line(1, [0])) + '\n{"round": 2, "upl')  # the second line is being written
    assert call(sys.executable, FOLDER / "check_run.py", tmp_path).returncode == 0
    then = metrics.stat().st_mtime - 500
    os.utime(metrics, (then, then))
    assert call(sys.executable, FOLDER / "check_run.py", tmp_path).returncode == 2


FLWR = """#!/bin/sh
echo "$1" >> "$CALLS"
case $1 in
run) sleep 1; echo '{"run-id": "7"}' ;;
ls) echo '{"runs": [{"status": "finished:stopped"}]}' ;;
stop) echo '{}' ;;
esac
"""


def test_run_stopped_during_submission_does_not_stay_active(tmp_path: Path) -> None:
    (tmp_path / "flwr").write_text(FLWR)
    (tmp_path / "flwr").chmod(0o755)
    config, calls = tmp_path / "run.toml", tmp_path / "calls"
    config.write_text('out = "/data/run"\nresume = true\n')
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "CALLS": str(calls)}
    words = [sys.executable, FOLDER / "supervise_run.py", APP, NAME, config, tmp_path / "run-id"]
    supervisor = subprocess.Popen(words, env=env)
    wait("the run to be submitted", 60, calls.exists)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(60) == 143
    assert "stop" in calls.read_text().split()
