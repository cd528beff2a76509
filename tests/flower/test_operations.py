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

import check_run
import pytest
import supervise_run
from back_up import back_up
from check_run import CONTENT, CRITICAL, WARNING, check
from federation import APP, NAME
from local_processes import wait

from lesson.clock.rejections import OF_CONTENT
from lesson.flower.config import check_config

FOLDER = APP.parent / "flower_deployment"
UNITS = sorted(path.name for path in (FOLDER / "systemd").glob("*.service")) + sorted(
    path.name for path in (FOLDER / "systemd").glob("*.timer")
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit files, with the programs and files that they name below a temporary folder."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for unit in (FOLDER / "systemd").glob("*.[st]*"):
        text = unit.read_text().replace("/opt/lesson/venv", str(tmp_path / "venv"))
        (tmp_path / unit.name.replace("@.", "@x.")).write_text(text)
        for program in re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE):
            Path(program).touch()
            Path(program).chmod(0o755)
    return tmp_path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit_files(installed: Path, unit: str) -> None:
    path = installed / unit.replace("@.", "@x.")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if str(installed) in line or "lesson-" in line]
    assert not complaints
    assert done.returncode == 0, done.stderr


def test_units_start_what_is_in_the_repository() -> None:
    for path in (FOLDER / "systemd").glob("*.service"):
        for script in re.findall(r"/opt/lesson/flower_deployment/(\S+)", path.read_text()):
            assert (FOLDER / script).is_file()


def test_the_example_settings_are_complete() -> None:
    folder = FOLDER / "systemd"
    given = set(re.findall(r"^(\w+)=", (folder / "node0.env").read_text(), re.MULTILINE))
    assert given == set(re.findall(r"\$\{(\w+)\}", (folder / "lesson-supernode@.service").read_text()))
    connections = tomllib.loads((folder / "flwr-config.toml").read_text())["superlink"]
    assert f"flower-ready-app {connections['default']} " in (folder / "lesson-run@.service").read_text()


def test_the_example_run_config_can_be_supervised(tmp_path: Path) -> None:
    config = FOLDER / "systemd" / "run1.toml"
    assert supervise_run.config_problem(config) == ""
    check_config(tomllib.loads(config.read_text()))
    other = tmp_path / "run.toml"
    other.write_text('out = "/data/run"\n')
    assert supervise_run.config_problem(other).startswith("resume must be true")
    other.write_text('out = "run"\nresume = true\n')
    assert supervise_run.config_problem(other) == "out must be an absolute path, got 'run'"


def certificates(command: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FOLDER / "certificates.sh", command, folder, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(("host", "check"), [("server.example", "-verify_hostname"), ("192.0.2.7", "-verify_ip")])
def test_certificates_are_signed_by_the_authority_and_never_overwritten(tmp_path: Path, host: str, check: str) -> None:
    assert certificates("ca", tmp_path).returncode == 0
    assert certificates("server", tmp_path, host).returncode == 0
    verify = ["openssl", "verify", check, host, "-CAfile", tmp_path / "ca.crt"]
    assert subprocess.run([*verify, tmp_path / "server.crt"], capture_output=True, check=False).returncode == 0
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    again = certificates("server", tmp_path, host)
    assert again.returncode == 2
    assert "server.key exists; move it away first" in again.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_certificate_that_cannot_be_signed_leaves_no_key(tmp_path: Path) -> None:
    missing = certificates("server", tmp_path, "server.example")
    assert missing.returncode == 2
    assert "ca.key cannot be read" in missing.stderr
    certificates("ca", tmp_path)
    (tmp_path / "ca.key").write_text("broken")
    broken = certificates("server", tmp_path, "server.example")
    assert broken.returncode == 2
    assert "private key" in broken.stderr
    assert not {"server.key", "server.crt"} & {path.name for path in tmp_path.iterdir()}
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".part")] == []


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_public_key_is_not_overwritten(tmp_path: Path) -> None:
    assert certificates("node", tmp_path, "node0").returncode == 0
    (tmp_path / "node0").unlink()
    public = (tmp_path / "node0.pub").read_text()
    assert certificates("node", tmp_path, "node0").returncode == 2
    assert (tmp_path / "node0.pub").read_text() == public


def test_a_backup_has_the_files_of_the_run_and_the_database(tmp_path: Path) -> None:
    run, names = tmp_path / "run", ("config.toml", "checkpoint.safetensors", "metrics.jsonl")
    run.mkdir()
    for name in (*names, ".lock"):
        (run / name).write_text(name)
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("create table nodes (id)")
    database.close()
    folder = back_up(run, tmp_path / "backups", tmp_path / "state.db")
    assert sorted(path.name for path in (folder / "run").iterdir()) == sorted(names)
    copy = sqlite3.connect(folder / "state.db")
    assert copy.execute("select count(*) from nodes").fetchone() == (0,)
    copy.close()
    assert [path.name for path in (tmp_path / "backups").iterdir()] == [folder.name]


def test_a_backup_that_fails_leaves_nothing_and_tells_why(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "state.db").write_text("not a database" * 100)
    words = [sys.executable, FOLDER / "back_up.py", tmp_path, tmp_path / "backups", "--database", tmp_path / "state.db"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "error: file is not a database\n")
    assert list((tmp_path / "backups").iterdir()) == []


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
    ("lines", "findings"),
    [
        ([], []),
        (WELL, []),
        (
            WELL + [line(round, []) for round in range(41, 51)],
            [(CRITICAL, "no update was aggregated in the last 10 rounds")],
        ),
        (
            [*WELL, line(41, [0], rejections={"no reply": [1] * 6})],
            [(WARNING, "13% of the updates in the last 20 rounds were rejected: 6 × no reply")],
        ),
        ([*WELL, line(41, [0, 1], excluded=[7])], [(WARNING, "round 41: excluded clients [7]")]),
        (
            WELL + [line(round, [0]) for round in range(41, 62)],
            [(WARNING, "client 1: no update aggregated for 21 rounds")],
        ),
        (
            WELL + [line(round, [0], 25.0) for round in range(41, 44)],
            [(WARNING, "client 0: latency 25 s, was 10 s")],
        ),
    ],
)
def test_checks_find_what_is_wrong(lines: list[dict[str, Any]], findings: list[check_run.Finding]) -> None:
    assert check(lines, window=20, empty=10, rejected=0.1, slower=2.0) == findings


def test_checks_know_the_reasons_of_rejections() -> None:
    assert CONTENT == OF_CONTENT


@pytest.mark.parametrize(
    ("age_s", "status", "told"), [(0, 0, "OK: 1 rounds"), (500, 2, "CRITICAL: no round has ended for 500 s")]
)
def test_a_stalled_run_is_critical(tmp_path: Path, age_s: int, status: int, told: str) -> None:
    (tmp_path / "config.toml").write_text("[strategy]\ndeadline_s = 60.0\n")
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps(line(1, [0])) + '\n{"round": 2, "upl')  # the second line is being written
    then = metrics.stat().st_mtime - age_s
    os.utime(metrics, (then, then))
    done = subprocess.run(
        [sys.executable, FOLDER / "check_run.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert done.stdout.startswith(told[:-5])


def test_the_log_is_printed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = "\x1b[92mINFO \x1b[0m:      "
    logs = iter(["Using\na\n\n", f"Using\na\n{prefix} b\nc\n\n"])
    monkeypatch.setattr(supervise_run, "output_of", lambda *_: subprocess.CompletedProcess([], 0, next(logs), ""))
    printed = supervise_run.print_log("1", "fleet", 0)
    supervise_run.print_log("1", "fleet", printed)
    assert capsys.readouterr().out == "a\nINFO:  b\nc\n"


FLWR = """#!/bin/sh
echo "$1" >> "$CALLS"
case $1 in
run) sleep 1; echo '{"run-id": "7"}' ;;
ls) echo '{"runs": [{"status": "finished:stopped"}]}' ;;
stop) echo '{}' ;;
esac
"""


def test_a_run_that_is_stopped_while_it_is_submitted_does_not_stay_active(tmp_path: Path) -> None:
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
