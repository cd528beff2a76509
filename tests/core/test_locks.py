"""One process at a time has a folder, whenever others come and go."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import lock_descriptor

from helpers.runs import PARTS, content, settings
from lesson import InputError
from lesson.core.locks import LOCK, locked
from lesson.learn.build import build
from lesson.learn.device import on_device
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder

BUSY = "is in use by another process; wait until it has finished, or stop it"


def test_a_second_process_is_rejected_until_the_first_has_finished(tmp_path: Path) -> None:
    with locked(tmp_path):
        for _ in range(2):
            with pytest.raises(InputError, match=BUSY), locked(tmp_path):
                pass
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_its_owner_has_just_removed_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the first owner ends; a third process would lock a new file beside ours."""
    calls = []

    def late(number: int, *, blocking: bool) -> bool:
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(number)
        return lock_descriptor(number, blocking=blocking)

    monkeypatch.setattr("filelock.lock_descriptor", late)
    with locked(tmp_path), pytest.raises(InputError, match=BUSY), locked(tmp_path):
        pass
    assert len(calls) == 3  # twice for ours, once for the third process


def test_the_lock_of_another_process_is_not_removed(tmp_path: Path) -> None:
    """As of a folder whose run was rejected, and in which another has begun at once."""
    with locked(tmp_path):
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).touch()
    assert (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("filelock.lock_descriptor", refuse)
    with pytest.raises(InputError, match="cannot be locked: No locks available; choose another output folder"):
        RunFolder(tmp_path).owned().__enter__()


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from lesson.core.locks import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -signal.SIGKILL
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


WINDOWS = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import filelock, torch
filelock.lock_descriptor = lambda number, *, blocking=True: True  # filelock uses no fcntl on Windows
for module, names in ((os, "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK setsid"),
                      (signal, "SIGHUP SIGKILL pthread_sigmask")):
    for name in names.split():
        delattr(module, name)
from lesson.cli import main
flags = ["--rounds", "2", "--set", "fleet.num_clients=5"]
sys.exit(main(["plan", *flags]) or main(["run", "--out", "out", *flags]))
"""


def test_commands_work_without_what_windows_lacks(tmp_path: Path) -> None:
    argv = [sys.executable, "-W", "ignore:only soft file lock", "-c", WINDOWS]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "summary.json").exists()


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory; choose another output folder"):
        RunFolder(tmp_path / "none").owned().__enter__()


def test_a_second_process_leaves_the_files_of_the_first_alone(tmp_path: Path) -> None:
    aside = tmp_path / "run" / ".checkpoint.safetensors.aside"
    folder = RunFolder(tmp_path / "run")
    folder.begin(on_device(settings()), {})
    with folder.owned():
        aside.write_bytes(b"half a checkpo")
        with pytest.raises(InputError, match=BUSY):
            execute(settings(), folder.path, resume=True, **PARTS)
        assert aside.exists()


@pytest.mark.parametrize("others", [settings(), settings(seed=1)], ids=["the same", "another"])
def test_a_run_that_another_process_ended_meanwhile_is_not_cut_back(tmp_path: Path, others: Any) -> None:
    """It begins and ends between our look at the folder, which was empty, and our first round."""

    def slow(*arguments: Any, **parts: Any) -> Any:
        execute(others, tmp_path / "run", **PARTS)
        return build(*arguments, **parts)

    said = "holds a run with other settings" if others.run.seed else "has just been finished by another process"
    with pytest.raises(InputError, match=said):
        execute(settings(), tmp_path / "run", make=slow, **PARTS)
    execute(others, tmp_path / "again", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "again")
