"""Executes a run in its folder, with evaluations and checkpoints."""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from lesson.clock.contracts import state_of
from lesson.clock.records import RoundRecord
from lesson.core.errors import DivergedError, LackOfMemoryError, RunStoppedError, printable
from lesson.core.interrupts import STOP_SIGNALS
from lesson.core.random import stream
from lesson.fleet.measured import with_listed_clients
from lesson.fleet.tiers import TOLERANCE
from lesson.learn.build import build
from lesson.learn.device import lacks_memory
from lesson.learn.process import configured_process
from lesson.learn.scores import ClientScores, Pending, PendingScore
from lesson.runs.executable import ExecutableRun
from lesson.runs.folder import PLAIN_WORDS, RunFolder, Words
from lesson.runs.summary import WALL, read_metrics, summarize
from lesson.runs.trackers import Tracker, Tracking
from lesson.settings.sections import RunSettings
from lesson.settings.settings import Settings
from lesson.strategies import option_values

Progress = Callable[[dict[str, Any]], None]
Make = Callable[..., ExecutableRun]
NUM_EVALUATIONS = 40
REPEATS_S = 2.0
"""Seconds after the first signal in which further ones are ignored, such as repeated presses of Ctrl-C."""
MAX_WINDOW_ROUNDS = 256
"""Largest number of rounds in a window."""
MAX_NAMED = 1000
"""Largest fleet for which the metrics name the clients of all aggregated updates."""


def execute(settings: Settings, path: Path | str, **options: Any) -> dict[str, Any]:
    """Prepare this process for training and call `execute_here`, with the same options."""
    with configured_process():
        return execute_here(settings, path, **options)


def execute_here(
    settings: Settings,
    path: Path | str,
    *,
    resume: bool = False,
    may_extend: bool = False,
    progress: Progress | None = None,
    trackers: Sequence[Tracker] = (),
    make: Make = build,
    words: Words = PLAIN_WORDS,
    **parts: Any,
) -> dict[str, Any]:
    """Execute a run in a folder and return its summary; a finished run is not executed again.

    `make` builds the run from the settings and `parts`. For the default, `learn.build.build`, the parts are a data
    folder, the number of threads and your own task. With `may_extend`, a finished run keeps its last checkpoint, and if
    `resume` is set, a run may be continued with more rounds or a larger time budget than before. `words` says how the
    user resumes a run.
    """
    folder = RunFolder(path, words)
    try:
        return _execute(settings, folder, resume, may_extend, progress, trackers, make, parts)
    except _StoppedBySignal as stopped:
        stopped.pass_on()
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        why = f" ({printable(' '.join(str(error).split()))})" if str(error) else ""
        remedy = "use fewer clients or a smaller batch_size"
        raise LackOfMemoryError(
            f"not enough memory for this run{why}; {remedy}: with the same settings, resuming it would fail again"
        ) from None


def _execute(
    settings: Settings,
    folder: RunFolder,
    resume: bool,
    may_extend: bool,
    progress: Progress | None,
    trackers: Sequence[Tracker],
    make: Make,
    parts: dict[str, Any],
) -> dict[str, Any]:
    settings = with_listed_clients(settings)
    folder.check(settings, resume, may_extend)
    if not folder.is_shorter_than(settings) and (summary := folder.finished()) is not None:
        if not may_extend:
            folder.delete_checkpoints()  # a kill may have come before this was done
        print(f"note: reusing the finished run in {folder.path}", file=sys.stderr)
        return summary
    settings = folder.settled(settings)
    begin = time.perf_counter()
    run = make(settings, **parts)
    try:
        folder.begin(settings, option_values(run.loop.strategy), may_extend)
        with folder.owned(), folder.withdrawn_if_rejected():
            folder.load(run)
            kept = read_metrics(folder.metrics, run.metric) if trackers else []
            with Tracking(trackers, settings, folder.path, kept) as tracking:
                _run_rounds(settings, run, folder, tracking, progress)
                score = run.final_score()
                wall_s = round(time.perf_counter() - begin, 3)
                summary = summarize(
                    settings,
                    folder.metrics,
                    run.metric,
                    score.values,
                    score.loss,
                    num_classes=run.num_classes if run.is_cross_entropy else None,
                    stop_reason=run.loop.stop_reason,
                )
                summary["notes"] = [*run.server.notes, *summary["notes"]]
                summary |= {"wall_s": wall_s, "wall_trainer": ", ".join(run.server.source.trainers)}
                summary |= {"clock": WALL} if run.on_wall_clock else {}
                folder.finish(run, summary, keep_checkpoint=may_extend)
                tracking.finish(summary)
        return summary
    except DivergedError as error:
        error.metric = run.metric.outline  # the folder has no summary that says what was measured
        raise
    finally:
        run.close()


def _run_rounds(
    settings: Settings, run: ExecutableRun, folder: RunFolder, tracking: Tracking, progress: Progress | None
) -> None:
    """Execute rounds up to the limits, with a checkpoint every `checkpoint_every_s` and when the run is interrupted."""
    limits, loop, saved = settings.run, run.loop, time.perf_counter()
    grid = EvaluationGrid(limits)
    lines = _Lines(folder, tracking.line, progress, run)
    with _Interrupt() as interrupt, lines.written_if_stopped():
        while not loop.stop_reason and (limits.rounds is None or loop.round < limits.rounds):
            before_s = loop.now_s  # also correct after a resume
            record = loop.step(limits.time_budget_s)
            if record is None:
                break
            if record.round == 1:
                state_of(loop.strategy)  # a state that cannot be saved is an error now, not at the first checkpoint
            if record.round % MAX_WINDOW_ROUNDS == 0:
                run.server.flush()  # rounds without aggregations never fill a window, and their lines would wait
            line = {**metrics_line(record, named=len(loop.fleet) <= MAX_NAMED), **run.after_round(record)}
            due = not run.evaluates_itself and grid.is_due(before_s, record)
            all_due = not run.evaluates_itself and grid.are_clients_due(before_s, record)
            lines.add(line, run.begin_score() if due else None, run.begin_client_scores() if all_due else None)
            stopped = interrupt.asked or tracking.problem is not None
            wanted = stopped or time.perf_counter() - saved >= limits.checkpoint_every_s
            if wanted and run.server.end_window():
                with interrupt.held():
                    lines.settle()
                    folder.save(run)
                saved = time.perf_counter()
                if interrupt.asked:
                    interrupt.stop()
                if tracking.problem is not None:
                    raise RunStoppedError(f"{tracking.problem}; resume the run without trackers to continue")
        lines.settle()
        if interrupt.asked and folder.metrics.exists():
            with interrupt.held():
                folder.save(run)


class _Lines:
    """Writes lines of metrics to a folder, in order, as soon as their rounds are final and their scores are known.

    The lines for `progress` also name the metric, unless it is accuracy with the default targets.
    """

    def __init__(
        self, folder: RunFolder, track: Callable[[dict[str, Any]], None], progress: Progress | None, run: ExecutableRun
    ) -> None:
        self._folder, self._track, self._progress, self._run = folder, track, progress, run
        self._held: deque[_Line] = deque()

    def add(
        self, line: dict[str, Any], score: PendingScore | None = None, clients: Pending[ClientScores] | None = None
    ) -> None:
        """Add a line, and the pending evaluations that it will show."""
        self._held.append(_Line(line, score, clients))
        first_open = self._run.server.first_open_round
        while self._held and self._held[0].round < first_open and self._held[0].is_known:
            self._write()

    def settle(self) -> None:
        """Write all lines, after executing what is queued."""
        self._run.server.settle()
        while self._held:
            self._write()

    @contextlib.contextmanager
    def written_if_stopped(self) -> Iterator[None]:
        """After an error in the body of the context, write the lines of all rounds before the one that failed.

        If a queued round fails, too, its error is the first one and is raised instead.
        """
        try:
            yield
        except Exception as error:
            first = error
            try:
                self._run.server.settle()
            except Exception as earlier:
                first = earlier
            try:
                while self._held and self._held[0].round < self._run.server.first_open_round:
                    self._write()
            except Exception as earlier:
                first = earlier
            if first is not error:
                raise first from first.__cause__
            raise

    def _write(self) -> None:
        line = self._held.popleft()
        try:
            self._write_line(line.complete(has_classes=self._run.num_classes is not None))
        except BaseException:
            self._held.clear()  # nothing may follow a line that is missing
            raise

    def _write_line(self, line: dict[str, Any]) -> None:
        self._folder.append(line)
        self._track(line)
        if self._progress is not None:
            self._progress(line | self._run.metric.fields)


@dataclass(frozen=True, eq=False)
class _Line:
    """A line of metrics, and the pending evaluations that it will show."""

    fields: dict[str, Any]
    score: PendingScore | None
    clients: Pending[ClientScores] | None

    @property
    def round(self) -> int:
        return int(self.fields["round"])

    @property
    def is_known(self) -> bool:
        """Whether the evaluations have ended."""
        return all(pending is None or pending.ready() for pending in (self.score, self.clients))

    def complete(self, has_classes: bool) -> dict[str, Any]:
        """Return the line with its evaluations; wait for them."""
        line = self.fields
        if self.clients is not None:
            line |= client_fields(self.clients.result(), has_classes)
        if self.score is not None:
            score = self.score.result()
            line |= {**score.values, "loss": score.loss}
        return line


class _Interrupt:
    """Records Ctrl-C, SIGTERM and SIGHUP instead of raising in the middle of a round.

    A second signal more than REPEATS_S later raises immediately, except while a checkpoint is written. SIGTERM and
    SIGHUP stay ignored if they were.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._since, self._holding = 0.0, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGINT or signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.asked and kind is None:
            self.stop()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the body of the context complete, even if further signals arrive."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def stop(self) -> NoReturn:
        """Raise for the recorded signal."""
        assert self.asked is not None, "no signal was recorded"
        raise _StoppedBySignal(self.asked, self._before[self.asked])

    def _note(self, number: int, _: object) -> None:
        if self.asked is None:
            self.asked, self._since = signal.Signals(number), time.monotonic()
            _say_stopping()
        elif not self._holding and time.monotonic() - self._since > REPEATS_S:
            self.stop()


def _say_stopping() -> None:
    """Print that the run stops at the next checkpoint, unless a parent process that executes several runs says so."""
    if multiprocessing.parent_process() is None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # stderr is closed, or was just being written
            print("note: stopping at the next checkpoint; send the signal again to stop at once", file=sys.stderr)


class _StoppedBySignal(KeyboardInterrupt):
    """A run was stopped by a signal, after its checkpoint was written."""

    def __init__(self, number: signal.Signals, handler: Any) -> None:
        super().__init__()
        self._number, self._handler = number, handler

    def pass_on(self) -> None:
        """Do what the signal does outside of runs: call its handler, or end this process."""
        if callable(self._handler):
            self._handler(self._number, None)
        elif self._handler == signal.SIG_DFL:
            os.kill(os.getpid(), self._number)


def metrics_line(record: RoundRecord, named: bool) -> dict[str, Any]:
    """Return a round as a line of metrics; if `named`, with the client of each aggregated update."""
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
        **(_varying_fields(record, named) if record.misses is not None else {}),
        **({"rejected": record.rejected, "rejections": _rejections(record)} if record.rejected else {}),
        **({"excluded": list(record.excluded)} if record.excluded else {}),
        **({"note": record.note} if record.note else {}),
    }


def _merged_fields(record: RoundRecord) -> dict[str, Any]:
    """Return client, staleness, start and arrival (to the millisecond) of each aggregated update."""
    return {
        "merged": record.merged.tolist(),
        "merged_staleness": record.staleness.tolist(),
        "merged_started_s": record.merged_started_s.round(3).tolist(),
        "merged_arrived_s": record.merged_arrived_s.round(3).tolist(),
    }


def _varying_fields(record: RoundRecord, named: bool) -> dict[str, Any]:
    """Return the numbers of misses, tier changes and lost updates; if `named`, also the expected latencies."""
    expected = {"merged_expected_s": record.merged_expected_s.round(3).tolist()} if named else {}
    return expected | {"misses": record.misses, "retiered": record.retiered, "lost": record.lost}


def _rejections(record: RoundRecord) -> dict[str, list[int]]:
    """Return the clients whose updates were rejected, by reason."""
    clients: dict[str, list[int]] = {}
    for rejection in record.rejections:
        clients.setdefault(rejection.reason, []).append(rejection.client)
    return clients


def client_fields(scores: ClientScores, has_classes: bool = True) -> dict[str, Any]:
    """Return the scores on each client's own data as fields of a line; None for a client without data.

    The accuracy is included only if the task has classes.
    """
    columns = ({"client_accuracy": scores.accuracy} if has_classes else {}) | {"client_loss": scores.loss}
    return {"global_loss": scores.global_loss} | {
        name: [None if math.isnan(value) else value for value in column.tolist()] for name, column in columns.items()
    }


class EvaluationGrid:
    """Decides when a run is evaluated: after the first round that ends at or after each point of a grid.

    The points are the multiples of `eval_every_s`, each moved to an earlier time by a random share of the interval, at
    most `eval_jitter`; those of evaluations on the clients' own data likewise, of `client_scores_every_s`. With "auto",
    the run is divided into 40 equal parts, in simulated time and in rounds as far as these are limited, and each part
    has one point anywhere in it. Points are drawn from the seed and the number of their part, so they are the same for
    every strategy and after a resume. They are out of step with the tiers: multiples of 500 s would always fall on even
    rounds of 10 s, in which tier 2 has just been aggregated. Several points in the same round are one evaluation.
    """

    def __init__(self, limits: RunSettings) -> None:
        self._seed, self._jitter = limits.seed, limits.eval_jitter
        self._every_s, self._clients_every_s = limits.eval_every_s, limits.client_scores_every_s
        self._drawn: dict[int, float] = {}
        self._part_s = limits.time_budget_s / NUM_EVALUATIONS
        self._part_rounds = math.inf if limits.rounds is None else limits.rounds / NUM_EVALUATIONS

    def is_due(self, before_s: float, record: RoundRecord) -> bool:
        """Return whether a point lies after the end of the previous round and at or before the end of this one."""
        if self._every_s != "auto":
            return self._has_point(before_s, record.end_s, self._every_s, self._jitter)
        by_time = self._has_point(before_s, record.end_s, self._part_s, 1.0)
        return by_time or self._has_point(record.round - 1, record.round, self._part_rounds, 1.0)

    def are_clients_due(self, before_s: float, record: RoundRecord) -> bool:
        """Return the same for evaluations on every client's own data."""
        return self._has_point(before_s, record.end_s, self._clients_every_s, self._jitter)

    def _has_point(self, after: float, until: float, part: float, jitter: float) -> bool:
        return self._num_points(until, part, jitter) > self._num_points(after, part, jitter)

    def _num_points(self, until: float, part: float, jitter: float) -> int:
        """Return the number of points in [0, until]: one per complete part, and that of the current part if reached."""
        whole = _multiples(until, part)
        if jitter == 0 or math.isinf(part):
            return whole
        place = 1 - jitter * (1 - self._draw(whole))  # in the part, from 0 to 1
        return whole + ((whole + place) * part <= until)

    def _draw(self, part: int) -> float:
        """Return the random number of a part; cached, as creating a generator takes over 10 µs."""
        if part not in self._drawn:
            self._drawn[part] = stream(self._seed, "evaluation", part).random()
        return self._drawn[part]


def _multiples(until: float, every: float) -> int:
    """Return the number of positive multiples of an interval up to a time."""
    return int(until * (1 + TOLERANCE) / every)
