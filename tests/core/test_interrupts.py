"""Ctrl-C, SIGTERM and SIGHUP at any time leave a checkpoint, one line and an exit status."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import PARTS, content, settings
from lesson.cli import main
from lesson.core.errors import RunStoppedError
from lesson.runs import interrupts as runs
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.strategies import Lesson

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
STOPS = ["stopping at the next checkpoint", "repeat the command"]
"""In the last two lines that a stopped command prints."""
TINY = ["run", "--set", "fleet.num_clients=5", "--set", "run.device=cpu", "--set", "data.samples_per_client=20"]
TINY += ["--set", "run.eval_every_s=1e9", "--out", "run"]


def send_at(round: int, *numbers: signal.Signals) -> Callable[[dict[str, Any]], None]:
    def send(line: dict[str, Any]) -> None:
        for number in numbers if line["round"] == round else ():
            os.kill(os.getpid(), number)

    return send


class StoppedError(Exception): ...


@pytest.fixture
def handlers() -> Any:
    """SIGTERM and SIGHUP raise an error instead of ending the tests."""

    def stop(number: int, _: object) -> None:
        raise StoppedError(signal.Signals(number))

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers", "round_by_round")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_a_checkpoint_and_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else StoppedError):
        execute(settings(), tmp_path / "run", progress=send_at(12, number), **PARTS)
    folder = RunFolder(tmp_path / "run")
    assert folder.checkpoint.exists()
    assert len(folder.metrics.read_text().splitlines()) == 12
    assert not (folder.path / ".lock").exists()
    execute(settings(), tmp_path / "run", resume=True, **PARTS)
    execute(settings(), tmp_path / "whole", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        execute(settings(), tmp_path / "run", progress=send_at(12, signal.SIGHUP), **PARTS)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert RunFolder(tmp_path / "run").summary.exists()


@pytest.mark.usefixtures("handlers")
def test_pressing_ctrl_c_again_does_not_abort_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, sent = os.fsync, []

    def slow(number: int) -> None:
        for one in SIGNALS:
            os.kill(os.getpid(), one)
            sent.append(one)
        fsync(number)

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == 12:
            os.kill(os.getpid(), signal.SIGINT)
            monkeypatch.setattr(os, "fsync", slow)

    monkeypatch.setattr(runs, "REPEATS_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "run", progress=interrupt, **PARTS)
    assert sent
    assert RunFolder(tmp_path / "run").checkpoint.exists()


def test_ctrl_c_twice_in_a_moment_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = send_at(12, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "quick", progress=twice, **PARTS)
    assert RunFolder(tmp_path / "quick").checkpoint.exists()
    monkeypatch.setattr(runs, "REPEATS_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        execute(settings(), tmp_path / "slow", progress=twice, **PARTS)
    assert not RunFolder(tmp_path / "slow").checkpoint.exists()


@pytest.mark.parametrize("at", ["checkpoint", "summary"])
def test_full_disk_stops_a_run_that_can_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    fsync = os.fsync

    def full(number: int) -> None:
        if f".{at}" in str(Path(f"/proc/self/fd/{number}").readlink()):
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunStoppedError, match=rf"{at}\S* cannot be written: No space .*resume the run"):
        execute(settings(checkpoint_every_s=1e-9 if at == "checkpoint" else 60.0), tmp_path / "run", **PARTS)
    monkeypatch.setattr(os, "fsync", fsync)
    assert not list((tmp_path / "run").glob(".*.aside"))
    execute(settings(), tmp_path / "run", resume=True, **PARTS)


def start(tmp_path: Path, *argv: str, **how: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lesson.cli", *argv]
    return subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True, **how)


def says(lines: list[str]) -> bool:
    return all(words in line for words, line in zip(STOPS, lines[-2:], strict=True))


def test_stopped_command_leaves_a_checkpoint_and_says_how_to_continue(tmp_path: Path) -> None:
    process = start(tmp_path, *TINY, "--rounds", "1000000")
    while process.poll() is None and not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert says(errors.splitlines())
    assert process.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_every_stop_signal_has_its_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    open_round = Lesson.open_round

    def signaling(self: Lesson, view: Any, rng: Any) -> Any:
        if view.round == 3:
            os.kill(os.getpid(), number)
        return open_round(self, view, rng)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Lesson, "open_round", signaling)
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL  # ignored under nohup
    before = [signal.getsignal(one) for one in SIGNALS]
    signal.signal(number, usual)
    try:
        assert main([*TINY, "--rounds", "5"]) == 128 + number
    finally:
        for one, handler in zip(SIGNALS, before, strict=True):
            signal.signal(one, handler)
    assert says(capsys.readouterr().err.splitlines())
    assert Path("run", "checkpoint.safetensors").exists()


def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    """A module on the path sends the signal when another one is looked for."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "lesson.settings":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
"""
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = start(tmp_path, "run", "--rounds", "1", env=os.environ | {"PYTHONPATH": path})
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert errors.startswith("lesson: interrupted")
    assert errors.count("\n") == 1


def test_main_restores_the_handlers_of_its_caller() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    assert main(["strategies"]) == 0
    assert [signal.getsignal(number) for number in SIGNALS] == before
