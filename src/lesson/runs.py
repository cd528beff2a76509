"""A run in its folder: round after round, with evaluations and checkpoints."""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from lesson.errors import RunStoppedError
from lesson.learn.build import build
from lesson.learn.evaluate import ClientScores, PendingScore
from lesson.learn.learner import Learner
from lesson.learn.process import settled_process
from lesson.records import RoundRecord
from lesson.run_folder import RunFolder
from lesson.settings import Settings
from lesson.simulate import Simulation
from lesson.summary import read_metrics, summarise
from lesson.tiers import TOLERANCE
from lesson.trackers import Tracker, Tracking

Progress = Callable[[dict[str, Any]], None]
Make = Callable[..., tuple[Simulation, Learner]]
MAX_NAMED = 1000
"""Clients of a fleet at most, for whose work was merged to be written down."""


@settled_process()
def execute(
    settings: Settings,
    path: Path | str,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    trackers: Sequence[Tracker] = (),
    make: Make = build,
    **parts: Any,
) -> dict[str, Any]:
    """Run what the settings say in a folder and return the summary; a run that has ended is not run again.

    `make` makes the simulation and what learns in it, of the settings and `parts`: for `learn.build.build` a data
    folder, the number of threads, a data set or a model of one's own.
    """
    folder = RunFolder(path)
    folder.check(settings, resume)
    if (summary := folder.finished()) is not None:
        return summary
    settings = folder.settled(settings)
    begin = time.perf_counter()
    simulation, learner = make(settings, **parts)
    try:
        folder.begin(settings)
        with folder.owned(), folder.withdrawn_if_refused():
            folder.load(simulation, learner)
            kept = read_metrics(folder.metrics) if trackers else []
            with Tracking(trackers, settings, folder.path, kept) as tracking:
                _run(settings, simulation, learner, folder, tracking, progress)
                score = learner.score(simulation.version)
                wall_s = round(time.perf_counter() - begin, 3)
                summary = summarise(settings, folder.metrics, score.accuracy, score.loss, simulation.over)
                summary |= {"wall_s": wall_s}
                folder.finish(simulation, learner, summary)
                tracking.finish(summary)
        return summary
    finally:
        learner.close()


def _run(
    settings: Settings,
    simulation: Simulation,
    learner: Learner,
    folder: RunFolder,
    tracking: Tracking,
    progress: Progress | None,
) -> None:
    """Round after round until the limit, with checkpoints by the clock on the wall and when something stops it."""
    limits, saved = settings.run, time.perf_counter()
    lines = _Lines(folder, [tracking.line] if progress is None else [tracking.line, progress])
    with _Interrupt() as interrupt:
        while not simulation.over and (limits.rounds is None or simulation.round < limits.rounds):
            record = simulation.step(limits.time_budget_s)
            if record is None:
                break
            line = metrics_line(record, named=len(simulation.fleet) <= MAX_NAMED)
            due = _crosses_grid(record, limits.eval_every_s)
            score = learner.begin_score(simulation.version) if due else None
            if _crosses_grid(record, limits.client_scores_every_s):
                line |= client_fields(learner.client_scores(simulation.version))
            lines.add(line, score)
            stopped = interrupt.asked or tracking.problem is not None
            if stopped or time.perf_counter() - saved >= limits.checkpoint_every_s:
                lines.settle()
                folder.save(simulation, learner)
                saved = time.perf_counter()
            if interrupt.asked:
                raise KeyboardInterrupt
            if tracking.problem is not None:
                raise RunStoppedError(f"{tracking.problem}; --resume without --log goes on without trackers")
        lines.settle()


class _Lines:
    """Lines on their way into a folder. One whose score is still worked out holds up those after it."""

    def __init__(self, folder: RunFolder, listeners: Sequence[Progress]) -> None:
        self._folder, self._listeners = folder, listeners
        self._held: list[dict[str, Any]] = []
        self._score: PendingScore | None = None

    def add(self, line: dict[str, Any], score: PendingScore | None) -> None:
        """Take a line, and its score if it has one."""
        if score is not None:
            self.settle()
            self._score = score
        self._held.append(line)
        if self._score is None or self._score.ready():
            self.settle()

    def settle(self) -> None:
        """Write down all lines, waiting for the score if need be."""
        if self._score is not None:
            score, self._score = self._score.result(), None
            self._held[0] |= {"accuracy": score.accuracy, "loss": score.loss}
        for line in self._held:
            self._folder.append(line)
            for listener in self._listeners:
                listener(line)
        self._held.clear()


class _Interrupt:
    """Notes Ctrl-C instead of raising in the middle of a round; a second one raises."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)
        if self.asked and kind is None:
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def metrics_line(record: RoundRecord, named: bool) -> dict[str, Any]:
    """A round as it is written down; in small fleets with whose work was merged, by number."""
    energy = [record.compute_j, record.transmit_j]
    return {
        "round": record.round,
        "time_s": record.end_s,
        "uploads": record.uploads,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "energy_j": None if None in energy else sum(energy),
        "staleness": float(record.staleness.mean()) if len(record.staleness) else None,
        **(_merged_fields(record) if named else {}),
        **(_surprises(record, named) if record.misses is not None else {}),
        **({"refused": record.refused, "refusals": _refusals(record)} if record.refused else {}),
        **({"set_aside": list(record.set_aside)} if record.set_aside else {}),
        **({"note": record.note} if record.note else {}),
    }


def _merged_fields(record: RoundRecord) -> dict[str, Any]:
    """Whose work was merged, how stale it was, when it began and when it arrived, to the millisecond."""
    return {
        "merged": record.merged.tolist(),
        "merged_staleness": record.staleness.tolist(),
        "merged_started_s": record.merged_started_s.round(3).tolist(),
        "merged_arrived_s": record.merged_arrived_s.round(3).tolist(),
    }


def _surprises(record: RoundRecord, named: bool) -> dict[str, Any]:
    """How far the server was wrong, where times vary; in small fleets with what it believed of each merged update."""
    believed = {"merged_expected_s": record.merged_expected_s.round(3).tolist()} if named else {}
    return believed | {"misses": record.misses, "retiered": record.retiered, "lost": record.lost}


def _refusals(record: RoundRecord) -> dict[str, list[int]]:
    """Whose updates were refused, by the reason."""
    clients: dict[str, list[int]] = {}
    for refusal in record.refusals:
        clients.setdefault(refusal.reason, []).append(refusal.client)
    return clients


def client_fields(scores: ClientScores) -> dict[str, Any]:
    """What each client's own data say as it is written down: nothing of a client that has none."""
    columns = {"client_accuracy": scores.accuracy, "client_loss": scores.loss}
    return {"global_loss": scores.global_loss} | {
        name: [None if math.isnan(value) else value for value in column.tolist()] for name, column in columns.items()
    }


def _crosses_grid(record: RoundRecord, every_s: float) -> bool:
    """Whether a look is due: a multiple of the interval lies in the round."""
    return int(record.end_s * (1 + TOLERANCE) / every_s) > int(record.start_s * (1 + TOLERANCE) / every_s)
