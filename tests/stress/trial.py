"""Trials, each in its own process and folder. Several run at a time, each with a time limit."""

import contextlib
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.stress.mounts import unmount_all
from tests.stress.processes import descendants

Facts = dict[str, Any]


class Skip(Exception):  # noqa: N818
    """Raised if a trial is not possible on this machine; the message says why."""


@dataclass(frozen=True)
class Trial:
    """A trial: `do` gets an empty folder and a random generator, and raises if the trial fails."""

    kind: str
    case: str
    do: Callable[[Path, random.Random], Facts | None]
    limit_s: float = 300.0

    @property
    def name(self) -> str:
        """Name by which `--only` selects it."""
        return f"{self.kind} {self.case}"


@dataclass(frozen=True)
class Result:
    """The result of a trial: why it failed, why it was skipped, or the facts to report."""

    trial: Trial
    seconds: float
    wrong: str = ""
    skipped: str = ""
    facts: Facts = field(default_factory=dict)


def try_all(trials: Sequence[Trial], seed: int, scratch: Path, jobs: int) -> Iterator[Result]:
    """Run trials, up to `jobs` at a time, and yield their results as they end."""
    left, going = list(reversed(trials)), dict[Connection, _Going]()
    try:
        while left or going:
            while left and len(going) < jobs:
                started = _Going(left.pop(), seed, scratch)
                going[started.pipe] = started
            ready = wait(list(going), 0.5)
            for pipe in [pipe for pipe, one in going.items() if pipe in ready or one.late]:
                yield going.pop(pipe).result()
    finally:
        for one in going.values():
            one.end()


class _Going:
    """A running trial, in a process with its own session."""

    def __init__(self, trial: Trial, seed: int, scratch: Path) -> None:
        context = get_context("fork")  # modules that take seconds to import are already loaded
        self.trial, self._folder = trial, scratch / trial.name.replace(" ", "-").replace("/", "-")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_try, args=(trial, seed, self._folder, theirs))
        self._since = time.monotonic()
        self._process.start()
        theirs.close()

    @property
    def late(self) -> bool:
        return time.monotonic() - self._since > self.trial.limit_s

    def result(self) -> Result:
        """Return the result; kill the trial if it has not ended."""
        told: Facts = {"wrong": f"not done after {self.trial.limit_s:g} s"}
        if self.pipe.poll():
            try:
                told = self.pipe.recv()
            except EOFError:
                told = {"wrong": "its process has ended without a word"}
        seconds = time.monotonic() - self._since
        self.end()
        return Result(self.trial, seconds, **told)

    def end(self) -> None:
        """Remove all processes and files of the trial."""
        pid = self._process.pid
        assert pid is not None, "it was started"
        self._process.join(1.0)
        for one in [*(child.pid for child in descendants(pid)), pid] if self._process.is_alive() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self._process.join()
        unmount_all(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)


def _try(trial: Trial, seed: int, folder: Path, pipe: Connection) -> None:
    os.setsid()
    told: Facts = {}
    try:
        folder.mkdir(parents=True)
        told["facts"] = trial.do(folder, random.Random(f"{seed} {trial.name}")) or {}
    except Skip as reason:
        told["skipped"] = str(reason)
    except AssertionError as error:
        told["wrong"] = str(error) or "".join(traceback.format_exc())
    except Exception:  # a bug in the stress test itself, which is a failure, too
        told["wrong"] = traceback.format_exc()
    pipe.send(told)
