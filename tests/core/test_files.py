"""Files that are written completely or not at all, and folders that only one process may use at a time."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from helpers.runs import PARTS, content, settings
from lesson import InputError
from lesson.core.errors import RunStoppedError
from lesson.core.files import check_output, remove_leftovers, write_all, write_whole
from lesson.core.locks import LOCK, locked
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.resolve import Resolved, resolve


def test_file_is_replaced_at_once_and_its_previous_version_kept(tmp_path: Path) -> None:
    for name in ("a.json", "ä" * 120 + ".html"):
        write_whole(tmp_path / name, b"1")
        write_whole(tmp_path / name, b"2", before=tmp_path / "before")
        assert ((tmp_path / name).read_bytes(), (tmp_path / "before").read_bytes()) == (b"2", b"1")
    assert len(list(tmp_path.iterdir())) == 3


def test_no_file_is_replaced_if_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    synced: list[int] = []

    def full(number: int) -> None:
        synced.append(number)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunStoppedError, match="b cannot be written: No space"):
        write_all({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    for name in (".a.json.0123abcd.aside", ".b.json.0123abcd.aside"):
        (tmp_path / name).write_bytes(b"{")
    write_whole(tmp_path / "a.json", b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {".b.json.0123abcd.aside", "a.json"}
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_unusable_paths_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / "none" / "a", b"")
    for path in (tmp_path / "a.txt", tmp_path / "none" / "a.html", tmp_path):
        with pytest.raises(InputError, match="--html"):
            check_output(path, "--html", [".html"])
    check_output(tmp_path / "a.html", "--html", [".html"])


def test_second_process_is_rejected_until_the_first_has_finished(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with locked(tmp_path), pytest.raises(InputError, match="in use by another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FileLock) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(FileLock, "_acquire", refuse)
    with pytest.raises(InputError, match="cannot be locked"):
        RunFolder(tmp_path).owned().__enter__()


def test_empty_folder_is_removed_after_use(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from lesson.core.locks import locked\n"
        "with locked(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -signal.SIGKILL
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not tmp_path.exists()


def test_second_process_leaves_the_files_of_the_first_alone(tmp_path: Path) -> None:
    aside = tmp_path / "run" / ".checkpoint.safetensors.aside"
    folder = RunFolder(tmp_path / "run")
    folder.begin(resolve(settings(), PARTS["task"]).settings, {})
    with folder.owned():
        aside.write_bytes(b"half a checkpo")
        with pytest.raises(InputError, match="in use by another process"):
            execute(settings(), folder.path, resume=True, **PARTS)
        assert aside.exists()


def test_run_just_finished_by_another_process_is_not_overwritten(tmp_path: Path) -> None:
    """It begins and ends between our look at the folder, which was empty, and our first round."""

    def slow(resolved: Resolved, num_threads: int | None) -> Any:
        execute(settings(), tmp_path / "run", **PARTS)
        return resolved.build(num_threads)

    with pytest.raises(InputError, match="just been finished by another process"):
        execute(settings(), tmp_path / "run", make=slow, **PARTS)
    execute(settings(), tmp_path / "again", **PARTS)
    assert content(tmp_path / "run") == content(tmp_path / "again")


WINDOWS = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
import torch
for module, names in ((os, "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK setsid"),
                      (signal, "SIGHUP SIGKILL pthread_sigmask")):
    for name in names.split():
        delattr(module, name)
from lesson.cli import main
flags = ["--rounds", "2", "--set", "fleet.num_clients=5"]
sys.exit(main(["plan", *flags]) or main(["run", "--out", "out", *flags]))
"""


@pytest.mark.slow
def test_commands_run_without_posix_features(tmp_path: Path) -> None:
    argv = [sys.executable, "-W", "ignore:only soft file lock", "-c", WINDOWS]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "summary.json").exists()
