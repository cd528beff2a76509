"""Runs the `lesson` command in a new process."""

import contextlib
import io
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LESSON = str(Path(sys.executable).with_name("lesson"))
GIB = 1 << 30
PROGRESS = re.compile(r" \(\d+ of \d+ runs\)$")
"""Matches the progress lines of a comparison or a sweep."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a process."""

    cpu_s: int | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None

    def apply(self) -> None:
        """Apply the limits to this process."""
        kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
        for kind, limit in zip(kinds, (self.cpu_s, self.memory_bytes, self.file_bytes), strict=True):
            if limit is not None:
                resource.setrlimit(kind, (limit, limit))


UNLIMITED = Limits()


@dataclass(frozen=True)
class Outcome:
    """Exit status, error output and resource usage of a command."""

    argv: tuple[str, ...]
    status: int
    err: str
    cpu_s: float = 0.0
    peak_gb: float = 0.0

    def check(self, *statuses: int) -> "Outcome":
        """Return this outcome; raise unless its status is one of these and a failure is reported in a single line."""
        lines = [line for line in self.err.splitlines() if not line.startswith("note: ") and not PROGRESS.search(line)]
        said = f"status {self.status}: lesson {' '.join(self.argv)[:2000]}\n{self.err[-3000:]}"
        assert "Traceback" not in self.err, said
        assert self.status in statuses, said
        if self.status:
            assert len(lines) == 1, said
            assert lines[0].startswith("lesson: "), said
        return self


@contextlib.contextmanager
def started(argv: Sequence[str], folder: Path, limits: Limits = UNLIMITED) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `lesson` in its own session, with its output in FOLDER/out and FOLDER/err; kill it on exit if it runs."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [LESSON, *argv],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=os.environ | {"COLUMNS": "200", "MPLBACKEND": "agg"},
            start_new_session=True,
            preexec_fn=limits.apply,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def call(argv: Sequence[str], folder: Path, limits: Limits = UNLIMITED) -> Outcome:
    """Run `lesson` in a folder and return its outcome."""
    with started(argv, folder, limits) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, peak_gb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9
    return Outcome(tuple(argv), process.returncode, text(folder / "err"), cpu_s, peak_gb)


def call_here(argv: Sequence[str]) -> Outcome:
    """Run `lesson` in this process, which is much faster."""
    from lesson.cli import main

    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = main(argv)
    return Outcome(tuple(argv), status, err.getvalue())


def text(path: Path) -> str:
    """Return the content of a file; bytes that are not UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")
