"""Trials: each gets an empty folder, a random generator and a time limit. Several run in parallel."""

import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Never

LIMIT_S = 300
Facts = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """A trial: `do` gets an empty folder and a random generator, and raises if the trial fails."""

    kind: str
    case: str
    do: Callable[[Path, random.Random], Facts]
    """Must be picklable: a function of a module, or a partial of one."""

    @property
    def name(self) -> str:
        """Name by which `--only` selects the trial."""
        return f"{self.kind} {self.case}"


@dataclass(frozen=True)
class Result:
    """Result of a trial: the traceback if it failed, or the numbers to report."""

    trial: Trial
    seconds: float
    failure: str = ""
    facts: Facts = field(default_factory=dict)


class _TimeLimitError(BaseException):
    """Raised when a trial takes too long; not an Exception, so that the code under test does not catch it."""


def run_trials(pool: Executor, trials: Sequence[Trial], seed: int, scratch: Path) -> Iterator[Result]:
    """Run trials in the processes of a pool, and yield their results as they end."""
    futures = [pool.submit(_run, trial, seed, scratch / str(number)) for number, trial in enumerate(trials)]
    for future in as_completed(futures):
        yield future.result()


def _run(trial: Trial, seed: int, folder: Path) -> Result:
    begin, failure, facts = time.monotonic(), "", Facts()
    folder.mkdir()
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(LIMIT_S)
    try:
        facts = trial.do(folder, random.Random(f"{seed} {trial.name}"))
    except (Exception, _TimeLimitError):
        failure = traceback.format_exc()
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
    return Result(trial, time.monotonic() - begin, failure, facts)


def _stop(_: int, __: FrameType | None) -> Never:
    raise _TimeLimitError(f"not finished after {LIMIT_S} s")
