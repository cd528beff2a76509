"""Calls of the `lesson` command, in a new process or in a fork of this one, which starts faster."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LESSON = (sys.executable, "-m", "lesson.cli")
PLAIN = {"COLUMNS": "200", "MPLBACKEND": "agg"}
GIB = 1 << 30
PROGRESS = re.compile(r" \(\d+ of \d+ runs\)$")
"""Matches the progress lines of a comparison or a sweep."""


@dataclass(frozen=True)
class Outcome:
    """The result of a command: exit status, output and resource usage."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float
    cpu_s: float
    peak_mib: float

    def check(self, *statuses: int, custom: bool = False) -> "Outcome":
        """Return this outcome; raise unless its status is one of these and a failure is reported in a single line.

        `custom` code may raise an exception, whose traceback precedes the line.
        """
        lines = [line for line in self.err.splitlines() if line.strip() and not line.startswith("note: ")]
        said = [line for line in lines if not PROGRESS.search(line)]
        if custom and said[:1] == ["Traceback (most recent call last):"]:
            said = said[-1:]
        else:
            assert "Traceback" not in self.err + self.out, self._describe("a traceback")
        assert self.status in statuses, self._describe(f"status must be one of {statuses}, got {self.status}")
        if self.status:
            assert len(said) == 1, self._describe(f"one line must be said, got {len(said)}")
            assert said[0].startswith("lesson: "), self._describe("the line must begin with 'lesson: '")
        return self

    def _describe(self, what: str) -> str:
        command = " ".join(repr(word) if not word or set(word) & set(" '\"\\") else word for word in self.argv)
        return f"{what}: lesson {command[:2000]}\n{self.out[-500:]}\n{self.err[-3000:]}"


@dataclass(frozen=True)
class Limits:
    """Resource limits of a command. Exceeding the wall-clock or CPU time is a failure."""

    seconds: float = 120.0
    cpu_s: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None

    def put(self) -> None:
        """Apply the limits on CPU time, memory and file size to this process."""
        if self.cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_s, self.cpu_s))
        if self.memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
        if self.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))


def start(argv: Sequence[str], folder: Path, limits: Limits | None = None, **env: str) -> "subprocess.Popen[bytes]":
    """Start `lesson` as a new process in its own session; its output goes to the files out and err in the folder."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [*LESSON, *argv],
            cwd=folder,
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env=os.environ | PLAIN | env,
            start_new_session=True,
            preexec_fn=None if limits is None else limits.put,
        )


def call(argv: Sequence[str], folder: Path, limits: Limits | None = None, *, real: bool = True, **env: str) -> Outcome:
    """Run `lesson` in the folder and return its outcome; `real` means a new process rather than a fork of this one."""
    limits, begin = limits or Limits(), time.monotonic()
    pid = start(argv, folder, limits, **env).pid if real else _fork(argv, folder, limits, env)
    status, usage = _wait(pid, begin + limits.seconds)
    out, err = (text(folder / name) for name in ("out", "err"))
    cpu_s, seconds = usage.ru_utime + usage.ru_stime, time.monotonic() - begin
    return Outcome(tuple(argv), status, out, err, seconds, cpu_s, usage.ru_maxrss / 1024)


def text(path: Path) -> str:
    """Return the content of a file as text; bytes that are not UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def _wait(pid: int, until: float) -> tuple[int, resource.struct_rusage]:
    """Wait for a process and return its exit status and resource usage; kill it, with status -9, after `until`."""
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage
        if time.monotonic() > until:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            until += 60.0
        time.sleep(0.01)


def _fork(argv: Sequence[str], folder: Path, limits: Limits, env: Mapping[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(PLAIN | dict(env))
        for number, name in enumerate((os.devnull, "out", "err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        limits.put()
        from lesson.cli import main

        status = main(list(argv))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        os._exit(status)
