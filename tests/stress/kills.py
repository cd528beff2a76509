"""SIGKILL and other signals at random moments: the same command resumes, and its results are bit-identical."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.stress.command import Limits, call, start, text
from tests.stress.commands import Command, chosen, life_s, undisturbed, write_grid
from tests.stress.folders import check_same
from tests.stress.processes import Process, descendants, wait_until_gone
from tests.stress.trial import Facts, Trial

PER_TRIAL = 3
ORPHANS_S = 30.0
BUSY = "is in use by another process"


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials with kills spread over the duration of each command, three in a row on the same folder."""
    made = []
    for command in chosen(short):
        kills = PER_TRIAL if short else 50
        order = random.Random(command.name).sample(range(kills), kills)
        for first in range(0, kills, PER_TRIAL):
            shares = [(place, kills) for place in order[first : first + PER_TRIAL]]
            made.append(_trial(command, shared, first, shares))
    for number in (signal.SIGTERM,) if short else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        made += [
            _stop(chosen(short)[0], shared, number, share) for share in ((0.6,) if short else (0.3, 0.5, 0.7, 0.9))
        ]
    return made


def _stop(command: Command, shared: Path, number: signal.Signals, share: float) -> Trial:
    """Return a trial that sends a signal five times; the command must print one line and be resumable."""

    def do(folder: Path, _: random.Random) -> Facts:
        process = start(command.argv(folder / "runs"), folder)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(share * life_s(command, shared))
        for _repeat in range(5):
            process.send_signal(number)
            time.sleep(0.01)
        status, said = process.wait(100), text(folder / "err")
        assert status in (0, 128 + number), f"status {status}: {said}"
        lines = [
            line for line in said.splitlines() if not line.startswith("note: ")
        ]  # a run in progress says when it stops
        assert len(lines) == (status != 0), said
        call(command.argv(folder / "runs"), folder, Limits(200.0), real=False).check(0)
        check_same(folder / "runs", undisturbed(command, shared))
        return {"stopped": int(status != 0)}

    return Trial(f"stop {command.name}", f"{number.name} {share:g}", do)


def _trial(command: Command, shared: Path, number: int, shares: list[tuple[int, int]]) -> Trial:
    def do(folder: Path, rng: random.Random) -> Facts:
        write_grid(folder)
        disturbed = _Disturbed(command, shared, folder, rng)
        for place, of in shares:
            disturbed.kill((place + rng.random()) / of)
        disturbed.end()
        return {"kills": disturbed.kills, "workers": disturbed.workers, "rejected": disturbed.rejected}

    return Trial(f"kill {command.name}", f"{number}-{number + len(shares) - 1}", do)


class _Disturbed:
    """An output folder whose command is killed repeatedly."""

    def __init__(self, command: Command, shared: Path, folder: Path, rng: random.Random) -> None:
        self._command, self._shared, self._folder, self._rng = command, shared, folder, rng
        self._life_s = life_s(command, shared)
        self._begin()
        self._orphans: list[Process] = []
        self.kills = self.workers = self.rejected = 0

    def _begin(self) -> None:
        self._out = self._folder / f"runs{len(list(self._folder.glob('runs*')))}"

    def kill(self, share: float) -> None:
        """Start the command and kill it after a share of its duration.

        If it ends before that, check its results and try again in a new folder with a smaller share.
        """
        while True:
            process = start(self._command.argv(self._out), self._folder)
            try:
                process.wait(share * self._life_s)
            except subprocess.TimeoutExpired:
                self._strike(process)
                self.kills += 1
                return
            if BUSY in text(self._folder / "err") + text(self._folder / "out"):
                self._await_orphans()
                self.rejected += 1
                continue
            assert process.returncode == 0, text(self._folder / "err")
            check_same(self._out, undisturbed(self._command, self._shared))
            self._begin()
            share *= 0.7

    def _strike(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the process alone, with all its descendants, or some time after one of its workers."""
        started = descendants(process.pid)
        workers = [one for one in started if one.is_worker]
        how = self._rng.choice(["main", "all", "worker"] if workers else ["main"])
        if how == "worker":
            os.kill(self._rng.choice(workers).pid, signal.SIGKILL)
            self.workers += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._rng.random() * self._life_s)  # a sweep continues without it
        for one in started if how == "all" else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        self._orphans += started
        if self._rng.random() < 0.5:
            self._await_orphans()

    def _await_orphans(self) -> None:
        """Check that the descendants of killed processes end by themselves."""
        left = wait_until_gone(self._orphans, ORPHANS_S)
        assert not left, f"{[one.pid for one in left]} must end when the process that started them is gone"

    def end(self) -> None:
        """Run the command to its end, and compare the results with the undisturbed ones."""
        outcome = call(self._command.argv(self._out), self._folder, Limits(200.0), real=False)
        if outcome.status and BUSY in outcome.err + outcome.out:
            self.rejected += 1
            time.sleep(0.1)
            self._await_orphans()
            outcome = call(self._command.argv(self._out), self._folder, Limits(200.0), real=False)
        outcome.check(0)
        self._await_orphans()
        check_same(self._out, undisturbed(self._command, self._shared))
